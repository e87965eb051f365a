"""Frames survive their travel, and whatever is no frame is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from subnet.errors import Malformed, TooLarge
from subnet.net.frames import (
    MAX_FRAME_BYTES,
    MAX_HEAD_BYTES,
    Kind,
    RequestHead,
    ResponseHead,
    answer_bytes,
    decode_frame,
    decode_head,
    encode,
    encode_credit,
)

HEAD = RequestHead(method="POST", target="/v1/forward?a=b", headers=(("X-A", "b"),), host="10.0.0.1", length=5)


@given(st.sampled_from([Kind.BODY, Kind.CANCEL]), st.integers(0, (1 << 32) - 1), st.binary(max_size=64))
def test_a_part_survives(kind: Kind, stream: int, body: bytes) -> None:
    frame = decode_frame(encode(kind, stream, body))
    assert (frame.kind, frame.stream, frame.body) == (kind, stream, body)


@given(st.integers(0, (1 << 32) - 1), st.binary(max_size=5))
def test_a_head_survives_with_the_first_part(stream: int, first: bytes) -> None:
    frame = decode_frame(encode(Kind.REQUEST, stream, first, HEAD))
    assert decode_head(RequestHead, frame) == HEAD
    assert (frame.stream, frame.body) == (stream, first)


@given(st.binary(max_size=200))
def test_what_is_no_frame_is_refused_and_nothing_else_is_raised(data: bytes) -> None:
    try:
        frame = decode_frame(data)
        if frame.kind in (Kind.REQUEST, Kind.RESPONSE):
            decode_head(ResponseHead, frame)
    except Malformed:
        pass


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01\x00\x00\x00",
        b"\x09\x00\x00\x00\x01",
        b"\x01\x00\x00\x00\x01\x00",
        b"\x01\x00\x00\x00\x01\x00\x05{}",
        b"\x03\x00\x00\x00\x01" + bytes(MAX_FRAME_BYTES),
    ],
)
def test_cut_or_oversized_frames_are_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        decode_frame(data)


def test_a_first_part_longer_than_the_whole_is_refused() -> None:
    for head, first in ((HEAD, b"123456"), (HEAD.model_copy(update={"length": -1}), b"")):
        with pytest.raises(Malformed):
            decode_head(RequestHead, decode_frame(encode(Kind.REQUEST, 1, first, head)))


def test_a_head_over_its_cap_is_not_sent() -> None:
    with pytest.raises(TooLarge):
        encode(Kind.REQUEST, 1, b"", HEAD.model_copy(update={"target": "/" + "a" * MAX_HEAD_BYTES}))


def test_credit_is_one_number() -> None:
    assert decode_frame(encode_credit(3, 70_000)).credit() == 70_000
    with pytest.raises(Malformed):
        decode_frame(encode(Kind.CREDIT, 3, b"xyz")).credit()


def test_a_proof_covers_request_status_and_body() -> None:
    variants = [("0xa", 200, b"x"), ("0xb", 200, b"x"), ("0xa", 201, b"x"), ("0xa", 200, b"y")]
    assert len({answer_bytes(*variant) for variant in variants}) == len(variants)
