"""The trust boundary for tensors: a stranger's body is checked against the specs before a tensor is built."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from subnet.codec.quantize import dequantize_int8, quantize_int8
from subnet.codec.tensors import TensorSpec, max_body_bytes, pack, peek_metadata, tensors_digest, unpack
from subnet.errors import Malformed, NotFinite, Refused, TooLarge

SPECS = {"a": TensorSpec("F32", (2, 3)), "b": TensorSpec("I8", (4,))}
GOOD = {"a": torch.arange(6, dtype=torch.float32).view(2, 3), "b": torch.arange(4, dtype=torch.int8)}


def body_of(header: Any, payload: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + payload


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


A, B = entry("F32", [2, 3], 0, 24), entry("I8", [4], 24, 28)


def test_what_was_packed_is_unpacked_with_its_metadata() -> None:
    body = pack(GOOD, {"envelope": "text"})
    tensors, metadata = unpack(body, SPECS, max_bytes=max_body_bytes(SPECS))
    assert metadata == {"envelope": "text"} == peek_metadata(body)
    assert all(torch.equal(tensors[name], GOOD[name]) for name in GOOD)
    assert pack(GOOD, {"envelope": "text"}) == body
    assert tensors_digest(tensors) == tensors_digest(dict(reversed(GOOD.items())))


def test_the_hand_made_body_is_accepted_so_that_its_spoilt_twins_mean_something() -> None:
    assert set(unpack(body_of({"a": A, "b": B}, bytes(28)), SPECS, max_bytes=1000)[0]) == {"a", "b"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff" * 8,
        (1 << 60).to_bytes(8, "little") + bytes(100),
        body_of(b"not json", bytes(28)),
        body_of(b"[" * 5000, bytes(28)),
        body_of([], bytes(28)),
        body_of({"a": A}, bytes(24)),
        body_of({"a": A, "b": B, "c": entry("I8", [0], 28, 28)}, bytes(28)),
        body_of({"a": entry("F32", [3, 2], 0, 24), "b": B}, bytes(28)),
        body_of({"a": entry("I32", [2, 3], 0, 24), "b": B}, bytes(28)),
        body_of({"a": A, "b": entry("I8", [4], 20, 24)}, bytes(28)),
        body_of({"a": A, "b": entry("I8", [4], 25, 29)}, bytes(29)),
        body_of({"a": A, "b": entry("I8", [4], -4, 0)}, bytes(28)),
        body_of({"a": A, "b": {**B, "more": 1}}, bytes(28)),
        body_of({"a": A, "b": {**B, "data_offsets": "x"}}, bytes(28)),
        body_of({"a": A, "b": B, "__metadata__": {"x": 1}}, bytes(28)),
        body_of({"a": A, "b": B}, bytes(27)),
        body_of({"a": A, "b": B}, bytes(29)),
    ],
)
def test_spoilt_bodies_are_malformed(body: bytes) -> None:
    with pytest.raises(Malformed):
        unpack(body, SPECS, max_bytes=100_000)


def test_a_body_over_the_cap_is_too_large() -> None:
    with pytest.raises(TooLarge):
        unpack(pack(GOOD), SPECS, max_bytes=10)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(NotFinite):
        unpack(pack({**GOOD, "a": torch.full((2, 3), value)}), SPECS, max_bytes=100_000)


def test_every_refusal_says_what_to_do() -> None:
    with pytest.raises(Refused) as caught:
        unpack(b"", SPECS, max_bytes=10)
    assert caught.value.advice


def test_int8_is_within_half_a_level_and_keeps_zeros() -> None:
    values = torch.randn(3, 5, 16, generator=torch.manual_seed(0))
    values[0, 0] = 0.0
    levels, scale = quantize_int8(values)
    assert torch.all((dequantize_int8(levels, scale) - values).abs() <= scale / 2 + 1e-6)
    assert torch.equal(levels[0, 0], torch.zeros(16, dtype=torch.int8))
    assert torch.isfinite(scale).all()
