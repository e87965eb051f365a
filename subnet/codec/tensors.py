"""Tensors as bytes: safetensors, checked against what the receiver expects before a tensor is built.

Not here: quantisation (``subnet.codec.quantize``), envelopes (``subnet.net.messages``). Nothing is ever unpickled.
Invariants: ``unpack`` accepts exactly the names, dtypes and shapes in ``specs``, laid out without gaps, overlaps or
trailing bytes, and only finite floats; ``unpack(pack(x)) == x``; ``pack`` is deterministic.
Source of the format: the safetensors documentation (8-byte little-endian header length, JSON header, buffer).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from safetensors.torch import load, save
from torch import Tensor

from subnet.errors import Malformed, NotFinite, TooLarge
from subnet.types import Digest

DTYPES: dict[str, torch.dtype] = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "I32": torch.int32,
    "I64": torch.int64,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
HEADER_BYTES = 16 * 1024  # our headers: a few tensors and an envelope of under 4 KiB


@dataclass(frozen=True)
class TensorSpec:
    """What one tensor on the wire must be. ``dtype`` is safetensors' name, as in ``DTYPES``."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor's values."""
        return prod(self.shape) * DTYPES[self.dtype].itemsize


def nbytes(specs: Mapping[str, TensorSpec]) -> int:
    """Bytes of all values."""
    return sum(spec.nbytes for spec in specs.values())


def max_body_bytes(specs: Mapping[str, TensorSpec]) -> int:
    """The largest body that may hold tensors of ``specs``."""
    return nbytes(specs) + HEADER_BYTES


def pack(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """One safetensors body; tensors are made contiguous and moved to the CPU."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in sorted(tensors.items())}
    return save(plain, dict(metadata) if metadata else None)


def unpack(body: bytes, specs: Mapping[str, TensorSpec], *, max_bytes: int) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a stranger's body; raises ``TooLarge``, ``Malformed`` and ``NotFinite``."""
    if len(body) > max_bytes:
        raise TooLarge(f"A body of {len(body)} bytes is over the cap of {max_bytes}.")
    metadata, payload_bytes = _checked_header(body, specs)
    if payload_bytes != nbytes(specs):
        raise Malformed("The body's length is not what its tensors need.")
    tensors = load(body)
    for name, tensor in tensors.items():
        if tensor.dtype.is_floating_point and not bool(torch.isfinite(tensor).all()):
            raise NotFinite(f"Tensor {name} holds NaN or infinity.")
    return tensors, metadata


def _checked_header(body: bytes, specs: Mapping[str, TensorSpec]) -> tuple[dict[str, str], int]:
    header, start = _header(body)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise Malformed("The body's metadata is not text.")
    if set(header) != set(specs):
        raise Malformed("The body does not hold exactly the expected tensors.")
    spans: list[tuple[int, int, str]] = []
    for name, spec in specs.items():
        entry = header[name]
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise Malformed(f"Tensor {name} is not described as it must be.")
        if entry["dtype"] != spec.dtype or entry["shape"] != list(spec.shape):
            raise Malformed(f"Tensor {name} must be {spec.dtype} of shape {list(spec.shape)}.")
        if not _is_span(entry["data_offsets"]):
            raise Malformed(f"Tensor {name} has no proper place in the body.")
        spans.append((*entry["data_offsets"], name))
    expected = 0
    for begin, end, name in sorted(spans):
        if (begin, end) != (expected, expected + specs[name].nbytes):
            raise Malformed(f"Tensor {name} overlaps another, or leaves a gap.")
        expected = end
    return metadata, len(body) - start


def _is_span(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(edge) is int for edge in value)


def _header(body: bytes) -> tuple[dict[str, object], int]:
    if len(body) < 8:
        raise Malformed("The body is shorter than a header.")
    length = int.from_bytes(body[:8], "little")
    if length > min(HEADER_BYTES, len(body) - 8):
        raise Malformed("The body's header is too long.")
    try:
        header = json.loads(body[8 : 8 + length])
    except (ValueError, RecursionError):
        raise Malformed("The body's header is not JSON.") from None
    if not isinstance(header, dict):
        raise Malformed("The body's header is not an object.")
    return header, 8 + length


def peek_metadata(body: bytes) -> dict[str, str]:
    """Metadata of a body whose tensors are not looked at; raises ``Malformed``."""
    metadata = _header(body)[0].get("__metadata__", {})
    return metadata if isinstance(metadata, dict) else {}


def tensors_digest(tensors: Mapping[str, Tensor]) -> Digest:
    """Digest over (name, dtype, shape, bytes) of all tensors in the order of their names."""
    hasher = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        plain = tensor.detach().cpu().contiguous()
        hasher.update(f"{name}\0{NAMES[plain.dtype]}\0{list(plain.shape)}\0".encode())
        hasher.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return Digest(hasher.hexdigest())
