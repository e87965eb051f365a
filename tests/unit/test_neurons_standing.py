"""A program's place on chain: what ends it, what does not, and the watchdog over a client that cannot be ended."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace

import pytest

from neurons.settings import NeuronConfig
from neurons.standing import EXIT_STUCK, check, keep_standing
from subnet.chain.base import ChainSnapshot
from subnet.chain.memory import MemoryChain, MemoryLedgerChain
from subnet.errors import ChainError, ConfigError, DeadlineExceeded, Superseded
from subnet.types import Hotkey

OWNER, MINER = Hotkey("owner"), Hotkey("miner")
CONFIG = NeuronConfig(netuid=7)


@pytest.fixture
def ledger() -> MemoryLedgerChain:
    made = MemoryLedgerChain(("cold", OWNER))
    made.register("cold miner", MINER)
    return made


def test_a_lost_place_says_what_to_type(ledger: MemoryLedgerChain) -> None:
    check(CONFIG, MINER, OWNER, ledger.snapshot())
    gone = replace(ledger.snapshot(), neurons=ledger.snapshot().neurons[:1])
    with pytest.raises(ConfigError, match=r"no place in subnet 7 .*btcli subnets register --netuid 7"):
        check(CONFIG, MINER, OWNER, gone)


def test_a_new_owner_ends_the_program_so_that_it_is_started_again(ledger: MemoryLedgerChain) -> None:
    sold = replace(ledger.snapshot(), owner_hotkey=MINER)
    with pytest.raises(Superseded, match="new owner, miner; this program follows owner"):
        check(CONFIG, MINER, OWNER, sold)
    check(CONFIG, MINER, None, sold)


class Moody(MemoryChain):
    """Fails in every way for a while, then has lost the miner's place."""

    def __init__(self, ledger: MemoryLedgerChain) -> None:
        super().__init__(ledger, "cold miner", MINER)
        self.moods: list[Exception | None] = [ChainError("away"), DeadlineExceeded("slow"), None, ChainError("away")]

    async def snapshot(self) -> ChainSnapshot:
        """See ``Chain``."""
        found = await super().snapshot()
        if not self.moods:
            return replace(found, neurons=())
        mood = self.moods.pop(0)
        if mood is not None:
            raise mood
        return found


def test_a_chain_that_is_away_is_no_loss(ledger: MemoryLedgerChain) -> None:
    chain = Moody(ledger)
    with pytest.raises(ConfigError, match="no place"):
        asyncio.run(keep_standing(CONFIG, chain, MINER, OWNER, look_s=0.0))
    assert not chain.moods


def test_a_stuck_client_ends_a_process_whose_loop_is_blocked() -> None:
    program = (
        "import time\nfrom neurons.standing import end_stuck\nfrom subnet.chain.watchdog import Watchdog\n"
        "with Watchdog(lambda: 'stuck', end_stuck, tick_s=0.01):\n    time.sleep(60)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], timeout=50, check=False, capture_output=True)
    assert done.returncode == EXIT_STUCK


def test_a_healthy_client_lets_its_program_end() -> None:
    program = (
        "from neurons.standing import end_stuck\nfrom subnet.chain.watchdog import Watchdog\n"
        "with Watchdog(lambda: None, end_stuck, tick_s=0.01):\n    pass\n"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=50, check=False).returncode == 0
