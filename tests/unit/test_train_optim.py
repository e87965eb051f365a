"""The inner optimiser: its learning rate over the run, and a state that can be taken out and put back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from subnet.config import InnerConfig
from subnet.train.optim import InnerOptimizer, Moments, learning_rate_at


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((4, 3), (5,), (2, 2))]


def train(optimizer: InnerOptimizer, tensors: list[nn.Parameter], steps: range) -> None:
    for number in steps:
        generator = torch.Generator().manual_seed(100 + number)
        for item in tensors:
            item.grad = torch.randn(item.shape, generator=generator)
        optimizer.step(1e-2)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [(0, 1e-5), (50, 5e-4), (100, 1e-3), (600, 5.5e-4), (1100, 1e-4), (99_999, 1e-4)],
)
def test_the_learning_rate_warms_up_and_decays_with_the_runs_tokens(tokens: float, expected: float) -> None:
    inner = InnerConfig(learning_rate=1e-3, warmup_tokens=100, total_tokens=1100, final_share=0.1)
    assert learning_rate_at(inner, tokens) == pytest.approx(expected)


def test_without_an_end_the_learning_rate_stays_at_its_peak() -> None:
    inner = InnerConfig(learning_rate=1e-3, warmup_tokens=0, total_tokens=0)
    assert {learning_rate_at(inner, tokens) for tokens in (0, 1, 10**12)} == {1e-3}


def test_a_state_taken_out_and_put_back_goes_on_bit_for_bit() -> None:
    inner, decays = InnerConfig(), [True, False, True]
    whole_items = parameters()
    whole = InnerOptimizer(inner, whole_items, decays)
    train(whole, whole_items, range(6))
    first_items = parameters()
    first = InnerOptimizer(inner, first_items, decays)
    train(first, first_items, range(3))
    second_items = [nn.Parameter(item.detach().clone()) for item in first_items]
    second = InnerOptimizer(inner, second_items, decays)
    second.load(first.moments())
    train(second, second_items, range(3, 6))
    assert all(torch.equal(*pair) for pair in zip(whole_items, second_items, strict=True))
    assert second.moments().step == 6
    assert torch.equal(second.moments().second, whole.moments().second)


def test_a_loaded_state_is_a_copy() -> None:
    items = parameters()
    optimizer = InnerOptimizer(InnerConfig(), items, [True, False, True])
    train(optimizer, items, range(1))
    moments = optimizer.moments()
    before = moments.first.clone()
    optimizer.load(moments)
    train(optimizer, items, range(1, 2))
    assert torch.equal(moments.first, before)


def test_loading_a_fresh_state_forgets_the_old_one() -> None:
    items = parameters()
    optimizer = InnerOptimizer(InnerConfig(), items, [True, False, True])
    train(optimizer, items, range(2))
    optimizer.load(Moments.zeros(21))
    moments = optimizer.moments()
    assert moments.step == 0
    assert not moments.first.any()


def test_only_what_decays_decays() -> None:
    items = parameters()
    before = [item.detach().clone() for item in items]
    optimizer = InnerOptimizer(InnerConfig(weight_decay=0.5), items, [True, False, True])
    for item in items:
        item.grad = torch.zeros_like(item)
    optimizer.step(1e-2)
    shrunk = [torch.allclose(now, old * (1 - 0.5 * 1e-2)) for now, old in zip(items, before, strict=True)]
    assert shrunk == [True, False, True]
    assert torch.equal(items[1], before[1])
