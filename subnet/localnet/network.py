"""``liquid localnet``: a whole network on this machine, from nothing to a summary that is checked.

Starts an embedded chain, an orchestrator, miners and validators as separate programs, shows them live, kills and
restarts miners on request, and ends with claims about itself; exits with 1 if one of them is untrue.
Not here: what any of the programs does. Invariants: every wait has a deadline; no process is left behind.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from subnet.chain.base import ChainSnapshot
from subnet.chain.live import LiveChain, load_wallet
from subnet.config import load_run_config
from subnet.data.corpus import bigram_entropy, load_corpus
from subnet.errors import ChainError, ConfigError, DeadlineExceeded, Missing, Unavailable
from subnet.localnet.checks import Facts, claims
from subnet.localnet.facts import Vector, digests_differed, held_out_losses, merged_params, pay
from subnet.localnet.keys import OWNER, Keys, make_keys, write_genesis
from subnet.localnet.options import Options, parse_options
from subnet.localnet.processes import Processes, cache_environment
from subnet.localnet.summary import Timing, as_json, show, watch_command
from subnet.localnet.table import Picture, headline, render
from subnet.net.auth import signer_from_wallet
from subnet.net.base import PeerAddress
from subnet.net.client import HttpPeers
from subnet.net.follower import LedgerFollower
from subnet.types import Phase

PRESET = "localnet"
LOOK_S = 1.0  # between looks at the network
STALL_TIMEOUT_S = 240.0  # without a new ledger entry; starting ten programs on two busy cores takes up to a minute
SETTLE_S = 90.0  # after the last round: for verdicts that lag behind, the last epoch and its weights
BLOCK_TIME_S = 0.25
TEMPO_BLOCKS = 20
NETUID = 1
KILL_AFTER = 0.3  # part of its round that a miner has done when it is killed
PLAIN_WIDTH = 132  # columns where there is no terminal to ask


@dataclass
class Network:
    """What is running."""

    options: Options
    folder: Path
    keys: Keys
    processes: Processes
    peers: HttpPeers
    console: Console
    began_s: float = field(default_factory=time.monotonic)
    chain: LiveChain | None = None
    chain_url: str = "none"
    orchestrator: PeerAddress | None = None
    follower: LedgerFollower | None = None
    snapshot: ChainSnapshot | None = None
    status: dict[str, Any] = field(default_factory=dict)
    looked: asyncio.Event = field(default_factory=asyncio.Event)  # set, and replaced, at every look
    first_training: tuple[float, int] | None = None
    killed: set[str] = field(default_factory=set)
    microbatches: int = 0  # of a round


# --- starting


def _flags(net: Network, name: str) -> list[str | Path]:
    return [
        *("--netuid", str(NETUID), "--subtensor.network", net.chain_url),
        *("--wallet.path", net.keys.wallets, "--wallet.name", name, "--wallet.hotkey", "default"),
        *("--axon.ip", "127.0.0.1", "--axon.port", "0", "--neuron.data_dir", net.folder / "data"),
    ]


def _write_run(net: Network) -> Path:
    """The preset with this network's options, as a TOML file."""
    options = net.options
    run = load_run_config(PRESET).with_values(
        **{
            "seed": options.seed,
            "stages.num_stages": options.stages,
            "boundary.kind": options.boundary,
            "round.min_replicas": options.replicas,
            **options.settings,
        }
    )
    net.microbatches = run.round.microbatches
    path = net.folder / "run.toml"
    path.write_text(run.to_toml())
    return path


async def _start(net: Network) -> None:
    options, processes = net.options, net.processes
    if options.chain:
        genesis = net.folder / "genesis.json"
        write_genesis(genesis, net.keys, options)
        timing = ("--block-time", str(BLOCK_TIME_S), "--tempo", str(TEMPO_BLOCKS))
        child = await processes.start("chain", ["devchain", "--genesis", genesis, "--port", str(options.port), *timing])
        net.chain_url = await processes.listening(child)
        net.chain = LiveChain(net.chain_url, NETUID, load_wallet(net.keys.wallets, OWNER, "default"))
        net.console.print(f"chain at {net.chain_url}; try, while it runs:")
        net.console.print(f"  btcli --network {net.chain_url} subnets show {NETUID}", highlight=False)
        net.console.print(f"  btcli --network {net.chain_url} query metagraph --netuid {NETUID}", highlight=False)
        net.console.print(f"  {watch_command(net.chain_url, NETUID)}", highlight=False, soft_wrap=True)
    own = [] if options.chain else ["--orchestrator.hotkey", net.keys.hotkeys[OWNER]]
    stop = ["--stop_after_rounds", str(options.rounds)] if options.rounds else []
    child = await processes.start(
        "orchestrator", ["orchestrator", "--run", _write_run(net), *stop, *_flags(net, OWNER), *own]
    )
    net.orchestrator = PeerAddress(net.keys.hotkeys[OWNER], await processes.listening(child))
    net.follower = LedgerFollower(net.peers, net.orchestrator)
    for name in options.miners:
        await _start_miner(net, name)
    for name in options.validator_names:
        arguments = ["validator", *_flags(net, name), *_orchestrator_flags(net)]
        await processes.start(name, arguments, may_end=True)


