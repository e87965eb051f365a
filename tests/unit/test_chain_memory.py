"""What the in-memory chain pays, burns, seals and refuses."""

from __future__ import annotations

import pytest

from subnet.chain.memory import EMISSION_RAO_PER_BLOCK, PERMIT_STAKE_RAO, MemoryLedgerChain
from subnet.errors import ChainError
from subnet.types import Hotkey, Uid

OWNER, BIG, SMALL, MINER, OTHER = (Hotkey(name) for name in ("owner", "big", "small", "miner", "other"))
TEMPO_BLOCKS = 10
CREATED = TEMPO_BLOCKS * EMISSION_RAO_PER_BLOCK


def chain(**settings: bool) -> MemoryLedgerChain:
    """uid 0 owner, 1 big (three quarters of the stake), 2 small, 3 miner, 4 other."""
    made = MemoryLedgerChain(("cold", OWNER), tempo_blocks=TEMPO_BLOCKS, **settings)
    made.register("cold big", BIG, 3 * PERMIT_STAKE_RAO)
    made.register("cold small", SMALL, PERMIT_STAKE_RAO)
    made.register("cold miner", MINER)
    made.register("cold other", OTHER)
    return made


def stakes(ledger: MemoryLedgerChain) -> dict[Hotkey, int]:
    return {known.hotkey: known.stake_rao for known in ledger.snapshot().neurons}


def test_an_epoch_pays_by_the_stake_weighted_mean_and_pays_everything() -> None:
    ledger = chain()
    before = stakes(ledger)
    ledger.set_weights(BIG, {Uid(3): 1.0})
    ledger.set_weights(SMALL, {Uid(4): 5.0})
    ledger.step(TEMPO_BLOCKS)
    earned = {hotkey: stake - before[hotkey] for hotkey, stake in stakes(ledger).items()}
    assert earned[MINER] == CREATED * 41 // 100 * 3 // 4
    assert earned[OTHER] == CREATED * 41 // 100 // 4
    assert earned[BIG] == 3 * earned[SMALL]
    assert earned[OWNER] == CREATED * 18 // 100
    assert sum(earned.values()) == CREATED


def test_incentive_of_the_owners_is_burnt() -> None:
    ledger = chain()
    before = stakes(ledger)
    ledger.set_weights(BIG, {Uid(0): 1.0})
    ledger.step(TEMPO_BLOCKS)
    earned = {hotkey: stake - before[hotkey] for hotkey, stake in stakes(ledger).items()}
    assert earned[OWNER] == CREATED * 18 // 100
    assert sum(earned.values()) == CREATED - CREATED * 41 // 100


def test_an_epoch_without_votes_pays_only_the_owner() -> None:
    ledger = chain()
    before = sum(stakes(ledger).values())
    ledger.step(TEMPO_BLOCKS)
    assert sum(stakes(ledger).values()) - before == CREATED * 18 // 100
    assert ledger.snapshot().last_epoch_block == TEMPO_BLOCKS


def test_sealed_weights_are_shown_and_counted_at_the_epoch() -> None:
    ledger = chain(has_commit_reveal=True)
    ledger.set_weights(BIG, {Uid(3): 1.0})
    ledger.step(TEMPO_BLOCKS - 1)
    assert ledger.snapshot().neurons[1].weights == {}
    ledger.step()
    assert ledger.snapshot().neurons[1].weights == {3: 1.0}
    assert ledger.snapshot().neurons[3].incentive == 1.0


@pytest.mark.parametrize(
    "weights", [{}, {Uid(9): 1.0}, {Uid(3): float("nan")}, {Uid(3): -1.0, Uid(4): 2.0}, {Uid(3): 0.0}]
)
def test_bad_weights_are_refused_and_change_nothing(weights: dict[Uid, float]) -> None:
    ledger = chain()
    with pytest.raises(ChainError):
        ledger.set_weights(BIG, weights)
    assert ledger.snapshot().neurons[1].weights == {}
    assert ledger.snapshot().neurons[1].last_update_block == 0


def test_a_snapshot_does_not_change() -> None:
    ledger = chain()
    snapshot = ledger.snapshot()
    ledger.set_weights(BIG, {Uid(3): 1.0})
    ledger.commit(OWNER, "text")
    ledger.step()
    assert snapshot.block == 0
    assert snapshot.commitments == {}
    assert snapshot.neurons[1].weights == {}
