"""Invariant 3: merging N equal vectors returns the vector, and owners agree to the bit in whatever order it arrives."""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from subnet.config import OuterConfig
from subnet.train import merge
from subnet.types import Hotkey

Vector = npt.NDArray[np.float32]

PLAIN = OuterConfig(learning_rate=1.0, momentum=0.0)
OUTER = OuterConfig()

values = st.floats(-100, 100, width=32, allow_nan=False)
vectors = st.integers(1, 40).flatmap(lambda size: arrays(np.float32, size, elements=values))
weights = st.lists(st.integers(1, 10_000), min_size=1, max_size=7)


def contributions(shards: list[Vector], num_tokens: list[int]) -> list[merge.Contribution]:
    return [
        merge.Contribution(Hotkey(f"peer-{index}"), shard, tokens, merge.norm(shard))
        for index, (shard, tokens) in enumerate(zip(shards, num_tokens, strict=True))
    ]


def drawn(seed: int, num_peers: int, size: int = 33) -> list[merge.Contribution]:
    """Contributions of different size, direction and weight."""
    generator = np.random.default_rng(seed)
    shards = [(generator.standard_normal(size) * 10.0**index).astype(np.float32) for index in range(num_peers)]
    return contributions(shards, [int(generator.integers(1, 9999)) for _ in shards])


@given(vectors, weights)
def test_the_mean_of_equal_vectors_is_the_vector_to_the_bit(vector: Vector, num_tokens: list[int]) -> None:
    mean = merge.weighted_mean(contributions([vector] * len(num_tokens), num_tokens))
    assert mean.dtype == np.float32
    assert np.array_equal(mean, vector)


@given(vectors, weights, st.randoms(use_true_random=False))
def test_n_equal_replicas_are_one_replica_to_the_bit(
    start: Vector, num_tokens: list[int], chance: random.Random
) -> None:
    end = (start * np.float32(chance.uniform(0.5, 1.5))).astype(np.float32)
    momentum = (start * np.float32(0.1)).astype(np.float32)
    pseudo_grad = merge.pseudo_grad(start, end)
    many = merge.merge_shard(start, momentum, contributions([pseudo_grad] * len(num_tokens), num_tokens), OUTER)
    one = merge.merge_shard(start, momentum, contributions([pseudo_grad], num_tokens[:1]), OUTER)
    assert [part.tobytes() for part in many] == [part.tobytes() for part in one]


@given(vectors, vectors)
def test_without_an_outer_optimiser_the_merged_parameters_are_the_replicas_own(left: Vector, right: Vector) -> None:
    """start - (start - end) is end up to the rounding of two fp32 subtractions."""
    size = min(len(left), len(right))
    start, end = left[:size], right[:size]
    equal = contributions([merge.pseudo_grad(start, end)] * 3, [5, 7, 1])
    params, _ = merge.merge_shard(start, np.zeros_like(start), equal, PLAIN)
    # The difference is rounded to half a unit in its last place; it is at most |start| + |end|.
    allowed = np.finfo(np.float32).eps * (np.abs(start) + np.abs(end))
    assert np.all(np.abs(params - end) <= allowed)


@given(st.integers(0, 10_000), st.integers(1, 6), st.randoms(use_true_random=False))
def test_owners_publish_equal_digests_whatever_the_order_of_arrival(
    seed: int, num_peers: int, chance: random.Random
) -> None:
    first, second = drawn(seed, num_peers), drawn(seed, num_peers)
    chance.shuffle(second)
    params = np.linspace(-1, 1, 33, dtype=np.float32)
    results = [merge.merge_shard(params, params, items, OUTER) for items in (first, second)]
    digests = [[merge.shard_digest(part) for part in result] for result in results]
    assert digests[0] == digests[1]


def test_one_changed_bit_of_one_contribution_changes_the_digest() -> None:
    items = drawn(1, 3)
    params = np.zeros(33, dtype=np.float32)
    before, _ = merge.merge_shard(params, params, items, OUTER)
    changed = items[2].values.copy()
    changed.view(np.uint32)[5] ^= 1 << 20
    items[2] = merge.Contribution(items[2].hotkey, changed, items[2].num_tokens, items[2].norm)
    after, _ = merge.merge_shard(params, params, items, OUTER)
    assert merge.shard_digest(before) != merge.shard_digest(after)