def _orchestrator_flags(net: Network) -> list[str]:
    assert net.orchestrator is not None
    return ["--orchestrator.url", net.orchestrator.url, "--orchestrator.hotkey", net.orchestrator.hotkey]


async def _start_miner(net: Network, name: str) -> None:
    kind = net.options.cheats.get(name)
    program = ["miner"] if kind is None else ["cheat", kind]
    relay = ["--axon.relay", "always"] if name in net.options.relayed else []
    await net.processes.start(name, [*program, *_flags(net, name), *_orchestrator_flags(net), *relay])


# --- running


async def _kill_on_time(net: Network, name: str, number: int) -> None:
    """Kill a miner in the middle of a round's TRAINING, and start it again at once."""
    assert net.follower is not None
    hotkey = net.keys.hotkeys[name]
    await net.follower.until(
        lambda view: view.round is not None and view.round.round >= number and view.round.phase is Phase.TRAINING
    )
    before = None
    while before is None or not _is_in_the_middle(net, hotkey, number, before):
        await net.looked.wait()
        before = before if before is not None else _applied(net, hotkey, number)
    net.console.print(f"killing {name} in round {number}")
    await net.processes.kill(name)
    net.killed.add(name)
    await _start_miner(net, name)


def _applied(net: Network, hotkey: str, number: int) -> int | None:
    """What a miner has applied since it started, if it trains in round ``number`` now."""
    miners = net.status.get("miners", [])
    beat = next((item["beat"] for item in miners if item["hotkey"] == hotkey), None)
    if beat is None or beat["round"] != number or beat["phase"] != Phase.TRAINING:
        return None
    return int(beat["applied"])


def _is_in_the_middle(net: Network, hotkey: str, number: int, before: int) -> bool:
    """Whether the miner has done a good part of its round, and has the rest to do."""
    applied = _applied(net, hotkey, number)
    share = net.microbatches / net.options.replicas
    return applied is not None and applied - before >= KILL_AFTER * share


async def _look(net: Network) -> None:
    """Refresh status and chain; what is away for a moment keeps its last picture."""
    await _ask_status(net)
    if net.chain is not None:
        with suppress(ChainError, Unavailable):
            net.snapshot = await net.chain.snapshot()
    net.looked.set()
    net.looked = asyncio.Event()


async def _ask_status(net: Network) -> None:
    assert net.orchestrator is not None
    with suppress(Unavailable):
        net.status = json.loads(await net.peers.request(net.orchestrator, "GET", "/v1/status", timeout_s=5.0))


def _picture(net: Network) -> Picture:
    status = net.status
    speed = None
    if status["phase"] == Phase.TRAINING and net.first_training is None:
        net.first_training = (time.monotonic(), status["applied_first_stage"])
    if net.first_training is not None:
        passed_s = time.monotonic() - net.first_training[0]
        done = (status["applied_first_stage"] - net.first_training[1]) * status["microbatch_tokens"]
        speed = done / passed_s if passed_s > LOOK_S else None
    return Picture(status, net.snapshot, net.keys.names, tuple(net.options.validator_names), speed)


async def _show_until_stopped(net: Network) -> None:
    """Show the network until its run stops.

    Raises ``ChildFailed`` when a program dies unasked, ``DeadlineExceeded`` when nothing happens any more.
    """
    last = None
    seq, moved_s = -1, time.monotonic()
    with Live(console=net.console, auto_refresh=False, transient=True) as live:
        while True:
            await _look(net)
            if net.status:
                picture = _picture(net)
                if net.console.is_terminal:
                    live.update(render(picture), refresh=True)
                elif (net.status["round"], net.status["phase"]) != last:
                    last = (net.status["round"], net.status["phase"])
                    net.console.print(headline(picture), highlight=False, soft_wrap=True)
                if net.status["is_stopped"]:
                    return
                if net.status["seq"] != seq:
                    seq, moved_s = net.status["seq"], time.monotonic()
            net.processes.check()
            if time.monotonic() - moved_s > STALL_TIMEOUT_S:
                raise DeadlineExceeded(f"The ledger has not grown for {STALL_TIMEOUT_S:.0f} s.", remedy="See the logs.")
            await asyncio.sleep(LOOK_S)


async def _settle(net: Network) -> None:
    """Let validators finish what is due, verdicts and weights from the last head; then they end by themselves."""
    with suppress(TimeoutError):
        async with asyncio.timeout(SETTLE_S):
            await net.processes.ended()
    net.processes.check()


# --- ending


