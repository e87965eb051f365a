"""What crosses: digits that come back, gradients that are right on average, bytes as declared, causal predictors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from subnet.codec.quantize import digits_per_byte, pack_digits, packed_width, unpack_digits
from subnet.codec.tensors import NAMES
from subnet.config import BoundaryConfig, load_run_config
from subnet.errors import ConfigError
from subnet.model.boundary import DigitBoundary, bytes_per_token, make_boundary
from subnet.model.crossing import Predictor
from subnet.model.flops import stage_parameters
from subnet.model.stages import StageModule
from subnet.types import StageId
from tests.tiny import text_corpus, tiny_run

KINDS = ("none", "int8", "anchored", "resbm")


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("base", "count"), [(2, 8), (3, 5), (4, 4), (6, 3), (7, 2), (16, 2), (17, 1), (256, 1)])
@pytest.mark.parametrize("num_digits", [0, 1, 5, 16])
def test_digits_come_back_from_as_few_bytes_as_hold_them(base: int, count: int, num_digits: int) -> None:
    digits = torch.randint(0, base, (2, 3, num_digits), generator=torch.Generator().manual_seed(base))
    packed = pack_digits(digits, base)
    assert digits_per_byte(base) == count
    assert packed.dtype == torch.uint8
    assert packed.shape == (2, 3, packed_width(num_digits, base)) == (2, 3, -(-num_digits // count))
    assert torch.equal(unpack_digits(packed, base, num_digits), digits.to(torch.int32))


def test_any_byte_of_a_stranger_gives_digits_in_range() -> None:
    every = torch.arange(256, dtype=torch.uint8).view(1, 1, 256)
    for base in (3, 5, 6, 200):
        found = unpack_digits(every, base, 256 * digits_per_byte(base))
        assert int(found.min()) >= 0
        assert int(found.max()) < base


@pytest.mark.parametrize(("levels", "distortion"), [(2, 0.3634), (3, 0.1902), (4, 0.1188), (16, 0.01154)])
def test_numbers_lose_what_the_best_uniform_quantiser_loses(levels: Any, distortion: float) -> None:
    """Whatever the scale of a number; distortions as in Max 1960."""
    boundary = DigitBoundary(BoundaryConfig(dims=8, levels=levels))
    values = noise(16, 256, 8) * torch.logspace(-4, 3, 8)
    found = boundary.unpack(boundary.pack(values))
    lost = (found - values).square().mean((0, 1)) / values.square().mean((0, 1))
    assert lost.tolist() == pytest.approx([distortion] * 8, rel=0.15)


def test_a_number_that_is_always_zero_stays_zero() -> None:
    boundary = DigitBoundary(BoundaryConfig(dims=2, levels=3))
    values = noise(1, 4, 2) * torch.tensor([0.0, 1.0])
    assert not boundary.unpack(boundary.pack(values))[..., 0].any()


@pytest.mark.parametrize("dims", [0, 5])
def test_an_anchored_entry_begins_as_if_nothing_crossed(dims: int) -> None:
    run = tiny_run(text_corpus(), **{"boundary.kind": "anchored", "boundary.dims": dims})
    entry = StageModule(run, StageId(1)).entry
    tokens = torch.arange(12).view(2, 6)
    assert torch.equal(entry(noise(2, 6, dims), tokens), entry.predict(tokens))


def test_a_code_is_normalised_and_its_guess_reads_what_the_receiver_will() -> None:
    """The exit's guess sees the rounded numbers; its gradient reaches the hidden state as if they were not."""
    run = tiny_run(text_corpus(), **{"boundary.kind": "anchored", "boundary.dims": 5, "boundary.levels": 3})
    module, tokens = StageModule(run, StageId(0)), torch.arange(12).view(2, 6)
    boundary, ending = make_boundary(run), module.exit
    torch.nn.init.normal_(ending.guess.reader.read.weight, generator=torch.Generator().manual_seed(0))
    crossing, logits = module(tokens, None)
    assert torch.allclose(crossing.square().mean(-1), torch.ones(2, 6), atol=1e-4)
    assert torch.equal(logits, ending.guess(boundary.unpack(boundary.pack(crossing)), tokens))
    (gradient,) = torch.autograd.grad(logits.square().sum(), ending.encode.weight)
    assert gradient.norm() > 0


