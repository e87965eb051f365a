"""The boundary: what crosses between two stages, as tensors on the wire.

Back ends: ``none`` (fp32 as it is), ``int8`` (symmetric, one scale per token, both ways alike), and for the learned
kinds a few digits per token: forward ``levels`` evenly spaced values per number with a scale per number and microbatch,
backward ``grad_levels`` by dithered rounding with a scale per token of one byte, so that a gradient is right on average
however few levels it has. Where bytes are scarce, few gradients that are nearly right teach more than many that are
mostly dither: with ``grad_stride`` most tokens send none, and their sender learns from its own guess alone.
``roundtrip`` is the same arithmetic inside one process, so that a network and its one-process twin agree to the bit.
Not here: the learned ends (``subnet.model.crossing``), serialisation (``subnet.codec.tensors``).
Invariants: ``unpack(pack(x))`` has the shape of ``x``; the backward of ``roundtrip`` is ``unpack_grad(pack_grad(g))``;
rounding forward is invisible to the gradient (straight through); equal seeds give equal dither.
Shapes: B sequences, T positions, D width of the model or K dims of a learned boundary.
Source of the steps: Max, Quantizing for minimum distortion, 1960, table II (uniform, normal distribution).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from subnet.codec.quantize import dequantize_int8, pack_digits, packed_width, quantize_int8, unpack_digits
from subnet.codec.tensors import TensorSpec, nbytes
from subnet.config import LEARNED, BoundaryConfig, RunConfig
from subnet.hashing import draw
from subnet.types import MicrobatchId

# Distance of neighbouring levels, in standard deviations, that loses least of a normally distributed number.
STEPS = {2: 1.596, 3: 1.224, 4: 0.9957, 5: 0.843, 6: 0.7334, 8: 0.586, 16: 0.3352, 32: 0.1881, 256: 0.0308}
SCALES_PER_OCTAVE = 8  # a token's scale is at most 9 % above its largest gradient
LARGEST_CODE = 255  # stands for a scale of one; the smallest is 2**-31.75, and code 0 is a token without gradient


class Boundary(Protocol):
    """One back end. Tensors on the wire have the names, dtypes and shapes of ``specs`` and ``grad_specs``."""

    def pack(self, crossing: Tensor) -> dict[str, Tensor]:
        """What the sender's exit gave, in wire form."""
        ...

    def unpack(self, packed: Mapping[str, Tensor]) -> Tensor:
        """What the receiver's entry gets, fp32."""
        ...

    def pack_grad(self, grad: Tensor, seed: int) -> dict[str, Tensor]:
        """Its gradient in wire form. ``seed`` draws the dither."""
        ...

    def unpack_grad(self, packed: Mapping[str, Tensor]) -> Tensor:
        """The gradient as the sender's exit gets it, fp32."""
        ...

    def specs(self, sequences: int, seq_len: int) -> dict[str, TensorSpec]:
        """What is on the wire forward for ``sequences`` x ``seq_len`` tokens."""
        ...

    def grad_specs(self, sequences: int, seq_len: int) -> dict[str, TensorSpec]:
        """What is on the wire backward."""
        ...


class PlainBoundary:
    """``none``: fp32 values."""

    def __init__(self, width: int) -> None:
        self._width = width

    def pack(self, crossing: Tensor) -> dict[str, Tensor]:
        """The values themselves."""
        return {"values": crossing.detach()}

    def unpack(self, packed: Mapping[str, Tensor]) -> Tensor:
        """The values themselves."""
        return packed["values"]

    def pack_grad(self, grad: Tensor, seed: int) -> dict[str, Tensor]:
        """The values themselves."""
        return self.pack(grad)

    def unpack_grad(self, packed: Mapping[str, Tensor]) -> Tensor:
        """The values themselves."""
        return self.unpack(packed)

    def specs(self, sequences: int, seq_len: int) -> dict[str, TensorSpec]:
        """One fp32 tensor."""
        return {"values": TensorSpec("F32", (sequences, seq_len, self._width))}

    def grad_specs(self, sequences: int, seq_len: int) -> dict[str, TensorSpec]:
        """One fp32 tensor."""
        return self.specs(sequences, seq_len)


class Int8Boundary(PlainBoundary):
    """``int8``: levels and one scale per token."""

    def pack(self, crossing: Tensor) -> dict[str, Tensor]:
        """int8 levels [B,T,D] and fp32 scales [B,T,1]."""
        levels, scale = quantize_int8(crossing.detach())
        return {"levels": levels, "scale": scale}

    def unpack(self, packed: Mapping[str, Tensor]) -> Tensor:
        """fp32 values [B,T,D]."""
        return dequantize_int8(packed["levels"], packed["scale"])

    def specs(self, sequences: int, seq_len: int) -> dict[str, TensorSpec]:
        """Levels and scales."""
        shape = (sequences, seq_len)
        return {"levels": TensorSpec("I8", (*shape, self._width)), "scale": TensorSpec("F32", (*shape, 1))}


