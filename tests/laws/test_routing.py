"""Invariant 7: routes are proportional to capacity at equal load, and both ends of a hop compute them alike."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from subnet.hashing import sha256
from subnet.records import RosterEntry
from subnet.swarm.router import candidates, has_single_candidate, quotas, ranking
from subnet.types import Hotkey, MicrobatchId, StageId

SEED = sha256(b"a round")
NUM_DRAWS = 20_000
CAPACITIES = (1.0, 2.0, 3.0, 5.0, 9.0)
CHI_SQUARE_4_DF = 18.47  # p = 0.001


def roster(capacities: tuple[float, ...] = CAPACITIES) -> list[RosterEntry]:
    return [
        RosterEntry(hotkey=Hotkey(f"peer-{number}"), url="http://h:1", stage=StageId(1), capacity=capacity)
        for number, capacity in enumerate(capacities)
    ]


def test_first_places_are_proportional_to_capacity() -> None:
    entries = roster()
    firsts = Counter(ranking(SEED, MicrobatchId(number), StageId(1), entries)[0] for number in range(NUM_DRAWS))
    total = sum(CAPACITIES)
    expected = {entry.hotkey: NUM_DRAWS * entry.capacity / total for entry in entries}
    statistic = sum((firsts[hotkey] - mean) ** 2 / mean for hotkey, mean in expected.items())
    assert statistic < CHI_SQUARE_4_DF


def test_both_ends_rank_alike_whatever_the_order_of_their_rosters() -> None:
    entries, shuffled = roster(), roster()
    random.Random(1).shuffle(shuffled)
    for number in range(200):
        for attempt in range(4):
            ours = candidates(SEED, MicrobatchId(number), StageId(1), attempt, entries, 0.1)
            assert ours == candidates(SEED, MicrobatchId(number), StageId(1), attempt, shuffled, 0.1)
            assert 1 <= len(ours) <= 2


def test_a_peer_that_leaves_moves_only_its_own_microbatches() -> None:
    entries = roster()
    gone = entries[2].hotkey
    for number in range(500):
        before = ranking(SEED, MicrobatchId(number), StageId(1), entries)
        after = ranking(SEED, MicrobatchId(number), StageId(1), [item for item in entries if item.hotkey != gone])
        assert after == tuple(hotkey for hotkey in before if hotkey != gone)


@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_the_share_of_hops_without_a_choice_is_as_configured(share: float) -> None:
    num = sum(has_single_candidate(SEED, MicrobatchId(number), StageId(1), share) for number in range(NUM_DRAWS))
    assert abs(num / NUM_DRAWS - share) < 0.01


def test_attempts_reach_every_replica() -> None:
    entries = roster()
    for number in range(50):
        reached = {
            peer
            for attempt in range(len(entries))
            for peer in candidates(SEED, MicrobatchId(number), StageId(1), attempt, entries, 0.1)
        }
        assert reached == {entry.hotkey for entry in entries}


@given(num=st.integers(0, 500), capacities=st.lists(st.floats(0.01, 1e6), min_size=1, max_size=9))
def test_quotas_add_up_and_differ_from_proportion_by_less_than_one(num: int, capacities: list[float]) -> None:
    found = quotas(num, capacities)
    assert sum(found) == num
    total = sum(capacities)
    assert all(
        abs(whole - num * capacity / total) < 1 + 1e-6 for whole, capacity in zip(found, capacities, strict=True)
    )