async def _gather(net: Network) -> list[Vector] | None:
    """The whole ledger, last looks at status and chain, the merged parameters (None: nothing merged); then all stops.

    Miners and validators are told to stop as soon as the ledger is here, since this is also how Ctrl-C ends a network.
    """
    assert net.follower is not None
    assert net.orchestrator is not None
    while await net.follower.poll(0.0):
        pass
    await _ask_status(net)
    stopping = asyncio.create_task(_stop(net, [*net.options.miners, *net.options.validator_names]))
    try:
        if net.chain is not None:
            net.snapshot = await net.chain.snapshot()
        return await merged_params(net.follower.view, net.peers, net.orchestrator)
    except Missing:
        return None
    finally:
        await stopping
        await _close(net)


async def _facts(net: Network, params: list[Vector] | None) -> Facts:
    assert net.follower is not None
    view, options = net.follower.view, net.options
    entries = net.follower.entries
    corpus = await asyncio.to_thread(load_corpus, view.run.data.source, view.run.data.held_out_share)
    losses: tuple[float | None, float | None] = (None, None)
    if params is not None:
        losses = await asyncio.to_thread(held_out_losses, view.run, corpus, params)
    points, twice = pay(entries, view.run)
    return Facts(
        view=view,
        names=net.keys.names,
        cheats=options.cheats,
        kills=options.kills,
        miners=options.miners,
        validators=options.validator_names,
        held_out_loss=losses[0],
        bypassed_loss=losses[1],
        bigram_entropy=await asyncio.to_thread(bigram_entropy, corpus.training),
        digests_differed=digests_differed(entries, net.keys.names),
        paid_twice=twice,
        points=points,
        neurons=net.snapshot.neurons if net.snapshot is not None else None,
        kills_missed=set(options.kills) - net.killed,
    )


def _timing(net: Network, facts: Facts) -> Timing:
    rounds = [facts.view.rounds[closed.round] for closed in facts.view.closed if closed.round in facts.view.rounds]
    tokens = sum(len(item.document.microbatches()) for item in rounds) * facts.view.run.microbatch_tokens
    end_s = facts.view.forming_since_s
    training_s = end_s - rounds[0].opened_s if rounds else 0.0
    return Timing(time.monotonic() - net.began_s, training_s, tokens, len(os.sched_getaffinity(0)))


async def _finish(net: Network) -> bool:
    facts = await _facts(net, await _gather(net))
    summary = as_json(facts, claims(facts), _timing(net, facts), net.status)
    show(net.console, summary)
    if net.options.json_line:
        sys.stdout.write(json.dumps(summary) + "\n")
    return bool(summary["ok"])


async def _run(net: Network) -> bool:
    await _start(net)
    assert net.follower is not None
    background = [asyncio.create_task(net.follower.run())]
    background += [asyncio.create_task(_kill_on_time(net, name, at)) for name, at in net.options.kills.items()]
    try:
        await _show_until_stopped(net)
        await _settle(net)
    finally:
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
    return await _finish(net)


async def _stop(net: Network, names: list[str] | None = None) -> None:
    killed = await net.processes.stop(names)
    if killed:
        net.console.print(f"had to kill {', '.join(killed)}")


async def _close(net: Network) -> None:
    """Let go of everybody and stop what still runs; may be called again."""
    try:
        await net.peers.aclose()
        if net.chain is not None:
            await net.chain.close()
    finally:
        await _stop(net)


@asynccontextmanager
async def _network(options: Options, folder: Path) -> AsyncIterator[Network]:
    keys = await asyncio.to_thread(make_keys, folder, options)
    peers = HttpPeers(signer_from_wallet(OWNER, "default", keys.wallets))
    console = Console(stderr=options.json_line)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    net = Network(options, folder, keys, Processes(folder), peers, console)
    try:
        yield net
    finally:
        await _close(net)


async def _main(options: Options, folder: Path) -> bool:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    async with _network(options, folder) as net:
        try:
            return await _run(net)
        except asyncio.CancelledError:
            if net.follower is None or not net.follower.view.closed:
                return False
            task.uncancel()
            return await _finish(net)


def _folder(options: Options) -> Path:
    """A folder for the network; bittensor's caches go there as well."""
    folder = options.folder or Path(tempfile.mkdtemp(prefix="liquid-"))
    if (folder / "wallets").exists():
        raise ConfigError(f"{folder} holds a network already.", remedy="Name another folder with --dir.")
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.update(cache_environment(folder))
    return folder


def main(argv: list[str]) -> int:
    """``liquid localnet``; 0 when every claim holds."""
    options = parse_options(argv)
    folder, is_ok = _folder(options), False
    try:
        is_ok = asyncio.run(_main(options, folder))
    except asyncio.CancelledError:
        sys.stderr.write("Stopped before there was anything to check.\n")
    finally:
        if is_ok and not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            sys.stderr.write(f"Data and logs are kept in {folder}.\n")
    return 0 if is_ok else 1
