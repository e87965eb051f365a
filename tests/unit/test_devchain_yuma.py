"""Yuma consensus and exact pay on hand-worked cases; the properties stand in tests/laws/test_yuma.py."""

from __future__ import annotations

import numpy as np
import pytest

from subnet.localnet.devchain import yuma


def ballot(stakes: list[int], weights: list[list[float]], bonds: list[list[float]] | None = None) -> yuma.Ballot:
    rows_VN = np.array(weights, dtype=np.float64)
    bonds_VN = np.zeros_like(rows_VN) if bonds is None else np.array(bonds, dtype=np.float64)
    return yuma.Ballot(np.array(stakes, dtype=np.int64), rows_VN, bonds_VN)


def test_a_minority_cannot_raise_its_own_miner() -> None:
    """60 % give everything to uid 2; 40 % give everything to uid 3 and are clipped to nothing."""
    outcome = yuma.run(ballot([60, 40, 0, 0], [[0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0]]))
    assert outcome.incentive_N.tolist() == [0, 0, 1, 0]
    assert outcome.validator_trust_N.tolist() == [1, 0, 0, 0]
    assert outcome.dividends_N.tolist() == [1, 0, 0, 0]


def test_a_minority_with_an_inflated_weight_is_clipped_to_the_majoritys() -> None:
    votes = [[0, 0, 0.5, 0.5], [0, 0, 0.9, 0.1], [0, 0, 0, 0], [0, 0, 0, 0]]
    outcome = yuma.run(ballot([60, 40, 0, 0], votes))
    np.testing.assert_allclose(outcome.consensus_N, [0, 0, 0.5, 0.5])
    np.testing.assert_allclose(outcome.validator_trust_N, [1, 0.6, 0, 0])


def test_bonds_move_by_a_tenth_and_vanish_without_stake() -> None:
    weights = [[0, 0, 1], [0, 0, 1], [0, 0, 0]]
    old = [[0, 0, 1], [0, 0, 0], [0, 0, 0]]
    outcome = yuma.run(ballot([50, 50, 0], weights, old))
    np.testing.assert_allclose(outcome.bonds_VN[:, 2], [0.95, 0.05, 0])
    np.testing.assert_allclose(yuma.run(ballot([0, 50, 0], weights, old)).bonds_VN[:, 2], [0, 1, 0])


def test_nobody_with_stake_means_nobody_is_paid() -> None:
    outcome = yuma.run(ballot([0, 0], [[0, 1], [1, 0]]))
    assert not outcome.incentive_N.any()
    assert not outcome.dividends_N.any()


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_impossible_input_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        yuma.run(ballot([1, 1], [[0, bad], [0, 0]]))


def test_apportion_gives_the_rest_to_the_first_of_the_largest() -> None:
    assert yuma.apportion(10, np.array([1 / 3, 1 / 3, 1 / 3])) == [4, 3, 3]
    assert yuma.apportion(10, np.array([1, 2, 2], dtype=np.int64)) == [2, 4, 4]
