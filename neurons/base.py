"""What the three programs share: start in order, stop in reverse, one supervisor for what nobody expected.

Not here: what a program does. Invariants: SIGINT and SIGTERM end a program in an orderly way, a second one at once;
every other end has an exit code that tells a supervisor whether to start again (``docs/operating.md``); a chain that is
away ends nobody, one whose client hangs in native code ends everybody.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from neurons.settings import NeuronConfig
from subnet.chain.base import Chain, ChainSnapshot
from subnet.chain.feed import ChainFeed, Pace
from subnet.chain.standing import Standing
from subnet.chain.wallets import require_hotkey
from subnet.chain.watchdog import Watchdog
from subnet.clock import WallClock
from subnet.config import RunConfig, parse_run_config
from subnet.data.corpus import Corpus, load_corpus
from subnet.errors import ChainError, ConfigError, LiquidError, NotRegistered, Unavailable
from subnet.log import Event, configure_logging, event
from subnet.net.auth import Signer, Verifier, signer_from_wallet
from subnet.net.base import PeerAddress, Peers
from subnet.net.client import HttpPeers
from subnet.net.messages import RunInfo
from subnet.records import PROTOCOL, decode
from subnet.types import Hotkey

EXIT_CRASHED = 70  # EX_SOFTWARE of sysexits.h
EXIT_AGAIN = 75  # EX_TEMPFAIL: start again, after a pause
EXIT_REFUSED = 78  # EX_CONFIG: restarting will not help
JOIN_TIMEOUT_S = 120.0  # how long a program waits for an orchestrator that is not up yet
JOIN_PAUSE_S = 0.5
NOWHERE = ("", "0.0.0.0", "::")  # addresses to listen on, not to be reached at


@dataclass(frozen=True)
class Neuron:
    """One program's keys, chain and connections."""

    config: NeuronConfig
    signer: Signer
    chain: Chain | None
    peers: Peers
    clock: WallClock

    def verifier(self) -> Verifier:
        """Checks requests that are meant for this neuron."""
        return Verifier(self.signer.hotkey, self.clock)


@asynccontextmanager
async def neuron(config: NeuronConfig) -> AsyncIterator[Neuron]:
    """Open wallet, chain and connections; close them in reverse."""
    wallet, clock = config.wallet, WallClock()
    folder = wallet.path.expanduser()
    require_hotkey(folder, wallet.name, wallet.hotkey)
    signer = signer_from_wallet(wallet.name, wallet.hotkey, folder)
    async with AsyncExitStack() as stack:
        chain: Chain | None = None
        if config.has_chain:
            from subnet.chain.live import LiveChain, load_wallet

            live = LiveChain(config.endpoint, config.netuid, load_wallet(folder, wallet.name, wallet.hotkey))
            chain = live
            stack.push_async_callback(live.close)
            stack.enter_context(Watchdog(live.stuck, give_up))
        peers = HttpPeers(signer)
        stack.push_async_callback(peers.aclose)
        yield Neuron(config, signer, chain, peers, clock)


def give_up(reason: str) -> None:
    """End this process at once, from any thread: what hangs would keep an orderly end from ending."""
    event(Event.CHAIN_STUCK, level=logging.CRITICAL, reason=reason)
    print(f"Giving up: {reason}. A supervisor should start this program again.", file=sys.stderr)
    faulthandler.dump_traceback(all_threads=True)
    sys.stderr.flush()
    os._exit(EXIT_AGAIN)


def how_to_register(config: NeuronConfig) -> str:
    """What an operator types to get this wallet's hotkey a place."""
    wallet = config.wallet
    return (
        f"Register it: btcli subnets register --netuid {config.netuid} --wallet {wallet.name} "
        f"--wallet-hotkey {wallet.hotkey} --wallet-path {wallet.path.expanduser()} --network {config.endpoint}"
    )


async def require_registered(neuron: Neuron) -> ChainSnapshot | None:
    """The chain as it stands, if this neuron has a place in it; ``NotRegistered`` says what to type otherwise."""
    if neuron.chain is None:
        return None
    snapshot = await neuron.chain.snapshot()
    if snapshot.neuron(neuron.signer.hotkey) is None:
        config = neuron.config
        raise NotRegistered(
            f"Hotkey {neuron.signer.hotkey} has no place in subnet {config.netuid} on {config.endpoint}.",
            remedy=how_to_register(config),
        )
    return snapshot


@asynccontextmanager
async def following_chain(
    neuron: Neuron, first: ChainSnapshot | None, *, is_validator: bool = False, pace: Pace = Pace.TEMPO
) -> AsyncIterator[ChainFeed | None]:
    """Looks at the chain while the block runs, ended by what ends a neuron's life there (see ``Standing``).

    None without a chain. ``first``: the snapshot that the program started from.
    """
    if neuron.chain is None or first is None:
        yield None
        return
    config, owner = neuron.config, first.neuron(first.owner_hotkey)
    standing = Standing(
        first,
        neuron.signer.hotkey,
        remedy=how_to_register(config),
        is_validator=is_validator,
        axon="" if config.orchestrator.url or owner is None or owner.hotkey == neuron.signer.hotkey else owner.axon,
    )
    feed = ChainFeed(neuron.chain, first, pace)
    async with asyncio.TaskGroup() as group:
        looking = group.create_task(feed.run(standing.look))
        try:
            yield feed
        finally:
            looking.cancel()


