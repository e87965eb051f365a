"""What a neuron is told of its life on chain, and what ends it; and the looks at the chain that this comes from."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from subnet.chain.base import ChainSnapshot
from subnet.chain.feed import MAX_PAUSE_S, MIN_PAUSE_S, NO_SUBNET, ChainFeed, Pace
from subnet.chain.memory import PERMIT_STAKE_RAO, MemoryChain, MemoryLedgerChain
from subnet.chain.standing import Standing
from subnet.clock import run_virtual
from subnet.errors import ChainRefused, ChainUnreachable, NotRegistered, OwnerChanged
from subnet.log import Event
from subnet.types import Hotkey, Uid
from tests.unit.heard_events import hearing

OWNER, VALIDATOR, MINER, NEWCOMER = (Hotkey(name) for name in ("owner", "validator", "miner", "newcomer"))
TEMPO_BLOCKS = 10


@pytest.fixture
def heard() -> Iterator[list[str]]:
    with hearing() as names:
        yield names


@pytest.fixture
def ledger() -> MemoryLedgerChain:
    """uid 0 owner, 1 validator, 2 miner."""
    made = MemoryLedgerChain(("cold", OWNER), tempo_blocks=TEMPO_BLOCKS)
    made.register("cold validator", VALIDATOR, PERMIT_STAKE_RAO)
    made.register("cold miner", MINER)
    made.serve_axon(OWNER, "1.2.3.4", 80)
    return made


def standing(ledger: MemoryLedgerChain, hotkey: Hotkey, axon: str = "1.2.3.4:80") -> Standing:
    return Standing(ledger.snapshot(), hotkey, remedy="Register it.", is_validator=hotkey == VALIDATOR, axon=axon)


def next_look(ledger: MemoryLedgerChain) -> ChainSnapshot:
    ledger.step()
    return ledger.snapshot()


def test_a_lost_place_is_believed_at_the_second_block_and_named(ledger: MemoryLedgerChain, heard: list[str]) -> None:
    mine = standing(ledger, MINER)
    ledger.replace(Uid(2), "cold newcomer", NEWCOMER)
    gone = next_look(ledger)
    mine.look(gone)
    mine.look(gone)  # the same block again proves nothing
    with pytest.raises(NotRegistered, match=r"uid 2 is now newcomer's\. Register it\."):
        mine.look(next_look(ledger))
    assert heard == [Event.DEREGISTERED]


def test_a_block_that_is_taken_back_ends_nobody(ledger: MemoryLedgerChain, heard: list[str]) -> None:
    mine, here = standing(ledger, MINER), ledger.snapshot()
    without = replace(here, block=here.block + 1, neurons=here.neurons[:2])
    for look in (without, replace(here, block=here.block + 2), replace(without, block=here.block + 3)):
        mine.look(look)
    assert heard == []


def test_a_new_place_is_said_and_lived_with(ledger: MemoryLedgerChain, heard: list[str]) -> None:
    mine, here = standing(ledger, MINER), ledger.snapshot()
    moved = replace(here.neurons[2], uid=Uid(7))
    mine.look(replace(here, neurons=(*here.neurons[:2], moved)))
    assert heard == [Event.UID_CHANGED]


def test_a_lost_permit_is_said_once_per_loss(ledger: MemoryLedgerChain, heard: list[str]) -> None:
    mine = standing(ledger, VALIDATOR)
    for stake_rao in (0, PERMIT_STAKE_RAO, 0):
        ledger.set_stake(VALIDATOR, stake_rao)
        ledger.step(TEMPO_BLOCKS)
        for _ in range(3):
            mine.look(next_look(ledger))
    assert heard == [Event.PERMIT_LOST, Event.PERMIT_GAINED, Event.PERMIT_LOST]


def test_miners_are_not_told_of_permits(ledger: MemoryLedgerChain, heard: list[str]) -> None:
    standing(ledger, MINER).look(next_look(ledger))
    assert heard == []


def test_another_owner_ends_the_program_for_a_new_start(ledger: MemoryLedgerChain, heard: list[str]) -> None:
    mine = standing(ledger, MINER)
    ledger.hand_over(("cold validator", VALIDATOR))
    mine.look(next_look(ledger))
    with pytest.raises(OwnerChanged, match="is now validator, not owner") as ended:
        mine.look(next_look(ledger))
    assert ended.value.retryable
    assert heard == [Event.OWNER_CHANGED]


def test_an_orchestrator_that_moved_ends_only_those_that_found_it_on_chain(ledger: MemoryLedgerChain) -> None:
    on_chain, configured = standing(ledger, MINER), standing(ledger, MINER, axon="")
    ledger.serve_axon(OWNER, "5.6.7.8", 80)
    for mine in (on_chain, configured):
        mine.look(next_look(ledger))
    configured.look(next_look(ledger))
    with pytest.raises(OwnerChanged, match=r"from 1\.2\.3\.4:80 to 5\.6\.7\.8:80"):
        on_chain.look(next_look(ledger))


# --- looks


class Ticking(MemoryChain):
    """A block every ``block_s`` of virtual time; away while ``is_away``."""

    def __init__(self, ledger: MemoryLedgerChain, block_s: float) -> None:
        super().__init__(ledger, "cold miner", MINER)
        self._block_s = block_s
        self.is_away = False
        self.is_gone = False
        self.looks: list[float] = []

    async def snapshot(self) -> ChainSnapshot:
        now_s = asyncio.get_running_loop().time()
        self.looks.append(now_s)
        if self.is_away:
            raise ChainUnreachable("no")
        if self.is_gone:
            raise ChainRefused("no subnet", kind=NO_SUBNET)
        self._ledger.step(int(now_s / self._block_s) - self._ledger.block)
        return self._ledger.snapshot()


def pauses(block_s: float, pace: Pace, num_looks: int = 40) -> list[float]:
    """Between looks at a chain of 10 blocks per tempo."""
    chain = Ticking(MemoryLedgerChain(("cold", OWNER), tempo_blocks=TEMPO_BLOCKS), block_s)

    async def main() -> None:
        feed = ChainFeed(chain, await chain.snapshot(), pace)
        running = asyncio.create_task(feed.run(lambda snapshot: None))
        async for _ in feed.looks():
            if len(chain.looks) >= num_looks:
                break
        running.cancel()

    run_virtual(main())
    return [after - before for before, after in zip(chain.looks, chain.looks[1:], strict=False)]


def test_looks_are_a_tenth_of_a_tempo_apart_within_bounds() -> None:
    assert pauses(0.25, Pace.TEMPO)[-1] == MIN_PAUSE_S
    assert pauses(12.0, Pace.TEMPO)[-1] == pytest.approx(12.0, rel=0.15)
    assert pauses(100.0, Pace.TEMPO, 120)[-1] == MAX_PAUSE_S
    assert pauses(30.0, Pace.BLOCK)[-1] == pytest.approx(30.0, rel=0.1)
    assert min(pauses(12.0, Pace.BLOCK)) >= MIN_PAUSE_S


def test_a_chain_that_is_away_for_hours_ends_nothing_and_is_expected_to_go_on(heard: list[str]) -> None:
    chain = Ticking(MemoryLedgerChain(("cold", OWNER), tempo_blocks=TEMPO_BLOCKS), 12.0)

    async def main() -> None:
        feed = ChainFeed(chain, await chain.snapshot())
        running = asyncio.create_task(feed.run(lambda snapshot: None))
        await asyncio.sleep(600)
        chain.is_away = True
        await asyncio.sleep(4 * 3600)
        assert not running.done()
        really = asyncio.get_running_loop().time() / 12.0
        assert really <= feed.expected_block() <= really * 1.1 + 1, "no block that is named now is known already"
        chain.is_away = False
        await asyncio.sleep(2 * MAX_PAUSE_S)
        assert feed.newest.block >= really
        running.cancel()

    run_virtual(main())
    assert set(heard) == {Event.CHAIN_FAILED}


def test_a_subnet_that_is_gone_ends_the_program() -> None:
    chain = Ticking(MemoryLedgerChain(("cold", OWNER), tempo_blocks=TEMPO_BLOCKS), 12.0)

    async def main() -> None:
        feed = ChainFeed(chain, await chain.snapshot())
        chain.is_gone = True
        with pytest.raises(ChainRefused):
            await feed.run(lambda snapshot: None)
        assert len(chain.looks) == 3

    run_virtual(main())
