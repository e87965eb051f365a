"""Invariant 6: every microbatch ends in exactly one class, and none is leased again after it was merged anywhere."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from subnet.swarm.account import account
from subnet.types import Hotkey, MicrobatchClass, MicrobatchId, StageId

NUM_STAGES = 3
IDS = [MicrobatchId(number) for number in range(8)]
APPLIED = st.fixed_dictionaries(
    {
        StageId(stage): st.fixed_dictionaries(
            {Hotkey(f"{stage}-{replica}"): st.sets(st.sampled_from(IDS)) for replica in range(2)}
        )
        for stage in range(NUM_STAGES)
    }
)


@given(applied=APPLIED)
def test_every_id_has_exactly_the_class_that_the_journals_give_it(
    applied: dict[StageId, dict[Hotkey, set[MicrobatchId]]],
) -> None:
    result = account(IDS, applied, NUM_STAGES)
    listed = [*result.complete, *result.released, *(mb for mb, _ in (*result.partial, *result.duplicate))]
    assert sorted(listed) == IDS, "each id stands in one class, and only in one"
    for microbatch in IDS:
        counts = [sum(microbatch in ids for ids in applied[StageId(stage)].values()) for stage in range(NUM_STAGES)]
        if not any(counts):
            expected = MicrobatchClass.RELEASED
        elif not all(counts):
            expected = MicrobatchClass.PARTIAL
        elif max(counts) > 1:
            expected = MicrobatchClass.DUPLICATE
        else:
            expected = MicrobatchClass.COMPLETE
        assert result.class_of(microbatch) is expected


@given(applied=APPLIED)
def test_stages_are_listed_with_what_is_wrong_in_them(
    applied: dict[StageId, dict[Hotkey, set[MicrobatchId]]],
) -> None:
    result = account(IDS, applied, NUM_STAGES)
    for microbatch, missing in result.partial:
        for stage in range(NUM_STAGES):
            is_there = any(microbatch in ids for ids in applied[StageId(stage)].values())
            assert is_there == (StageId(stage) not in missing)
    for microbatch, doubled in result.duplicate:
        assert doubled
        assert all(sum(microbatch in ids for ids in applied[stage].values()) == 2 for stage in doubled)


def test_an_id_outside_the_round_has_no_class() -> None:
    result = account(IDS, {StageId(0): {Hotkey("a"): [MicrobatchId(99)]}}, NUM_STAGES)
    assert result.class_of(MicrobatchId(99)) is None
    assert result.released == tuple(IDS)
