"""The inner optimiser: its learning rate over the run, and a state that can be taken out and put back."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import nn

from subnet.config import InnerConfig, RunConfig
from subnet.model.stages import ParameterSlot
from subnet.train.optim import (
    UPDATE_RMS,
    InnerOptimizer,
    Moments,
    learning_rate_at,
    momentum_product,
    orthogonalise,
    stage_inner,
)
from subnet.train.state import MAX_STEPS
from subnet.types import StageId

# A block's matrix, a gain, the head, and a second block's matrix.
SLOTS = (
    ParameterSlot("in", (4, 3), 0, 12, decays=True, is_hidden_matrix=True),
    ParameterSlot("gain", (5,), 12, 5, decays=False, is_hidden_matrix=False),
    ParameterSlot("head", (2, 2), 17, 4, decays=True, is_hidden_matrix=False),
    ParameterSlot("out", (4, 3), 21, 12, decays=True, is_hidden_matrix=True),
)
SIZE = 33
Kind = Literal["adamw", "nadam", "muon"]
each_kind = pytest.mark.parametrize("kind", ["adamw", "nadam", "muon"])


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(slot.shape, generator=generator)) for slot in SLOTS]


def train(optimizer: InnerOptimizer, tensors: list[nn.Parameter], steps: range) -> None:
    for number in steps:
        generator = torch.Generator().manual_seed(100 + number)
        for item in tensors:
            item.grad = torch.randn(item.shape, generator=generator)
        optimizer.step(1e-2)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [(0, 1e-5), (50, 5e-4), (100, 1e-3), (350, 7.75e-4), (600, 5.5e-4), (1100, 1e-4), (99_999, 1e-4)],
)
def test_the_learning_rate_warms_up_and_decays_with_the_runs_tokens(tokens: float, expected: float) -> None:
    inner = InnerConfig(learning_rate=1e-3, warmup_tokens=100, total_tokens=1100, final_share=0.1)
    assert learning_rate_at(inner, tokens) == pytest.approx(expected)


def test_without_an_end_the_learning_rate_stays_at_its_peak() -> None:
    inner = InnerConfig(learning_rate=1e-3, warmup_tokens=0, total_tokens=0)
    assert {learning_rate_at(inner, tokens) for tokens in (0, 1, 10**12)} == {1e-3}


@each_kind
def test_a_state_taken_out_and_put_back_goes_on_bit_for_bit(kind: Kind) -> None:
    inner = InnerConfig(optimizer=kind)
    whole_items = parameters()
    whole = InnerOptimizer(inner, whole_items, SLOTS)
    train(whole, whole_items, range(6))
    first_items = parameters()
    first = InnerOptimizer(inner, first_items, SLOTS)
    train(first, first_items, range(3))
    second_items = [nn.Parameter(item.detach().clone()) for item in first_items]
    second = InnerOptimizer(inner, second_items, SLOTS)
    second.load(first.moments())
    train(second, second_items, range(3, 6))
    assert all(torch.equal(*pair) for pair in zip(whole_items, second_items, strict=True))
    assert second.moments().step == 6
    assert torch.equal(second.moments().second, whole.moments().second)


@pytest.mark.parametrize("beta1", [0.0, 0.9, 0.99])
def test_nadams_product_of_momenta_follows_from_the_step(beta1: float) -> None:
    """Down to where it is too small to change any more; from there on it costs nothing, whatever the step."""
    item = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.NAdam([item], betas=(beta1, 0.95), foreach=True)
    for step in range(1, 500):
        item.grad = torch.ones(1)
        optimizer.step()
        assert torch.equal(momentum_product(beta1, step), optimizer.state[item]["mu_product"])
    assert torch.equal(momentum_product(beta1, MAX_STEPS), optimizer.state[item]["mu_product"])


def test_nadam_is_torchs_with_decoupled_decay() -> None:
    ours, theirs = parameters(), parameters()
    inner = InnerConfig(optimizer="nadam", weight_decay=0.1)
    groups = [
        {
            "params": [item for item, slot in zip(theirs, SLOTS, strict=True) if slot.decays is flag],
            "weight_decay": 0.1 if flag else 0.0,
        }
        for flag in (True, False)
    ]
    reference = torch.optim.NAdam(groups, lr=1e-2, betas=(0.9, 0.95), decoupled_weight_decay=True, foreach=False)
    optimizer = InnerOptimizer(inner, ours, SLOTS)
    for number in range(3):
        train(optimizer, ours, range(number, number + 1))
        for item, source in zip(theirs, ours, strict=True):
            item.grad = source.grad
        reference.step()
    assert all(torch.allclose(*pair, rtol=1e-6, atol=1e-7) for pair in zip(ours, theirs, strict=True))


def test_earlier_stages_have_more_momentum_under_nadam_only() -> None:
    plain = {"model": {"num_blocks": 3}, "stages": {"num_stages": 3}, "inner": {"optimizer": "nadam"}}
    run = RunConfig.model_validate(plain)
    assert [stage_inner(run, StageId(stage)).beta1 for stage in range(3)] == pytest.approx([0.96, 0.93, 0.9])
    for kind in ("adamw", "muon"):
        other = run.with_values(**{"inner.optimizer": kind})
        assert {stage_inner(other, StageId(stage)).beta1 for stage in range(3)} == {0.9}


@pytest.mark.parametrize("num_stages", [1, 2, 3])
def test_the_stages_shares_of_the_clip_add_up_to_the_models(num_stages: int) -> None:
    run = RunConfig.model_validate({"model": {"num_blocks": 3}, "stages": {"num_stages": num_stages}})
    clips = [stage_inner(run, StageId(stage)).clip_norm for stage in range(num_stages)]
    assert sum(clip**2 for clip in clips) == pytest.approx(run.inner.clip_norm**2)
    assert clips == pytest.approx([num_stages**-0.5] * num_stages, rel=0.2), "stages are almost equal"
    off = run.with_values(**{"inner.clip_norm": 0.0})
    assert stage_inner(off, StageId(0)).clip_norm == 0


@each_kind
def test_a_loaded_state_is_a_copy(kind: Kind) -> None:
    items = parameters()
    optimizer = InnerOptimizer(InnerConfig(optimizer=kind), items, SLOTS)
    train(optimizer, items, range(1))
    moments = optimizer.moments()
    before = moments.first.clone()
    optimizer.load(moments)
    train(optimizer, items, range(1, 2))
    assert torch.equal(moments.first, before)


@each_kind
def test_loading_a_fresh_state_forgets_the_old_one(kind: Kind) -> None:
    items = parameters()
    optimizer = InnerOptimizer(InnerConfig(optimizer=kind), items, SLOTS)
    train(optimizer, items, range(2))
    optimizer.load(Moments.zeros(SIZE))
    moments = optimizer.moments()
    assert moments.step == 0
    assert not moments.first.any()


@each_kind
def test_only_what_decays_decays(kind: Kind) -> None:
    items = parameters()
    before = [item.detach().clone() for item in items]
    optimizer = InnerOptimizer(InnerConfig(optimizer=kind, weight_decay=0.5), items, SLOTS)
    for item in items:
        item.grad = torch.zeros_like(item)
    optimizer.step(1e-2)
    shrunk = [torch.allclose(now, old * (1 - 0.5 * 1e-2)) for now, old in zip(items, before, strict=True)]
    assert shrunk == [slot.decays for slot in SLOTS]
    assert torch.equal(items[1], before[1])


@pytest.mark.parametrize("shape", [(3, 16, 64), (2, 64, 16), (1, 8, 8)])
def test_orthogonalised_matrices_keep_their_singular_vectors(shape: tuple[int, ...]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    found = orthogonalise(matrices)
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    inner = left.mT @ found @ right.mT
    assert torch.allclose(inner, torch.diag_embed(inner.diagonal(dim1=-2, dim2=-1)), atol=1e-4)
    # Five iterations bring singular values that are not tiny to about one, not to one.
    assert inner.diagonal(dim1=-2, dim2=-1).min() > 0.6
    assert inner.diagonal(dim1=-2, dim2=-1).max() < 1.3


def test_muon_agrees_with_torchs_own_up_to_its_bf16() -> None:
    ours, theirs = parameters(), parameters()
    optimizer = InnerOptimizer(InnerConfig(optimizer="muon", weight_decay=0.1), ours, SLOTS)
    matrices = [item for item, slot in zip(theirs, SLOTS, strict=True) if slot.is_hidden_matrix]
    scale = UPDATE_RMS / 0.2  # theirs is fixed; the decay of the first step is scaled back
    reference = torch.optim.Muon(matrices, lr=1e-2 * scale, weight_decay=0.1 / scale, adjust_lr_fn="match_rms_adamw")
    train(optimizer, ours, range(1))
    for item, source in zip(theirs, ours, strict=True):
        item.grad = source.grad
    reference.step()
    for mine, other, slot in zip(ours, theirs, SLOTS, strict=True):
        if slot.is_hidden_matrix:
            assert torch.allclose(mine, other, atol=1e-2 * UPDATE_RMS * 2 * 0.1), "a tenth of the largest step"


@each_kind
def test_a_parameter_may_have_a_share_of_the_learning_rate(kind: Kind) -> None:
    slots = [ParameterSlot("whole", (3,), 0, 3, False, False), ParameterSlot("tenth", (3,), 3, 3, False, False, 0.1)]
    items = [nn.Parameter(torch.zeros(3)) for _ in slots]
    optimizer = InnerOptimizer(InnerConfig(optimizer=kind), items, slots)
    for item in items:
        item.grad = torch.ones(3)
    optimizer.step(1e-2)
    assert torch.allclose(items[1], items[0] / 10)
