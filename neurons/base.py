"""What the three programs share: start in order, stop in reverse, one supervisor for what nobody expected.

Not here: what a program does. Invariants: SIGINT and SIGTERM end a program in an orderly way, a second one at once; an
unforeseen exception is logged, counted and ends the program with ``EXIT_CRASHED``, so that a supervisor restarts it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from neurons import standing
from neurons.settings import NeuronConfig
from subnet.chain.base import Chain, ChainSnapshot
from subnet.clock import WallClock
from subnet.config import RunConfig, parse_run_config
from subnet.data.corpus import Corpus, load_corpus
from subnet.errors import ChainRefused, ConfigError, LiquidError, Unavailable
from subnet.log import Event, configure_logging, event
from subnet.net.auth import Signer, Verifier, signer_from_wallet
from subnet.net.base import PeerAddress, Peers
from subnet.net.client import HttpPeers
from subnet.net.messages import RunInfo
from subnet.records import PROTOCOL, decode
from subnet.types import Hotkey

EXIT_CRASHED = 70  # EX_SOFTWARE of sysexits.h
EXIT_REFUSED = 78  # EX_CONFIG: restarting will not help
JOIN_TIMEOUT_S = 120.0  # how long a program waits for an orchestrator that is not up yet
JOIN_PAUSE_S = 0.5


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
    signer = signer_from_wallet(wallet.name, wallet.hotkey, wallet.path.expanduser())
    chain: Chain | None = None
    with ExitStack() as stack:
        if config.has_chain:
            from subnet.chain.live import LiveChain, load_wallet
            from subnet.chain.watchdog import Watchdog

            keys = load_wallet(wallet.path.expanduser(), wallet.name, wallet.hotkey)
            chain = live = LiveChain(config.endpoint, config.netuid, keys)
            stack.enter_context(Watchdog(live.stuck, standing.end_stuck))
        peers = HttpPeers(signer)
        try:
            yield Neuron(config, signer, chain, peers, clock)
        finally:
            await peers.aclose()
            if chain is not None:
                await chain.close()


async def require_registered(neuron: Neuron) -> ChainSnapshot | None:
    """The chain as it stands, if this neuron has a place in it; ``ConfigError`` says what to type otherwise."""
    if neuron.chain is None:
        return None
    try:
        snapshot = await neuron.chain.snapshot()
    except ChainRefused as error:
        raise ConfigError(error.message, remedy=error.advice) from None
    standing.check(neuron.config, neuron.signer.hotkey, None, snapshot)
    return snapshot


async def keep_standing(neuron: Neuron, owner: Hotkey) -> None:
    """End this program when it loses its place or its owner; without a chain there is nothing to lose."""
    if neuron.chain is not None:
        await standing.keep_standing(neuron.config, neuron.chain, neuron.signer.hotkey, owner)


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
    axon = next((known.axon for known in snapshot.neurons if known.hotkey == owner), "") if snapshot else ""
    if not axon:
        raise ConfigError("The subnet's owner serves no axon; name the orchestrator with --orchestrator.url.")
    return PeerAddress(owner, f"http://{axon}")


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


def published_url(config: NeuronConfig, port: int) -> str:
    """The address that others are told."""
    ip = config.axon.external_ip or config.axon.ip
    return f"http://{ip}:{config.axon.external_port or port}"


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


def run_program(config: NeuronConfig, work: Coroutine[Any, Any, None]) -> int:
    """Run a program's coroutine to its end; returns the exit code."""
    configure_logging(level=config.log_level, as_json=config.logging.json_lines)
    try:
        asyncio.run(_supervise(work))
    except Exception as error:  # noqa: BLE001 - the supervisor: names what it knows, logs the rest
        failure = named_failure(error)
        if failure is None:
            event(Event.TASK_FAILED, level=50, exc_info=True)
            return EXIT_CRASHED
        event(Event.STOPPED, level=40, reason=failure.code)
        print(failure, file=sys.stderr)
        return EXIT_REFUSED if isinstance(failure, ConfigError) else EXIT_CRASHED
    return 0
