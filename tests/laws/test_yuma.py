"""Yuma consensus and pay against a calculation that shares nothing with them, and where every rao goes.

The calculation follows the formulas of the Bittensor documentation ("Yuma consensus") one element at a time in exact
fractions: consensus weight, clipping, rank, validator trust, bonds as a moving average, dividends.
"""

from __future__ import annotations

import itertools
from fractions import Fraction as F

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from subnet.localnet.devchain import epochs, subnets, yuma
from subnet.localnet.devchain.chain import DevChain, DevChainConfig
from tests.unit.devchain_actors import PALLET, Key, read

Matrix = dict[tuple[int, int], F]

FULL_KAPPA = yuma.U16_MAX
KAPPAS = st.sampled_from([0, 1, 32767, 32768, 43690, FULL_KAPPA - 1, FULL_KAPPA]) | st.integers(0, FULL_KAPPA)
# Small numbers, so that equal weights, zero rows and equal shares of stake are common.
NUMBERS = st.integers(0, 3) | st.integers(0, 65535)
STAKES = st.sampled_from([0, 0, 1, 2, 10**9]) | st.integers(0, 21 * 10**15)


@st.composite
def ballots(draw: st.DrawFn) -> yuma.Ballot:
    size = draw(st.integers(1, 7))

    def square() -> yuma.FLOAT:
        row = st.lists(NUMBERS, min_size=size, max_size=size)
        return np.array(draw(st.lists(row, min_size=size, max_size=size)), dtype=np.float64)

    stakes = draw(st.lists(STAKES, min_size=size, max_size=size))
    kept = draw(st.sampled_from([0, 900_000, 975_000, yuma.MILLION]))
    return yuma.Ballot(np.array(stakes, dtype=np.int64), square(), square(), draw(KAPPAS), kept)


class ByTheBook:
    """One epoch in fractions. W: weights, S: stake, B: bonds, by (validator, miner) or one index."""

    def __init__(self, votes: yuma.Ballot) -> None:
        self.size = len(votes.stake_N)
        self.S = [F(int(stake)) for stake in votes.stake_N]
        self.kappa = F(votes.kappa_u16, yuma.U16_MAX)
        self.kept = F(votes.bonds_moving_average, yuma.MILLION)
        uids = range(self.size)
        given_W = {(i, j): F(int(votes.weights_VN[i, j])) for i in uids for j in uids}
        self.W = {(i, j): self.part(given_W[i, j], [given_W[i, k] for k in uids]) for i, j in given_W}
        voting = {(i, j): F(int(votes.bonds_VN[i, j])) if self.S[i] else F(0) for i in uids for j in uids}
        self.old_B = {(i, j): self.part(voting[i, j], [voting[k, j] for k in uids]) for i, j in voting}

    @staticmethod
    def part(value: F, of: list[F]) -> F:
        whole = sum(of, F(0))
        return value / whole if whole else F(0)

    def consensus(self, j: int) -> F:
        """The largest weight w such that those who give at least w to j hold at least kappa of the stake."""
        total, best = sum(self.S), F(0)
        for w in {self.W[i, j] for i in range(self.size)}:
            agreeing = sum(self.S[i] for i in range(self.size) if self.W[i, j] >= w)
            if agreeing > 0 and agreeing >= self.kappa * total:
                best = max(best, w)
        return best

    def clipped(self) -> Matrix:
        level = [self.consensus(j) for j in range(self.size)]
        return {(i, j): min(weight, level[j]) for (i, j), weight in self.W.items()}

    def rank(self, clipped: Matrix) -> list[F]:
        uids = range(self.size)
        return [sum((self.part(self.S[i], self.S) * clipped[i, j] for i in uids), F(0)) for j in uids]

    def incentive(self) -> list[F]:
        rank = self.rank(self.clipped())
        return [self.part(value, rank) for value in rank]

    def trust(self) -> list[F]:
        clipped = self.clipped()
        return [sum((clipped[i, j] for j in range(self.size)), F(0)) if self.S[i] else F(0) for i in range(self.size)]

    def bonds(self) -> Matrix:
        clipped, uids = self.clipped(), range(self.size)
        staked = {(i, j): self.S[i] * clipped[i, j] for i, j in clipped}
        new = {(i, j): self.part(staked[i, j], [staked[k, j] for k in uids]) for i, j in staked}
        mixed = {pair: self.kept * self.old_B[pair] + (1 - self.kept) * new[pair] for pair in new}
        return {(i, j): self.part(mixed[i, j], [mixed[k, j] for k in uids]) for i, j in mixed}

    def dividends(self) -> list[F]:
        bonds, incentive, uids = self.bonds(), self.incentive(), range(self.size)
        earned = [sum((bonds[i, j] * incentive[j] for j in uids), F(0)) for i in uids]
        return [self.part(value, earned) for value in earned]


def assert_close(found: yuma.FLOAT, expected: list[F]) -> None:
    np.testing.assert_allclose(found, [float(value) for value in expected], rtol=1e-9, atol=1e-12)


