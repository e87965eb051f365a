"""Yuma consensus and exact pay: against hand-worked cases, a slow independent calculation, and properties."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from subnet.localnet.devchain import yuma
from subnet.localnet.devchain.epochs import split

HALF = 32767  # kappa of the chain, of U16_MAX


def ballot(stakes: list[int], weights: list[list[float]], bonds: list[list[float]] | None = None) -> yuma.Ballot:
    rows_VN = np.array(weights, dtype=np.float64)
    bonds_VN = np.zeros_like(rows_VN) if bonds is None else np.array(bonds, dtype=np.float64)
    return yuma.Ballot(np.array(stakes, dtype=np.int64), rows_VN, bonds_VN)


@st.composite
def ballots(draw: st.DrawFn) -> yuma.Ballot:
    size = draw(st.integers(1, 6))
    stakes = draw(st.lists(st.integers(0, 10**15), min_size=size, max_size=size))
    square = st.lists(st.lists(st.integers(0, 5), min_size=size, max_size=size), min_size=size, max_size=size)
    kappa = draw(st.sampled_from([0, 1, HALF, 40000, yuma.U16_MAX]))
    rows_VN, bonds_VN = (np.array(draw(square), dtype=np.float64) for _ in range(2))
    return yuma.Ballot(np.array(stakes, dtype=np.int64), rows_VN, bonds_VN, kappa)


def slowly(votes: yuma.Ballot) -> tuple[list[Fraction], list[Fraction], list[Fraction]]:
    """Clip level, incentive and dividends by the definition, in fractions, one element at a time."""
    stakes = [int(stake) for stake in votes.stake_N]
    everyone = range(len(stakes))
    total = sum(stakes)

    def part(values: list[Fraction]) -> list[Fraction]:
        return [value / sum(values) if sum(values) else Fraction(0) for value in values]

    weight = [part([Fraction(int(votes.weights_VN[i, j])) for j in everyone]) for i in everyone]

    def level(j: int) -> Fraction:
        agreed = [
            weight[i][j]
            for i in everyone
            if (given := sum(stakes[k] for k in everyone if weight[k][j] >= weight[i][j])) > 0
            and given * yuma.U16_MAX >= total * votes.kappa_u16
        ]
        return max(agreed, default=Fraction(0))

    levels = [level(j) for j in everyone]
    share = part([Fraction(stake) for stake in stakes])
    staked = [[share[i] * min(weight[i][j], levels[j]) for j in everyone] for i in everyone]
    incentive = part([sum((staked[i][j] for i in everyone), Fraction(0)) for j in everyone])
    kept = Fraction(votes.bonds_moving_average, yuma.MILLION)

    def bonds(j: int) -> list[Fraction]:
        old = part([Fraction(int(votes.bonds_VN[i, j])) if stakes[i] else Fraction(0) for i in everyone])
        new = part([staked[i][j] for i in everyone])
        return part([kept * old[i] + (1 - kept) * new[i] for i in everyone])

    columns = [bonds(j) for j in everyone]
    dividends = part([sum((columns[j][i] * incentive[j] for j in everyone), Fraction(0)) for i in everyone])
    return levels, incentive, dividends


@given(ballots())
def test_equals_the_slow_calculation(votes: yuma.Ballot) -> None:
    outcome = yuma.run(votes)
    levels, incentive, dividends = slowly(votes)
    for found_N, expected in (
        (outcome.consensus_N, levels),
        (outcome.incentive_N, incentive),
        (outcome.dividends_N, dividends),
    ):
        np.testing.assert_allclose(found_N, [float(value) for value in expected], atol=1e-12)


@given(ballots())
def test_shares_sum_to_one_or_are_all_zero(votes: yuma.Ballot) -> None:
    outcome = yuma.run(votes)
    for shares_N in (outcome.incentive_N, outcome.dividends_N):
        assert (shares_N >= 0).all()
        assert shares_N.sum() == pytest.approx(1) or not shares_N.any()
    assert (outcome.validator_trust_N <= 1 + 1e-12).all()


@given(ballots(), st.integers(2, 1000))
def test_only_ratios_of_weights_count(votes: yuma.Ballot, factor: int) -> None:
    scaled = yuma.Ballot(votes.stake_N, votes.weights_VN * factor, votes.bonds_VN * factor, votes.kappa_u16)
    np.testing.assert_allclose(yuma.run(votes).dividends_N, yuma.run(scaled).dividends_N, atol=1e-12)


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


@given(st.integers(0, 10**18), st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_apportion_pays_every_rao_in_proportion(total: int, shares: list[float]) -> None:
    parts = yuma.apportion(total, np.array(shares))
    steps = [round(share * yuma.SHARE_STEPS) for share in shares]
    if sum(steps) == 0:
        assert parts == [0] * len(shares)
        return
    assert sum(parts) == total
    for part, step in zip(parts, steps, strict=True):
        assert -1 < part - Fraction(total * step, sum(steps)) < len(parts)


def test_apportion_gives_the_rest_to_the_first_of_the_largest() -> None:
    assert yuma.apportion(10, np.array([1 / 3, 1 / 3, 1 / 3])) == [4, 3, 3]
    assert yuma.apportion(10, np.array([1, 2, 2], dtype=np.int64)) == [2, 4, 4]


@given(st.integers(0, 10**12))
def test_the_split_loses_nothing(rao: int) -> None:
    miners, validators, owner = split(rao)
    assert miners + validators + owner == rao
    assert 0 <= miners - validators <= 1
    assert 0 <= Fraction(18 * rao, 100) - owner < 1
    assert split(10**9) == (410_000_000, 410_000_000, 180_000_000)
