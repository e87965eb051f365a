"""Weights: shares that are always finite and sum to one, whatever the scores are."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from incentives.weights import weights
from subnet.types import Hotkey

OWNER = Hotkey("owner")
A, B = Hotkey("a"), Hotkey("b")


def test_weights_are_shares_of_the_scores() -> None:
    assert weights({A: 3.0, B: 1.0}, 0.0, OWNER, {A, B}) == {A: 0.75, B: 0.25}


def test_voided_scores_burn_to_the_owner() -> None:
    assert weights({A: 3.0, B: 0.0}, 1.0, OWNER, {A, B}) == {A: 0.75, OWNER: 0.25}


def test_hotkeys_that_left_the_subnet_burn_to_the_owner() -> None:
    assert weights({A: 3.0, B: 1.0}, 0.0, OWNER, {A}) == {A: 0.75, OWNER: 0.25}


def test_an_owner_that_mines_keeps_both() -> None:
    assert weights({OWNER: 1.0, A: 2.0}, 1.0, OWNER, {A, OWNER}) == {A: 0.5, OWNER: 0.5}


@pytest.mark.parametrize("scores", [{}, {A: 0.0}, {A: math.nan}, {A: -1.0}, {A: math.inf}])
def test_everything_burns_when_nobody_qualifies(scores: dict[Hotkey, float]) -> None:
    assert weights(scores, 0.0, OWNER, {A}) == {OWNER: 1.0}


def test_scores_near_the_largest_float_do_not_overflow() -> None:
    assert weights({A: 1.5e308}, 1.5e308, OWNER, {A}) == {A: 0.5, OWNER: 0.5}


@given(
    values=st.dictionaries(st.sampled_from([A, B, Hotkey("c"), OWNER]), st.floats()),
    burned=st.floats(),
    registered=st.sets(st.sampled_from([A, B, OWNER])),
)
def test_weights_are_finite_positive_and_sum_to_one(
    values: dict[Hotkey, float], burned: float, registered: set[Hotkey]
) -> None:
    found = weights(values, burned, OWNER, registered)
    assert all(math.isfinite(share) and 0.0 < share <= 1.0 + 1e-12 for share in found.values())
    assert math.isclose(math.fsum(found.values()), 1.0, rel_tol=1e-9)
    assert set(found) <= registered | {OWNER}


@given(st.permutations([(A, 0.1), (B, 0.2), (Hotkey("c"), 0.7), (Hotkey("d"), 1e-9)]))
def test_the_order_of_the_scores_moves_no_bit(pairs: list[tuple[Hotkey, float]]) -> None:
    everybody = {hotkey for hotkey, _ in pairs}
    reference = weights(dict(sorted(pairs)), 0.3, OWNER, everybody)
    assert weights(dict(pairs), 0.3, OWNER, everybody) == reference
