"""A small subnet behind each kind of ``Chain``: in memory, and on a development chain that the live client talks to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from subnet.chain.base import Chain, ChainSnapshot
from subnet.chain.live import LiveChain, create_wallet, load_wallet
from subnet.chain.memory import MemoryChain, MemoryLedgerChain
from subnet.types import Hotkey
from tests.contract.chains import Running, running_chain

FUNDS_RAO = 10**12
NAMES = ("owner", "validator", "miner")
HEAD = "liquid/1:7:" + "a" * 64
CLOSED_WITHIN_S = 5.0


@dataclass
class World:
    """A subnet with an owner, a validator with stake, and a miner that is not registered yet."""

    hotkeys: dict[str, Hotkey]
    client: Callable[[str], Chain]
    produce: Callable[[], None]

    async def until(self, chain: Chain, block: int) -> ChainSnapshot:
        while (snapshot := await chain.snapshot()).block < block:
            await asyncio.to_thread(self.produce)
        return snapshot


@dataclass
class LiveWorld(World):
    client: Callable[[str], LiveChain]
    running: Running
    wallets: Path
    netuid: int

    def fault(self, name: str, value: bool) -> None:
        self.running.call(lambda: setattr(self.running.server.faults, name, value))

    async def closes_connections(self) -> None:
        """Raises ``TimeoutError`` if any stays open."""

        async def closed() -> None:
            await asyncio.gather(*[known.socket.wait_closed() for known in self.running.server.connections])

        await asyncio.to_thread(self.running.wait, asyncio.wait_for(closed(), CLOSED_WITHIN_S))


@contextmanager
def live_world(folder: Path, has_commit_reveal: bool) -> Iterator[LiveWorld]:
    keys = {name: create_wallet(folder, name) for name in NAMES}
    with running_chain() as running:

        def genesis() -> int:
            settings: dict[str, Any] = {
                "WeightsSetRateLimit": 2,
                "Tempo": 30,
                "CommitRevealWeightsEnabled": has_commit_reveal,
            }
            netuid = running.chain.add_subnet(*keys["owner"], **settings)
            for coldkey, _ in keys.values():
                running.chain.endow(coldkey, FUNDS_RAO)
            running.chain.register(netuid, *keys["validator"])
            running.chain.set_stake(netuid, keys["validator"][1], FUNDS_RAO)
            return netuid

        netuid = running.call(genesis)
        hotkeys = {name: pair[1] for name, pair in keys.items()}

        def client(name: str) -> LiveChain:
            return LiveChain(running.url, netuid, load_wallet(folder, name, "default"))

        yield LiveWorld(hotkeys, client, lambda: running.call(running.chain.produce), running, folder, netuid)


@contextmanager
def memory_world(has_commit_reveal: bool) -> Iterator[World]:
    hotkeys = {name: Hotkey(f"hot {name}") for name in NAMES}
    ledger = MemoryLedgerChain(
        ("cold owner", hotkeys["owner"]),
        tempo_blocks=30,
        weights_rate_limit_blocks=2,
        has_commit_reveal=has_commit_reveal,
    )
    ledger.register("cold validator", hotkeys["validator"], FUNDS_RAO)
    yield World(hotkeys, lambda name: MemoryChain(ledger, f"cold {name}", hotkeys[name]), ledger.step)