@given(st.integers(0, 10_000), st.integers(1, 6))
def test_the_mean_is_the_token_weighted_mean_of_the_clipped_vectors(seed: int, num_peers: int) -> None:
    items = drawn(seed, num_peers)
    limit = sorted(item.norm for item in items)[(num_peers - 1) // 2]
    total = sum(item.num_tokens for item in items)
    expected = sum(
        item.values.astype(np.float64) * min(1.0, limit / item.norm) * (item.num_tokens / total) for item in items
    )
    assert merge.weighted_mean(items) == pytest.approx(expected, rel=1e-4, abs=1e-6 * limit)


def test_the_outer_step_is_torchs_nesterov() -> None:
    generator = np.random.default_rng(0)
    params = generator.standard_normal(20).astype(np.float32)
    momentum = np.zeros_like(params)
    theirs = torch.nn.Parameter(torch.from_numpy(params.copy()))
    optimizer = torch.optim.SGD([theirs], lr=OUTER.learning_rate, momentum=OUTER.momentum, nesterov=True)
    for _ in range(5):
        delta = generator.standard_normal(20).astype(np.float32)
        params, momentum = merge.nesterov(params, momentum, delta, OUTER)
        theirs.grad = torch.from_numpy(delta)
        optimizer.step()
    assert params == pytest.approx(theirs.detach().numpy(), rel=1e-5, abs=1e-6)


def test_a_shadow_without_tokens_changes_nothing() -> None:
    items = drawn(3, 2)
    shadow = merge.Contribution(Hotkey("peer-0-shadow"), np.full(33, 1e6, dtype=np.float32), 0, 1e6)
    params = np.ones(33, dtype=np.float32)
    expected, _ = merge.merge_shard(params, params, items, OUTER)
    found, _ = merge.merge_shard(params, params, [*items, shadow], OUTER)
    assert np.array_equal(found, expected)
    kept = merge.merge_shard(params, params, [shadow], OUTER)
    assert all(np.array_equal(part, params) for part in kept)


@given(st.integers(1, 500), st.integers(1, 40))
def test_shards_cover_the_vector_once_in_near_equal_parts(num_parameters: int, num_shards: int) -> None:
    slices = merge.shard_slices(num_parameters, num_shards)
    covered = np.concatenate([np.arange(num_parameters)[place] for place in slices])
    sizes = [place.stop - place.start for place in slices]
    assert len(slices) == num_shards
    assert np.array_equal(covered, np.arange(num_parameters))
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 100_000), st.integers(1, 9))
def test_a_stages_root_is_known_from_its_shards_digests_alone(size: int, num_shards: int) -> None:
    flat = np.arange(size, dtype=np.float32)
    digests = [merge.shard_digest(flat[place]) for place in merge.shard_slices(size, num_shards)]
    assert merge.root_of_shards(digests) == merge.params_root(flat, num_shards)


@given(vectors, st.sampled_from([0.99, 1.01, 0.0, 2.0]))
def test_a_declared_norm_that_the_values_do_not_have_is_told(vector: Vector, factor: float) -> None:
    actual = merge.norm(vector)
    assume(actual == 0.0 or actual > 1e-20)  # below, everything counts as zero
    assert merge.norm_agrees(vector, actual)
    assert merge.norm_agrees(vector, actual * (1 + merge.NORM_TOLERANCE / 2))
    assert merge.norm_agrees(vector, actual * factor) is (actual == 0.0)


def test_norms_are_clipped_to_their_lower_median() -> None:
    assert merge.clip_scales([3.0]) == [1.0]
    assert merge.clip_scales([1.0, 4.0]) == [1.0, 0.25]
    assert merge.clip_scales([8.0, 1.0, 2.0]) == [0.25, 1.0, 1.0]
    assert merge.clip_scales([0.0, 0.0, 5.0]) == [1.0, 1.0, 0.0]