async def publish_axon(neuron: Neuron, feed: ChainFeed | None, port: int) -> None:
    """Have the chain show where this neuron is reached; returns when it does.

    Waits for as long as the chain is away or limits the rate. Raises ``ChainRefused`` for an address that it never
    takes.
    """
    if feed is None:
        return
    ip, published_port = published_address(neuron.config, port)
    async for snapshot in feed.looks():
        me = snapshot.neuron(neuron.signer.hotkey)
        if me is not None and me.axon == f"{ip}:{published_port}":
            return
        try:
            await feed.chain.serve_axon(ip, published_port)
        except (ChainError, Unavailable) as error:
            if not error.retryable:
                raise
            event(Event.CHAIN_FAILED, level=logging.WARNING, code=error.code, reason=str(error))
        else:
            return


def find_orchestrator(config: NeuronConfig, snapshot: ChainSnapshot | None) -> PeerAddress:
    """The orchestrator: as configured, else the axon of the subnet owner's hotkey on chain."""
    named = config.orchestrator
    owner = Hotkey(named.hotkey) if named.hotkey else (snapshot.owner_hotkey if snapshot else None)
    if owner is None:
        raise ConfigError("Without a chain, --orchestrator.hotkey must say who owns the run.")
    if snapshot is not None and owner != snapshot.owner_hotkey:
        raise ConfigError("--orchestrator.hotkey is not the hotkey of the subnet's owner on chain.")
    if named.url:
        return PeerAddress(owner, named.url.rstrip("/"))
    if snapshot is None:
        raise ConfigError("Without a chain, --orchestrator.url must say where the orchestrator is.")
    place = snapshot.neuron(owner)
    if place is None or not place.axon:
        raise Unavailable(
            f"The owner of subnet {config.netuid}, {owner}, serves no axon on {config.endpoint} yet.",
            remedy="Start again once its orchestrator runs, or name it with --orchestrator.url.",
        )
    return PeerAddress(owner, f"http://{place.axon}")


async def fetch_run(neuron: Neuron, orchestrator: PeerAddress) -> tuple[RunInfo, RunConfig]:
    """The run's configuration, checked against its hash; waits for an orchestrator that is still starting."""
    deadline_s = neuron.clock.now_s() + JOIN_TIMEOUT_S
    body: bytes | None = None
    while body is None:
        try:
            body = await neuron.peers.request(orchestrator, "GET", "/v1/run", timeout_s=10.0)
        except Unavailable:
            if neuron.clock.now_s() > deadline_s:
                raise
            await asyncio.sleep(JOIN_PAUSE_S)
    info = decode(RunInfo, body)
    run = parse_run_config(info.run)
    if run.hash() != info.run_hash or info.protocol != PROTOCOL or info.owner != orchestrator.hotkey:
        raise ConfigError("The orchestrator's run, protocol version or owner is not what it claims.")
    return info, run


def open_corpus(run: RunConfig) -> Corpus:
    """The run's corpus on this machine; ``ConfigError`` if it is not the one that the run agreed on."""
    corpus = load_corpus(run.data.source, run.data.held_out_share)
    if corpus.digest != run.data.corpus_hash:
        raise ConfigError(
            f"The corpus {run.data.source!r} on this machine has the hash {corpus.digest[:12]}, "
            f"the run agreed on {run.data.corpus_hash[:12]}.",
            remedy="Use the same Python version as the run's owner, or the same files.",
        )
    return corpus


def total_memory_bytes() -> int:
    """Memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def published_address(config: NeuronConfig, port: int) -> tuple[str, int]:
    """The address that others are told; ``ConfigError`` for one that reaches nobody."""
    ip = config.axon.external_ip or config.axon.ip
    if ip in NOWHERE:
        raise ConfigError(f"{ip} reaches nobody.", remedy="Say where others reach this machine: --axon.external_ip")
    return ip, config.axon.external_port or port


def published_url(config: NeuronConfig, port: int) -> str:
    """``published_address`` as a URL."""
    ip, published_port = published_address(config, port)
    return f"http://[{ip}]:{published_port}" if ":" in ip else f"http://{ip}:{published_port}"


def announce(url: str) -> None:
    """Tell whoever started this program where it listens: one JSON line on standard output."""
    print(json.dumps({"event": "listening", "url": url}), flush=True)


async def _supervise(work: Coroutine[Any, Any, None]) -> None:
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        event(Event.STOPPED, reason="signal")


def named_failure(error: BaseException) -> LiquidError | None:
    """The ``LiquidError`` behind an exception group, if there is nothing else in it."""
    if isinstance(error, LiquidError):
        return error
    if isinstance(error, BaseExceptionGroup):
        named = [named_failure(part) for part in error.exceptions]
        return named[0] if all(part is not None for part in named) else None
    return None


def exit_code(failure: LiquidError) -> int:
    """What to tell a supervisor: whether a new start may help."""
    if failure.retryable:
        return EXIT_AGAIN
    return EXIT_REFUSED if isinstance(failure, ConfigError | ChainError) else EXIT_CRASHED


def run_program(config: NeuronConfig, work: Coroutine[Any, Any, None]) -> int:
    """Run a program's coroutine to its end; returns the exit code."""
    configure_logging(level=config.log_level, as_json=config.logging.json_lines)
    if config.logging.trace:
        logging.basicConfig(level=logging.DEBUG)  # what the libraries say
    for name in config.ignored_variables():
        event(Event.CONFIG_IGNORED, level=logging.WARNING, variable=name, endpoint=config.endpoint)
    try:
        asyncio.run(_supervise(work))
    except Exception as error:  # noqa: BLE001 - the supervisor: names what it knows, logs the rest
        failure = named_failure(error)
        if failure is None:
            event(Event.TASK_FAILED, level=50, exc_info=True)
            return EXIT_CRASHED
        event(Event.STOPPED, level=40, reason=failure.code)
        print(failure, file=sys.stderr)
        return exit_code(failure)
    return 0
