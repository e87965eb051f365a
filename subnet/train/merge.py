"""Merge arithmetic: the token-weighted mean of pseudo-gradients, shard by shard, and the outer Nesterov step.

Elementwise numpy in fp32 and a fixed order of contributions: bit-exact on any machine, no BLAS, no reductions (norms
are sums in float64 and are compared with a tolerance). Not here: transport (``subnet.replica.merging``).
Invariants: merging N equal vectors gives the vector that one alone would give; the result does not depend on the order
of arrival; a declared norm that the values do not have is refused.
Sources: DiLoCo arXiv:2311.08105 (outer Nesterov, pseudo-gradient is old minus new), torch.optim.SGD (nesterov form),
median-norm clip (algorithms.md section 5.4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from subnet.config import OuterConfig
from subnet.hashing import bytes_root, merkle_root
from subnet.types import Digest, Hotkey

Vector = npt.NDArray[np.float32]

NORM_TOLERANCE = 1e-5  # design.md section 4: relative difference allowed between declared and recomputed norms


@dataclass(frozen=True, eq=False)
class Contribution:
    """One replica's pseudo-gradient of one shard. ``norm`` is the declared L2 norm of the shard."""

    hotkey: Hotkey
    values: Vector
    num_tokens: int
    norm: float


def shard_slices(num_parameters: int, num_shards: int) -> tuple[slice, ...]:
    """Contiguous slices of a stage's flat vector whose sizes differ by at most one."""
    edges = [num_parameters * index // num_shards for index in range(num_shards + 1)]
    return tuple(slice(begin, end) for begin, end in pairwise(edges))


def little_endian(values: Vector) -> bytes:
    """The bytes that are hashed and sent."""
    return values.astype("<f4", copy=False).tobytes()


def shard_digest(values: Vector) -> Digest:
    """Merkle root over 64 KiB leaves of a shard's little-endian fp32 bytes."""
    return bytes_root(little_endian(values))


def root_of_shards(digests: Sequence[Digest]) -> Digest:
    """Root of a stage's parameters from the digests of its shards, in order: known from the ledger alone."""
    return merkle_root(list(digests))


def params_root(flat: Vector, num_shards: int) -> Digest:
    """Root of a stage's flat parameters."""
    return root_of_shards([shard_digest(flat[place]) for place in shard_slices(len(flat), num_shards)])


def norm(values: Vector) -> float:
    """L2 norm, summed in float64."""
    return float(np.sqrt(np.square(values, dtype=np.float64).sum()))


def norm_agrees(values: Vector, declared: float) -> bool:
    """Whether ``declared`` is the norm of ``values`` within ``NORM_TOLERANCE``."""
    actual = norm(values)
    return bool(np.isfinite(actual)) and abs(actual - declared) <= NORM_TOLERANCE * max(actual, declared, 1e-30)


def pseudo_grad(start: Vector, end: Vector) -> Vector:
    """Parameters before the round minus after."""
    return start - end


def clip_scales(norms: Sequence[float]) -> list[float]:
    """Factors that bring each declared norm down to the lower median of all."""
    limit = sorted(norms)[(len(norms) - 1) // 2]
    return [1.0 if value <= limit else limit / value for value in norms]


def weighted_mean(contributions: Sequence[Contribution]) -> Vector:
    """Token-weighted mean of the clipped contributions, in the order of their hotkeys.

    Computed as the first contribution plus weighted differences to it, so that equal vectors give that very vector.
    """
    ordered = sorted(contributions, key=lambda item: item.hotkey)
    total = sum(item.num_tokens for item in ordered)
    scales = clip_scales([item.norm for item in ordered])
    first = ordered[0].values * np.float32(scales[0])
    mean = first.copy()
    for item, scale in zip(ordered[1:], scales[1:], strict=True):
        share = np.float32(item.num_tokens / total)
        mean += (item.values * np.float32(scale) - first) * share
    return mean


def nesterov(params: Vector, momentum: Vector, delta: Vector, outer: OuterConfig) -> tuple[Vector, Vector]:
    """Parameters and momentum after the outer step (torch's SGD with nesterov=True and dampening 0)."""
    mu, rate = np.float32(outer.momentum), np.float32(outer.learning_rate)
    momentum = (momentum * mu + delta).astype(np.float32)
    return (params - (delta + momentum * mu) * rate).astype(np.float32), momentum


def merge_shard(
    params: Vector, momentum: Vector, contributions: Sequence[Contribution], outer: OuterConfig
) -> tuple[Vector, Vector]:
    """New parameters and momentum of one shard. Contributions without tokens carry no weight."""
    counted = [item for item in contributions if item.num_tokens > 0]
    if not counted:
        return params.copy(), momentum.copy()
    return nesterov(params, momentum, weighted_mean(counted), outer)