@pytest.mark.parametrize("grad_levels", [2, 3, 16])
def test_gradients_are_right_on_average_and_never_larger_than_a_scale(grad_levels: int) -> None:
    boundary = DigitBoundary(BoundaryConfig(dims=4, grad_levels=grad_levels))
    grad = noise(2, 3, 4) * torch.logspace(-9, -1, 6).view(2, 3, 1)
    grad[0, 0] = 0.0
    found = torch.stack([boundary.unpack_grad(boundary.pack_grad(grad, seed)) for seed in range(2000)])
    peak = grad.abs().amax(-1, keepdim=True)
    assert torch.all(found.abs() <= peak * 2 ** (1 / 8) + 1e-30)
    assert torch.all((found.mean(0) - grad).abs() <= 0.12 * peak)
    assert not found[:, 0, 0].any()
    again = boundary.pack_grad(grad, 7)
    assert all(torch.equal(again[name], value) for name, value in boundary.pack_grad(grad, 7).items())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dims", [0, 5])
def test_what_is_on_the_wire_is_what_was_declared(kind: str, dims: int) -> None:
    run = tiny_run(text_corpus(), **{"boundary.kind": kind, "boundary.dims": dims})
    boundary = make_boundary(run)
    shape = (2, 3, dims if kind in ("anchored", "resbm") else run.model.width)
    for packed, specs in (
        (boundary.pack(noise(*shape)), boundary.specs(2, 3)),
        (boundary.pack_grad(noise(*shape), 1), boundary.grad_specs(2, 3)),
    ):
        found = {name: (NAMES[tensor.dtype], tuple(tensor.shape)) for name, tensor in packed.items()}
        assert found == {name: (spec.dtype, spec.shape) for name, spec in specs.items()}


def test_64_times_fewer_bytes_at_width_128() -> None:
    """12 numbers of 4 bits, for one token in 8 their gradients and a scale, a token id; a microbatch's steps."""
    changes = {"boundary.kind": "anchored", "boundary.dims": 12, "boundary.grad_stride": 8}
    run = load_run_config("localnet").with_values(**changes, **{"data.sequences": 16})
    token_id = 1
    assert 4 * run.model.width / (bytes_per_token(run) + token_id) == pytest.approx(64.8, abs=0.1)


def test_with_a_stride_the_last_of_so_many_tokens_sends_its_gradient_and_no_other() -> None:
    boundary = DigitBoundary(BoundaryConfig(dims=3, grad_stride=4, grad_levels=256))
    grad = noise(2, 8, 3) / 8
    found = boundary.unpack_grad(boundary.pack_grad(grad, 1))
    assert found.shape == grad.shape
    torch.testing.assert_close(found[:, 3::4], grad[:, 3::4], rtol=0, atol=0.01)
    found[:, 3::4] = 0
    assert not found.any()


def test_a_stride_that_does_not_divide_the_sequence_is_refused() -> None:
    with pytest.raises(ConfigError, match="multiple of"):
        tiny_run(text_corpus(), **{"boundary.kind": "anchored", "boundary.dims": 4, "boundary.grad_stride": 5})


def test_a_predictor_sees_nothing_of_later_tokens() -> None:
    predictor = Predictor(tiny_run(text_corpus(), **{"boundary.predictor_kernel": 4}))
    tokens = torch.randint(0, 256, (1, 12), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[0, 8] = (changed[0, 8] + 1) % 256
    before, after = predictor(tokens), predictor(changed)
    is_same = (before == after).all(-1)[0]
    assert is_same.tolist() == [position not in range(8, 12) for position in range(12)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("has_predictor", [False, True])
@pytest.mark.parametrize("kernel", [0, 4])
def test_parameters_are_counted_with_the_boundarys_ends(kind: str, has_predictor: bool, kernel: int) -> None:
    changes = {"boundary.kind": kind, "boundary.predictor": has_predictor, "boundary.predictor_kernel": kernel}
    run = tiny_run(text_corpus(), **changes)
    for stage in range(run.stages.num_stages):
        module = StageModule(run, StageId(stage))
        assert stage_parameters(run, StageId(stage)) == sum(item.numel() for item in module.parameters())
