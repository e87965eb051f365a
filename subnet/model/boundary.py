"""The boundary: what crosses between two stages, as tensors on the wire.

Back ends: ``none`` (fp32 as it is) and ``int8`` (symmetric, one scale per token, activations and gradients alike).
``roundtrip`` is the same arithmetic inside one process, so that a network and its one-process twin agree to the bit.
Not here: serialisation (``subnet.codec.tensors``).
Invariant: ``unpack(pack(x))`` has the shape of ``x``; the backward of ``roundtrip`` is ``unpack_grad(pack_grad(g))``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from subnet.codec.quantize import dequantize_int8, quantize_int8
from subnet.codec.tensors import TensorSpec, nbytes
from subnet.config import RunConfig


class Boundary(Protocol):
    """One back end. Tensors on the wire have the names, dtypes and shapes of ``specs``."""

    def pack(self, hidden_BTD: Tensor) -> dict[str, Tensor]:
        """An activation in wire form."""
        ...

    def unpack(self, packed: Mapping[str, Tensor]) -> Tensor:
        """The activation [B,T,D] as the receiver sees it."""
        ...

    def specs(self, sequences: int, seq_len: int, width: int) -> dict[str, TensorSpec]:
        """What is on the wire for ``sequences`` x ``seq_len`` tokens, either way."""
        ...


class PlainBoundary:
    """``none``: fp32 values."""

    def pack(self, hidden_BTD: Tensor) -> dict[str, Tensor]:
        """The values themselves."""
        return {"values": hidden_BTD.detach()}

    def unpack(self, packed: Mapping[str, Tensor]) -> Tensor:
        """The values themselves."""
        return packed["values"]

    def specs(self, sequences: int, seq_len: int, width: int) -> dict[str, TensorSpec]:
        """One fp32 tensor."""
        return {"values": TensorSpec("F32", (sequences, seq_len, width))}


class Int8Boundary:
    """``int8``: levels and one scale per token."""

    def pack(self, hidden_BTD: Tensor) -> dict[str, Tensor]:
        """int8 levels [B,T,D] and fp32 scales [B,T,1]."""
        levels, scale = quantize_int8(hidden_BTD.detach())
        return {"levels": levels, "scale": scale}

    def unpack(self, packed: Mapping[str, Tensor]) -> Tensor:
        """fp32 values [B,T,D]."""
        return dequantize_int8(packed["levels"], packed["scale"])

    def specs(self, sequences: int, seq_len: int, width: int) -> dict[str, TensorSpec]:
        """Levels and scales."""
        shape = (sequences, seq_len)
        return {"levels": TensorSpec("I8", (*shape, width)), "scale": TensorSpec("F32", (*shape, 1))}


def make_boundary(run: RunConfig) -> Boundary:
    """The boundary that the run agreed on."""
    return PlainBoundary() if run.boundary.kind == "none" else Int8Boundary()


def bytes_per_token(boundary: Boundary, width: int) -> float:
    """Bytes of values per token, activation and gradient together, without token ids and headers."""
    return 2.0 * nbytes(boundary.specs(1, 1, width))


class _Roundtrip(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_BTD: Tensor, boundary: Boundary) -> Tensor:
        ctx.boundary = boundary
        return boundary.unpack(boundary.pack(hidden_BTD)).clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        boundary: Boundary = ctx.boundary
        return boundary.unpack(boundary.pack(grads[0])).clone(), None


def roundtrip(boundary: Boundary, hidden_BTD: Tensor) -> Tensor:
    """Cross the boundary inside one process: values forward and gradients backward as the wire would carry them."""
    crossed: Tensor = _Roundtrip.apply(hidden_BTD, boundary)  # type: ignore[no-untyped-call]
    return crossed