@settings(max_examples=150)
@given(ballots())
def test_an_epoch_is_by_the_book(votes: yuma.Ballot) -> None:
    outcome, book = yuma.run(votes), ByTheBook(votes)
    uids = range(book.size)
    assert_close(outcome.consensus_N, [book.consensus(j) for j in uids])
    assert_close(outcome.incentive_N, book.incentive())
    assert_close(outcome.validator_trust_N, book.trust())
    bonds = book.bonds()
    assert_close(outcome.bonds_VN.ravel(), [bonds[i, j] for i in uids for j in uids])
    assert_close(outcome.dividends_N, book.dividends())


@given(ballots())
def test_shares_sum_to_one_or_are_all_zero(votes: yuma.Ballot) -> None:
    outcome = yuma.run(votes)
    for shares_N in (outcome.incentive_N, outcome.dividends_N):
        assert (shares_N >= 0).all()
        assert shares_N.sum() == pytest.approx(1) or not shares_N.any()
    assert (outcome.validator_trust_N <= 1 + 1e-12).all()


@given(ballots(), st.integers(2, 1000))
def test_only_ratios_of_weights_count(votes: yuma.Ballot, factor: int) -> None:
    scaled = yuma.Ballot(
        votes.stake_N, votes.weights_VN * factor, votes.bonds_VN * factor, votes.kappa_u16, votes.bonds_moving_average
    )
    np.testing.assert_allclose(yuma.run(votes).dividends_N, yuma.run(scaled).dividends_N, atol=1e-12)


@given(ballots(), st.randoms(use_true_random=False))
def test_names_do_not_count(votes: yuma.Ballot, random: object) -> None:
    order = list(range(len(votes.stake_N)))
    random.shuffle(order)  # type: ignore[attr-defined]
    renamed = yuma.Ballot(
        votes.stake_N[order],
        votes.weights_VN[np.ix_(order, order)],
        votes.bonds_VN[np.ix_(order, order)],
        votes.kappa_u16,
        votes.bonds_moving_average,
    )
    np.testing.assert_allclose(yuma.run(renamed).incentive_N, yuma.run(votes).incentive_N[order], atol=1e-12)


def worked_ballot(c_votes: tuple[int, int], bonds_VN: yuma.FLOAT) -> yuma.Ballot:
    weights_VN = np.zeros((5, 5))
    weights_VN[:3, 3:] = [(60, 40), (80, 20), c_votes]
    return yuma.Ballot(np.array([500, 300, 200, 0, 0], dtype=np.int64), weights_VN, bonds_VN)


def test_a_worked_example() -> None:
    """Validators A, B, C hold 50, 30, 20 % of the stake and judge miners x and y. Kappa is a half.

    Weights         x    y        A gives .6 .4, B gives .8 .2, C gives 0 1.
    Consensus x     .8 has B's 30 %; .6 has B's and A's 80 %, at least a half: .6
    Consensus y     1 has C's 20 %; .4 has C's and A's 70 %: .4
    Clipped         A .6 .4    B .6 .2    C 0 .4      trust: A 1, B .8, C .4
    Rank            x .5*.6 + .3*.6 = .48             y .5*.4 + .3*.2 + .2*.4 = .34
    Incentive       x .48/.82 = 24/41                 y .34/.82 = 17/41
    Bonds in x      A .30/.48 = 5/8, B .18/.48 = 3/8, C 0
    Bonds in y      A .20/.34 = 10/17, B .06/.34 = 3/17, C .08/.34 = 4/17
    Dividends       A 24/41*5/8 + 17/41*10/17 = 15/41 + 10/41 = 25/41     B 9/41 + 3/41 = 12/41     C 4/41

    An epoch of 20 alpha pays 18 %, 3.6, to the owner and 41 %, 8.2, to each side: x 8.2*24/41 = 4.8, y 3.4;
    A 8.2*25/41 = 5, B 2.4, C 0.8.

    In the next epoch C votes .6 .4 like A. Rank x grows by .2*.6 to .60, so incentive is x 30/47, y 17/47. New bonds in
    x are A .5, B .3, C .2; nine tenths of the old remain: A .9*.625 + .1*.5 = .6125, B .3675, C .02. Dividends:
    A (30*.6125 + 10)/47 = 28.375/47, B 14.025/47, C 4.6/47. C earns slowly what it joins late.
    """
    first = yuma.run(worked_ballot((0, 100), np.zeros((5, 5))))
    assert_close(first.consensus_N, [F(0), F(0), F(0), F(6, 10), F(4, 10)])
    assert_close(first.validator_trust_N, [F(1), F(8, 10), F(4, 10), F(0), F(0)])
    assert_close(first.incentive_N, [F(0), F(0), F(0), F(24, 41), F(17, 41)])
    assert_close(first.bonds_VN[:3, 3], [F(5, 8), F(3, 8), F(0)])
    assert_close(first.bonds_VN[:3, 4], [F(10, 17), F(3, 17), F(4, 17)])
    assert_close(first.dividends_N, [F(25, 41), F(12, 41), F(4, 41), F(0), F(0)])

    miners, validators, owner = epochs.split(20 * 10**9)
    assert (miners, validators, owner) == (8_200_000_000, 8_200_000_000, 3_600_000_000)
    assert yuma.apportion(miners, first.incentive_N)[3:] == pytest.approx([4_800_000_000, 3_400_000_000], abs=5)
    paid = yuma.apportion(validators, first.dividends_N)[:3]
    assert paid == pytest.approx([5_000_000_000, 2_400_000_000, 800_000_000], abs=5)

    second = yuma.run(worked_ballot((60, 40), first.bonds_VN))
    assert_close(second.incentive_N, [F(0), F(0), F(0), F(30, 47), F(17, 47)])
    assert_close(second.bonds_VN[:3, 3], [F(6125, 10000), F(3675, 10000), F(2, 100)])
    assert_close(second.dividends_N, [F(28375, 47000), F(14025, 47000), F(46, 470), F(0), F(0)])


