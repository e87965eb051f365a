"""Who gets which uid's weight, what is burnt, and when a validator sets weights or raises the alarm."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest

from subnet.chain.base import ChainSnapshot
from subnet.chain.memory import PERMIT_STAKE_RAO, MemoryChain, MemoryLedgerChain
from subnet.chain.weights import ALARM_TEMPOS, WeightSetter, by_uid, holds
from subnet.errors import ChainError, ChainNotNow, ChainRefused, ChainUnreachable, DeadlineExceeded, LiquidError
from subnet.log import Event
from subnet.types import Hotkey, Uid
from tests.unit.heard_events import hearing

OWNER, VALIDATOR, MINER, GONE = (Hotkey(name) for name in ("owner", "validator", "miner", "gone"))
TEMPO_BLOCKS = 10


@pytest.fixture
def ledger() -> MemoryLedgerChain:
    """uid 0 owner, 1 validator, 2 miner."""
    made = MemoryLedgerChain(("cold", OWNER), tempo_blocks=TEMPO_BLOCKS, weights_rate_limit_blocks=3)
    made.register("cold validator", VALIDATOR, PERMIT_STAKE_RAO)
    made.register("cold miner", MINER)
    return made


@pytest.fixture
def setter(ledger: MemoryLedgerChain) -> WeightSetter:
    return WeightSetter(MemoryChain(ledger, "cold validator", VALIDATOR), VALIDATOR)


def without_owner(snapshot: ChainSnapshot, *, coldkey: str) -> ChainSnapshot:
    """The owner's hotkey lost its place; the miner belongs to ``coldkey``."""
    miner = replace(snapshot.neurons[2], coldkey=coldkey)
    return replace(snapshot, neurons=(snapshot.neurons[1], miner))


def test_weight_of_hotkeys_without_a_place_is_burnt(ledger: MemoryLedgerChain) -> None:
    snapshot = ledger.snapshot()
    assert by_uid({MINER: 2.0, GONE: 1.0}, snapshot) == {2: 2.0, 0: 1.0}
    assert by_uid({MINER: 2.0, OWNER: 1.0, GONE: 1.0}, snapshot) == {2: 2.0, 0: 2.0}
    assert by_uid({MINER: 2.0, GONE: 0.0}, snapshot) == {2: 2.0}


@pytest.mark.parametrize("weights", [{}, {MINER: 0.0}])
def test_everything_is_burnt_when_nobody_qualifies(ledger: MemoryLedgerChain, weights: dict[Hotkey, float]) -> None:
    assert by_uid(weights, ledger.snapshot()) == {0: 1.0}


def test_burning_falls_back_to_the_owners_coldkey_and_is_refused_without_one(ledger: MemoryLedgerChain) -> None:
    assert by_uid({}, without_owner(ledger.snapshot(), coldkey="cold")) == {2: 1.0}
    with pytest.raises(ChainError, match="burn"):
        by_uid({}, without_owner(ledger.snapshot(), coldkey="another"))


def test_holds_allows_for_rounding_only(ledger: MemoryLedgerChain) -> None:
    neuron = replace(ledger.snapshot().neurons[1], weights={Uid(0): 0.2501, Uid(2): 0.7499})
    assert holds(neuron, {Uid(0): 1.0, Uid(2): 3.0})
    assert not holds(neuron, {Uid(0): 1.0, Uid(2): 2.0})
    assert not holds(neuron, {Uid(0): 1.0})
    assert not holds(neuron, {})


def test_once_per_epoch(ledger: MemoryLedgerChain, setter: WeightSetter) -> None:
    assert setter.is_due(ledger.snapshot())
    assert asyncio.run(setter.set(ledger.snapshot(), {MINER: 1.0}))
    ledger.step(TEMPO_BLOCKS - 2)
    assert not setter.is_due(ledger.snapshot())
    ledger.step()
    assert setter.is_due(ledger.snapshot())


def test_the_rate_limit_outlives_a_restart(ledger: MemoryLedgerChain, setter: WeightSetter) -> None:
    asyncio.run(setter.set(ledger.snapshot(), {MINER: 1.0}))
    restarted = WeightSetter(MemoryChain(ledger, "cold validator", VALIDATOR), VALIDATOR)
    assert not restarted.is_due(ledger.snapshot())
    ledger.step(3)
    assert restarted.is_due(ledger.snapshot())


def test_without_a_permit_or_a_place_nothing_is_due(ledger: MemoryLedgerChain) -> None:
    for hotkey in (MINER, GONE):
        assert not WeightSetter(MemoryChain(ledger, "cold", hotkey), hotkey).is_due(ledger.snapshot())


class Forgetful(MemoryChain):
    """Takes weights and loses them."""

    async def set_weights(self, weights: object, version_key: int) -> None:
        """See ``Chain``."""


