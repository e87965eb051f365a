"""Chains for tests: a development chain in a thread of its own, and worlds of a ``Chain``, live or in memory.

A world is one subnet with an owner, a validator with stake, and a miner and a newcomer that are not registered yet.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from subnet.chain.base import Chain, ChainSnapshot
from subnet.chain.live import LiveChain, Timeouts, create_wallet, load_wallet
from subnet.chain.memory import MemoryChain, MemoryLedgerChain
from subnet.localnet.devchain.chain import DevChain, DevChainConfig
from subnet.localnet.devchain.rpc import Server, serve_devchain
from subnet.localnet.devchain.subnets import PALLET, read
from subnet.types import Hotkey

FUNDS_RAO = 10**12
NAMES = ("owner", "validator", "miner", "newcomer")
TEMPO_BLOCKS = 30
RATE_LIMIT_BLOCKS = 2
CLOSED_WITHIN_S = 5.0


@dataclass
class Running:
    """A chain that is served. ``call`` runs something in its event loop."""

    chain: DevChain
    server: Server
    loop: asyncio.AbstractEventLoop

    @property
    def url(self) -> str:
        return self.server.url

    def call(self, work: Any) -> Any:
        """Run a function in the chain's loop and return its result."""

        async def run() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(10)

    def wait(self, work: Any) -> Any:
        """Await a coroutine in the chain's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(10)

    def fault(self, name: str, value: Any = True) -> None:
        """Set a switch of ``Faults``."""
        assert name in vars(self.server.faults)
        self.call(lambda: setattr(self.server.faults, name, value))


@contextmanager
def running_chain(block_time_s: float = 0.1, tempo_blocks: int = 10, port: int = 0) -> Iterator[Running]:
    """A chain with timer blocks until the block ends."""
    chain = DevChain(DevChainConfig(block_time_s=block_time_s, tempo_blocks=tempo_blocks))
    ready, stop = threading.Event(), asyncio.Event()
    box: list[Running] = []

    async def serve() -> None:
        async with serve_devchain(chain, port=port) as server:
            box.append(Running(chain, server, asyncio.get_running_loop()))
            ready.set()
            await stop.wait()

    def run() -> None:
        with asyncio.Runner() as runner:  # closes its loop
            runner.run(serve())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield box[0]
    finally:
        box[0].loop.call_soon_threadsafe(stop.set)
        thread.join(10)


@dataclass
class World:
    """``client``: a ``Chain`` of somebody by name; ``produce``: a block; ``prune``: give the first one's place to the
    second; ``starve``: take a validator's stake, and its permit with it; ``hand_over``: the subnet to somebody."""

    hotkeys: dict[str, Hotkey]
    client: Callable[[str], Chain]
    produce: Callable[[], None]
    prune: Callable[[str, str], None]
    starve: Callable[[str], None]
    hand_over: Callable[[str], None]

    async def until(self, chain: Chain, block: int) -> ChainSnapshot:
        """Make blocks up to ``block``."""
        while (snapshot := await chain.snapshot()).block < block:
            await asyncio.to_thread(self.produce)
        return snapshot


@dataclass
class LiveWorld(World):
    """On the development chain."""

    client: Callable[[str], LiveChain]
    running: Running
    wallets: Path
    netuid: int
    keys: dict[str, tuple[str, str]]  # coldkey and hotkey

    @property
    def url(self) -> str:
        return self.running.url

    def hasty(self, name: str, read_s: float = 1.0, submit_s: float = 2.0) -> LiveChain:
        """A client with short deadlines."""
        wallet = load_wallet(self.wallets, name, "default")
        return LiveChain(self.running.url, self.netuid, wallet, Timeouts(read_s, submit_s))

    async def until_pooled(self) -> None:
        """Wait for a transaction in the pool; best while the chain is stalled."""
        async with asyncio.timeout(CLOSED_WITHIN_S):
            for _ in itertools.repeat(None):
                if await asyncio.to_thread(self.running.call, lambda: self.running.chain.pool.waiting):
                    return

    async def close_connections(self, code: int) -> None:
        """See ``Server.close_connections``."""
        await asyncio.to_thread(self.running.wait, self.running.server.close_connections(code))

    async def closes_connections(self) -> None:
        """Raises ``TimeoutError`` if any stays open."""

        async def closed() -> None:
            await asyncio.gather(*[known.socket.wait_closed() for known in self.running.server.connections])

        await asyncio.to_thread(self.running.wait, asyncio.wait_for(closed(), CLOSED_WITHIN_S))