class DigitBoundary:
    """The learned kinds: ``dims`` digits per token each way."""

    def __init__(self, config: BoundaryConfig) -> None:
        self._dims, self._levels = config.dims, config.levels
        self._grad_levels, self._grad_stride = config.grad_levels, config.grad_stride

    def pack(self, crossing: Tensor) -> dict[str, Tensor]:
        """Numbers [B,T,K] as packed digits, and a step per number [K]."""
        values_BTK = crossing.detach()
        spread_K = values_BTK.square().mean((0, 1)).sqrt() if self._dims else values_BTK.new_zeros(0)
        step_K = spread_K * STEPS[self._levels]
        divisor_K = torch.where(step_K > 0, step_K, torch.ones_like(step_K))
        digits_BTK = torch.round(values_BTK / divisor_K + (self._levels - 1) / 2).clamp_(0, self._levels - 1)
        return {"digits": pack_digits(digits_BTK, self._levels), "step": step_K}

    def unpack(self, packed: Mapping[str, Tensor]) -> Tensor:
        """fp32 [B,T,K]."""
        digits_BTK = unpack_digits(packed["digits"], self._levels, self._dims)
        return (digits_BTK - (self._levels - 1) / 2) * packed["step"]

    def pack_grad(self, grad: Tensor, seed: int) -> dict[str, Tensor]:
        """Dithered digits, and a code per token for its scale; of every ``grad_stride`` tokens, the last one's."""
        grad = grad[:, self._grad_stride - 1 :: self._grad_stride]
        steps = self._grad_levels - 1
        peak_BT1 = grad.abs().amax(dim=-1, keepdim=True) if self._dims else grad.new_zeros((*grad.shape[:-1], 1))
        octaves_BT1 = torch.ceil(torch.log2(peak_BT1) * SCALES_PER_OCTAVE)  # -inf where there is no gradient
        code_BT1 = (octaves_BT1 + LARGEST_CODE).clamp_(0, LARGEST_CODE)
        scale_BT1 = _scale(code_BT1)
        share_BTK = grad / torch.where(scale_BT1 > 0, scale_BT1, torch.ones_like(scale_BT1))
        dither = torch.rand(grad.shape, generator=torch.Generator().manual_seed(seed)).to(grad.device)
        digits_BTK = torch.floor((share_BTK + 1) * (steps / 2) + dither).clamp_(0, steps)
        return {"digits": pack_digits(digits_BTK, self._grad_levels), "scale": code_BT1.to(torch.uint8)}

    def unpack_grad(self, packed: Mapping[str, Tensor]) -> Tensor:
        """fp32 [B,T,K], zero where nothing was sent."""
        digits_BTK = unpack_digits(packed["digits"], self._grad_levels, self._dims)
        sent = (digits_BTK * (2 / (self._grad_levels - 1)) - 1.0) * _scale(packed["scale"].to(torch.float32))
        grad = sent.new_zeros(sent.shape[0], sent.shape[1] * self._grad_stride, sent.shape[2])
        grad[:, self._grad_stride - 1 :: self._grad_stride] = sent
        return grad

    def specs(self, sequences: int, seq_len: int) -> dict[str, TensorSpec]:
        """Packed digits and steps."""
        digits = TensorSpec("U8", (sequences, seq_len, packed_width(self._dims, self._levels)))
        return {"digits": digits, "step": TensorSpec("F32", (self._dims,))}

    def grad_specs(self, sequences: int, seq_len: int) -> dict[str, TensorSpec]:
        """Packed digits and scales."""
        shape = (sequences, seq_len // self._grad_stride)
        digits = TensorSpec("U8", (*shape, packed_width(self._dims, self._grad_levels)))
        return {"digits": digits, "scale": TensorSpec("U8", (*shape, 1))}


def _scale(code: Tensor) -> Tensor:
    return torch.where(code > 0, torch.exp2((code - LARGEST_CODE) / SCALES_PER_OCTAVE), torch.zeros_like(code))


def make_boundary(run: RunConfig) -> Boundary:
    """The boundary that the run agreed on."""
    if run.boundary.kind in LEARNED:
        return DigitBoundary(run.boundary)
    return PlainBoundary(run.model.width) if run.boundary.kind == "none" else Int8Boundary(run.model.width)


def bytes_per_token(run: RunConfig) -> float:
    """Bytes of values per token and boundary, activation and gradient together, without token ids and headers."""
    boundary, shape = make_boundary(run), (run.data.sequences, run.model.seq_len)
    return (nbytes(boundary.specs(*shape)) + nbytes(boundary.grad_specs(*shape))) / run.microbatch_tokens


def dither_seed(run: RunConfig, microbatch: MicrobatchId, receiver: int) -> int:
    """The seed with which stage ``receiver`` sends a microbatch's gradient back; an auditor draws the same."""
    return draw(run.seed, "dither", int(microbatch), receiver) >> 1


def rounded(boundary: Boundary, crossing: Tensor) -> Tensor:
    """What the receiver will read, with the gradient of what was rounded: straight through, and without dither."""
    return crossing + (boundary.unpack(boundary.pack(crossing)) - crossing).detach()


class _Roundtrip(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, crossing: Tensor, boundary: Boundary, seed: int) -> Tensor:
        ctx.boundary, ctx.seed = boundary, seed
        return boundary.unpack(boundary.pack(crossing)).clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        boundary: Boundary = ctx.boundary
        return boundary.unpack_grad(boundary.pack_grad(grads[0], ctx.seed)).clone(), None, None


def roundtrip(boundary: Boundary, crossing: Tensor, seed: int) -> Tensor:
    """Cross the boundary inside one process: values forward and gradients backward as the wire would carry them."""
    crossed: Tensor = _Roundtrip.apply(crossing, boundary, seed)  # type: ignore[no-untyped-call]
    return crossed
