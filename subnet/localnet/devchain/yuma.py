"""Yuma consensus of one subnet and one epoch: weights, stake and old bonds in; incentive, dividends, new bonds out.

Pure functions over arrays; no storage and no emission. The median is decided in whole rao, so that a tie at kappa never
hangs on rounding; the rest is float64, elementwise and in a fixed order of sums.

Shape suffixes: N neurons; VN a row per neuron as validator, a column per neuron as miner (N x N).
Source: Yuma consensus as in the chain's `epoch_dense_mechanism` (fully clipped bonds, liquid alpha off); reference text
in the Bittensor documentation, "Yuma consensus".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FLOAT = NDArray[np.float64]
INT = NDArray[np.int64]
U16_MAX = 65535
MILLION = 1_000_000


@dataclass(frozen=True)
class Ballot:
    """What an epoch decides on.

    stake_N: rao of those who may vote, 0 for others; weights_VN, bonds_VN: at least 0, rows and columns of any scale
    kappa_u16: share of stake, of U16_MAX, that has to agree; bonds_moving_average: share of old bonds kept, of MILLION
    """

    stake_N: INT
    weights_VN: FLOAT
    bonds_VN: FLOAT
    kappa_u16: int = 32767
    bonds_moving_average: int = 900_000


@dataclass(frozen=True)
class Outcome:
    """Results per neuron, each within 0..1. incentive_N and dividends_N sum to one, or are all zero."""

    consensus_N: FLOAT
    incentive_N: FLOAT
    validator_trust_N: FLOAT
    dividends_N: FLOAT
    bonds_VN: FLOAT


def normalise(values: FLOAT, axis: int | None = None) -> FLOAT:
    """Divided by their sum; what sums to zero stays zero."""
    total = values.sum(axis=axis, keepdims=axis is not None)
    divided: FLOAT = values / np.where(total > 0, total, 1.0)
    return divided


def clip_level(weights_VN: FLOAT, stake_N: INT, kappa_u16: int) -> FLOAT:
    """Per miner the largest weight that validators with at least kappa of the stake give or exceed; 0 without stake."""
    total = int(stake_N.sum())
    if total == 0:
        return np.zeros(weights_VN.shape[1])
    needed = max(1, -(-total * kappa_u16 // U16_MAX))  # rounded up: at least kappa
    order_VN = np.argsort(-weights_VN, axis=0, kind="stable")
    agreeing_VN = np.cumsum(stake_N[order_VN], axis=0)
    first_N = np.argmax(agreeing_VN >= needed, axis=0)
    level: FLOAT = np.take_along_axis(np.take_along_axis(weights_VN, order_VN, axis=0), first_N[None, :], axis=0)[0]
    return level


def run(ballot: Ballot) -> Outcome:
    """Raises ValueError on negative or non-finite input."""
    for array in (ballot.weights_VN, ballot.bonds_VN, ballot.stake_N):
        if not np.isfinite(array).all() or (array < 0).any():
            raise ValueError("stake, weights and bonds have to be finite and not negative")
    weights_VN = normalise(ballot.weights_VN, axis=1)
    share_N = normalise(ballot.stake_N.astype(np.float64))
    consensus_N = clip_level(weights_VN, ballot.stake_N, ballot.kappa_u16)
    clipped_VN = np.minimum(weights_VN, consensus_N[None, :])
    staked_VN = share_N[:, None] * clipped_VN
    incentive_N = normalise(staked_VN.sum(axis=0))
    kept = ballot.bonds_moving_average / MILLION
    old_VN = np.where(ballot.stake_N[:, None] > 0, ballot.bonds_VN, 0.0)  # who may not vote loses its bonds
    bonds_VN = normalise(kept * normalise(old_VN, axis=0) + (1.0 - kept) * normalise(staked_VN, axis=0), axis=0)
    return Outcome(
        consensus_N=consensus_N,
        incentive_N=incentive_N,
        validator_trust_N=np.where(ballot.stake_N > 0, clipped_VN.sum(axis=1), 0.0),
        dividends_N=normalise((bonds_VN * incentive_N[None, :]).sum(axis=1)),
        bonds_VN=bonds_VN,
    )


SHARE_STEPS = 1 << 40  # resolution at which a share of the pay becomes a whole number


def apportion(total: int, shares: FLOAT | INT) -> list[int]:
    """``total`` in whole numbers in proportion to ``shares``; sums to ``total`` exactly.

    Everyone's part is rounded down; the rest, less than one rao per share, goes to the largest share, the first of
    equal ones. All zero shares get nothing: the sum is then 0.
    """
    steps = [int(share) if isinstance(share, np.integer) else round(float(share) * SHARE_STEPS) for share in shares]
    whole = sum(steps)
    if whole == 0:
        return [0] * len(steps)
    parts = [total * step // whole for step in steps]
    parts[steps.index(max(steps))] += total - sum(parts)
    return parts