def test_what_the_chain_does_not_hold_is_not_set(ledger: MemoryLedgerChain) -> None:
    setter = WeightSetter(Forgetful(ledger, "cold validator", VALIDATOR), VALIDATOR)
    assert not asyncio.run(setter.set(ledger.snapshot(), {MINER: 1.0}))
    assert setter.is_due(ledger.snapshot())


def test_sealed_weights_that_were_not_taken_are_not_set() -> None:
    ledger = MemoryLedgerChain(("cold", OWNER), has_commit_reveal=True)
    ledger.register("cold validator", VALIDATOR, PERMIT_STAKE_RAO)
    honest = WeightSetter(MemoryChain(ledger, "cold validator", VALIDATOR), VALIDATOR)
    lost = WeightSetter(Forgetful(ledger, "cold validator", VALIDATOR), VALIDATOR)
    assert not asyncio.run(lost.set(ledger.snapshot(), {OWNER: 1.0}))
    assert asyncio.run(honest.set(ledger.snapshot(), {OWNER: 1.0}))


class Refusing(MemoryChain):
    """Fails once, before or after the chain took the weights."""

    def __init__(self, ledger: MemoryLedgerChain, failure: LiquidError, *, takes: bool) -> None:
        super().__init__(ledger, "cold validator", VALIDATOR)
        self._failure: LiquidError | None = failure
        self._takes = takes

    async def set_weights(self, weights: Mapping[Uid, float], version_key: int) -> None:
        """See ``Chain``."""
        failure, self._failure = self._failure, None
        if failure is None or self._takes:
            await super().set_weights(weights, version_key)
        if failure is not None:
            raise failure


@pytest.mark.parametrize(
    ("failure", "is_due_again"),
    [
        (ChainNotNow("rate limit"), True),
        (ChainUnreachable("away"), True),
        (DeadlineExceeded("silent"), True),
        (ChainRefused("NotEnoughStakeToSetWeights"), False),
    ],
)
def test_what_repeating_heals_is_due_at_the_next_look_else_at_the_next_epoch(
    ledger: MemoryLedgerChain, failure: LiquidError, is_due_again: bool
) -> None:
    setter = WeightSetter(Refusing(ledger, failure, takes=False), VALIDATOR)
    with pytest.raises(type(failure)):
        asyncio.run(setter.set(ledger.snapshot(), {MINER: 1.0}))
    assert setter.look(ledger.snapshot()) == is_due_again
    ledger.step(TEMPO_BLOCKS)
    assert setter.look(ledger.snapshot())
    assert asyncio.run(setter.set(ledger.snapshot(), {MINER: 1.0}))


def test_weights_that_the_chain_took_although_the_call_failed_are_set(ledger: MemoryLedgerChain) -> None:
    setter = WeightSetter(Refusing(ledger, DeadlineExceeded("silent"), takes=True), VALIDATOR)
    with pytest.raises(DeadlineExceeded):
        asyncio.run(setter.set(ledger.snapshot(), {MINER: 1.0}))
    ledger.step(TEMPO_BLOCKS // 2)
    assert not setter.look(ledger.snapshot())


def test_sealed_weights_that_are_never_opened_raise_the_alarm() -> None:
    ledger = MemoryLedgerChain(("cold", OWNER), tempo_blocks=TEMPO_BLOCKS, has_commit_reveal=True)
    ledger.register("cold validator", VALIDATOR, PERMIT_STAKE_RAO)
    setter = WeightSetter(MemoryChain(ledger, "cold validator", VALIDATOR), VALIDATOR)
    assert asyncio.run(setter.set(ledger.snapshot(), {OWNER: 1.0}))
    sealed = ledger.snapshot()
    lost = replace(sealed, block=TEMPO_BLOCKS, last_epoch_block=TEMPO_BLOCKS, sealed_at_block={})
    with hearing() as heard:
        setter.look(sealed)
        assert heard == []
        setter.look(lost)
        setter.look(lost)
    assert heard == [Event.WEIGHTS_ALARM]


def test_the_alarm_counts_from_the_first_look_not_from_block_0(ledger: MemoryLedgerChain, setter: WeightSetter) -> None:
    ledger.step(1000)
    assert not setter.alarm_if_overdue(ledger.snapshot())
    ledger.step(int(ALARM_TEMPOS * TEMPO_BLOCKS))
    assert not setter.alarm_if_overdue(ledger.snapshot())
    ledger.step()
    assert setter.alarm_if_overdue(ledger.snapshot())
    assert not setter.alarm_if_overdue(ledger.snapshot())  # not again at once


def test_success_puts_the_alarm_off(ledger: MemoryLedgerChain, setter: WeightSetter) -> None:
    asyncio.run(setter.set(ledger.snapshot(), {MINER: 1.0}))
    ledger.step(int(ALARM_TEMPOS * TEMPO_BLOCKS))
    assert not setter.alarm_if_overdue(ledger.snapshot())
    ledger.step()
    assert setter.alarm_if_overdue(ledger.snapshot())