# Every rao

HOTKEYS = [Key(f"//law/hot/{number}") for number in range(4)]
COLDKEYS = [Key(f"//law/cold/{number}") for number in range(4)]


@st.composite
def economies(draw: st.DrawFn) -> tuple[int, list[int], list[list[tuple[int, int]]], bool]:
    emission_rao = draw(st.integers(0, 10**10))
    stakes = draw(st.lists(STAKES, min_size=4, max_size=4))
    vote = st.dictionaries(st.integers(0, 3), NUMBERS, max_size=4).map(lambda votes: list(votes.items()))
    votes = draw(st.lists(vote, min_size=4, max_size=4))
    return emission_rao, stakes, votes, draw(st.booleans())


@settings(max_examples=40)
@given(economies())
def test_every_rao_of_an_epoch_is_paid_or_burnt(
    economy: tuple[int, list[int], list[list[tuple[int, int]]], bool],
) -> None:
    """41 % to miners, 41 % to validators, 18 % to the owner, rounded per block; the owner's incentive is burnt."""
    emission_rao, stakes, votes, is_second_owners = economy
    clock = itertools.count(1_700_000_000_000, 250)
    chain = DevChain(DevChainConfig(emission_rao=emission_rao, tempo_blocks=2), lambda: next(clock))
    chain.add_subnet(COLDKEYS[0].address, HOTKEYS[0].address)
    for number in (1, 2, 3):
        coldkey = COLDKEYS[0 if is_second_owners and number == 1 else number]
        chain.register(1, coldkey.address, HOTKEYS[number].address)
    chain.produce()
    for uid, (stake, vote) in enumerate(zip(stakes, votes, strict=True)):
        chain.set_stake(1, HOTKEYS[uid].address, stake)
        chain.state.put(PALLET, "Weights", vote, 1, uid)
    chain.state.put(PALLET, "LastUpdate", [1, 1, 1, 1], 1)
    before = [subnets.stake_rao(chain.state, 1, key.address) for key in HOTKEYS]
    chain.produce()
    payment = chain.payments[1]

    owner = 2 * (emission_rao * 18 // 100)
    validators = 2 * ((emission_rao - emission_rao * 18 // 100) // 2)
    assert payment.created == 2 * emission_rao
    assert payment.owner == owner
    assert payment.created == sum(payment.per_uid) + payment.owner + payment.burnt
    after = [subnets.stake_rao(chain.state, 1, key.address) for key in HOTKEYS]
    gained = [now - then for now, then in zip(after, before, strict=True)]
    assert gained[1:] == list(payment.per_uid[1:])
    assert gained[0] == payment.per_uid[0] + owner
    incentive = np.array(read(chain, "Incentive", 1))
    owners = [0, 1] if is_second_owners else [0]
    if not sum(stakes):
        assert payment.burnt == payment.created - owner
    elif incentive.any():
        miners = payment.created - owner - validators
        shares = incentive / incentive.sum()
        assert payment.burnt == pytest.approx(miners * shares[owners].sum(), rel=1e-3, abs=10)
    else:
        assert payment.burnt == 0
    assert read(chain, "SubnetAlphaOut", 1) == sum(after) + payment.burnt


@given(st.integers(0, 10**12))
def test_the_split_loses_nothing(rao: int) -> None:
    miners, validators, owner = epochs.split(rao)
    assert miners + validators + owner == rao
    assert 0 <= miners - validators <= 1
    assert 0 <= F(18 * rao, 100) - owner < 1
    assert epochs.split(10**9) == (410_000_000, 410_000_000, 180_000_000)


@given(st.integers(0, 10**18), st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_apportion_pays_every_rao_in_proportion(total: int, shares: list[float]) -> None:
    parts = yuma.apportion(total, np.array(shares))
    steps = [round(share * yuma.SHARE_STEPS) for share in shares]
    if sum(steps) == 0:
        assert parts == [0] * len(shares)
        return
    assert sum(parts) == total
    for part, step in zip(parts, steps, strict=True):
        assert -1 < part - F(total * step, sum(steps)) < len(parts)