@dataclass
class LiveActs:
    """What happens to neurons on the development chain, by name."""

    running: Running
    netuid: int
    keys: dict[str, tuple[str, str]]

    def produce(self) -> None:
        self.running.call(self.running.chain.produce)

    def prune(self, victim: str, newcomer: str) -> None:
        chain = self.running.chain

        def act() -> None:
            state, hotkey = chain.state, self.keys[victim][1]
            count, uid = int(read(state, "SubnetworkN", self.netuid)), int(read(state, "Uids", self.netuid, hotkey))
            settings = {
                "ImmunityPeriod": 0,
                "MaxAllowedUids": count,
                "Emission": [int(number != uid) for number in range(count)],
            }
            for item, value in settings.items():
                state.put(PALLET, item, value, self.netuid)
            assert chain.register(self.netuid, *self.keys[newcomer]) == uid
            chain.produce()

        self.running.call(act)

    def starve(self, name: str) -> None:
        chain = self.running.chain
        self.running.call(lambda: (chain.set_stake(self.netuid, self.keys[name][1], 0), chain.produce()))

    def hand_over(self, name: str) -> None:
        chain, (coldkey, hotkey) = self.running.chain, self.keys[name]

        def act() -> None:
            chain.state.put(PALLET, "SubnetOwner", coldkey, self.netuid)
            chain.state.put(PALLET, "SubnetOwnerHotkey", hotkey, self.netuid)
            chain.produce()

        self.running.call(act)


@contextmanager
def live_world(folder: Path, has_commit_reveal: bool = False, port: int = 0) -> Iterator[LiveWorld]:
    """Wallets are kept in ``folder`` and used again."""
    names = [name for name in NAMES if not (folder / name).exists()]
    for name in names:
        create_wallet(folder, name)
    wallets = {name: load_wallet(folder, name, "default") for name in NAMES}
    keys = {name: (wallet.coldkeypub.ss58_address, wallet.hotkey.ss58_address) for name, wallet in wallets.items()}
    with running_chain(port=port) as running:

        def genesis() -> int:
            settings: dict[str, Any] = {
                "WeightsSetRateLimit": RATE_LIMIT_BLOCKS,
                "Tempo": TEMPO_BLOCKS,
                "CommitRevealWeightsEnabled": has_commit_reveal,
            }
            netuid = running.chain.add_subnet(*keys["owner"], **settings)
            for coldkey, _ in keys.values():
                running.chain.endow(coldkey, FUNDS_RAO)
            running.chain.register(netuid, *keys["validator"])
            running.chain.set_stake(netuid, keys["validator"][1], FUNDS_RAO)
            return netuid

        netuid = running.call(genesis)
        hotkeys = {name: Hotkey(pair[1]) for name, pair in keys.items()}

        def client(name: str) -> LiveChain:
            return LiveChain(running.url, netuid, wallets[name])

        acts = LiveActs(running, netuid, keys)
        yield LiveWorld(
            hotkeys, client, acts.produce, acts.prune, acts.starve, acts.hand_over, running, folder, netuid, keys
        )


@contextmanager
def memory_world(has_commit_reveal: bool = False) -> Iterator[World]:
    """In memory."""
    hotkeys = {name: Hotkey(f"hot {name}") for name in NAMES}
    ledger = MemoryLedgerChain(
        ("cold owner", hotkeys["owner"]),
        tempo_blocks=TEMPO_BLOCKS,
        weights_rate_limit_blocks=RATE_LIMIT_BLOCKS,
        has_commit_reveal=has_commit_reveal,
    )
    ledger.register("cold validator", hotkeys["validator"], FUNDS_RAO)

    def prune(victim: str, newcomer: str) -> None:
        place = ledger.snapshot().neuron(hotkeys[victim])
        assert place is not None
        ledger.replace(place.uid, f"cold {newcomer}", hotkeys[newcomer])
        ledger.step()

    def starve(name: str) -> None:
        ledger.set_stake(hotkeys[name], 0)
        ledger.step(TEMPO_BLOCKS)

    def hand_over(name: str) -> None:
        ledger.hand_over((f"cold {name}", hotkeys[name]))
        ledger.step()

    def client(name: str) -> MemoryChain:
        return MemoryChain(ledger, f"cold {name}", hotkeys[name])

    yield World(hotkeys, client, ledger.step, prune, starve, hand_over)
