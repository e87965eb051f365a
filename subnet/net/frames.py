"""What a relay and a peer behind it say to each other: frames, and the proof that an answer is the peer's own.

A frame is one binary websocket message: kind, number of the request that it is about, payload. Many requests are under
way at a time; an answer flows only as far as its reader granted credit. Not here: sockets (``subnet.net.relay`` and
``subnet.net.outbound``), the meaning of requests.
Invariants: decoding is strict and bounded; ``decode_frame(encode(...))`` is the identity; an answer's proof covers the
request's signature, the status and the whole body, so that it fits no other request.
Source: the streams and windows of HTTP/2 (RFC 9113, sections 5.1 and 5.2), without its priorities and compression.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

from subnet.errors import Malformed, TooLarge
from subnet.hashing import sha256
from subnet.records import Record, decode

SUBPROTOCOL = "liquid-relay-1"  # both sides of the websocket must name it
CHUNK_BYTES = 128 * 1024  # of a body in one frame; larger ones gain nothing on loopback, and delay their neighbours
WINDOW_BYTES = 1024 * 1024  # of an answer that may be under way unread: 100 Mbit/s at 80 ms
MAX_HEAD_BYTES = 16 * 1024  # a target and six headers are about 3 KiB at their longest
MAX_FRAME_BYTES = CHUNK_BYTES + MAX_HEAD_BYTES + 16
ANSWER_HEADER = "X-Liquid-Answer"  # carries the proof from the relay to the caller
INLINE_BYTES = 4 * 1024 * 1024  # answers over this are hashed in a thread; these take under 20 ms
_CONTEXT = b"liquid-answer-1\n"
_START, _COUNT, _HEAD = struct.Struct(">BI"), struct.Struct(">I"), struct.Struct(">H")

H = TypeVar("H", bound=Record)


class Kind(IntEnum):
    """What a frame is."""

    REQUEST = 1  # relay to peer: a ``RequestHead`` and the first part of the body
    RESPONSE = 2  # peer to relay: a ``ResponseHead`` and the first part of the body
    BODY = 3  # either way: the next part of a body; its head says how much there is
    CREDIT = 4  # relay to peer: so many more bytes of the answer may be sent
    CANCEL = 5  # either way: nobody waits for this request any more


class RequestHead(Record):
    """A request without its body. ``headers`` are those of its signature, ``host`` is whom the relay had it from."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    host: str
    length: int


class ResponseHead(Record):
    """An answer without its body. ``proof``: the peer's signature of ``answer_bytes``."""

    status: int
    length: int
    proof: str


@dataclass(frozen=True, slots=True)
class Frame:
    """One decoded frame. ``head`` is empty and ``body`` is for those kinds that have one."""

    kind: Kind
    stream: int
    head: bytes = b""
    body: bytes = b""

    def credit(self) -> int:
        """Bytes that a ``CREDIT`` grants; raises ``Malformed``."""
        if len(self.body) != _COUNT.size:
            raise Malformed("A credit is one number.")
        granted: int = _COUNT.unpack(self.body)[0]
        return granted


def encode(kind: Kind, stream: int, body: bytes | memoryview = b"", head: Record | None = None) -> bytes:
    """One frame."""
    start = _START.pack(kind, stream)
    if head is None:
        return b"".join((start, body))
    plain = head.encoded()
    if len(plain) > MAX_HEAD_BYTES:
        raise TooLarge("The head of this request is over what a relay carries.")
    return b"".join((start, _HEAD.pack(len(plain)), plain, body))


def encode_credit(stream: int, num_bytes: int) -> bytes:
    """A ``CREDIT``."""
    return encode(Kind.CREDIT, stream, _COUNT.pack(num_bytes))


def decode_frame(data: bytes) -> Frame:
    """A frame from the other side's bytes; raises ``Malformed``."""
    if not _START.size <= len(data) <= MAX_FRAME_BYTES:
        raise Malformed("That is no frame of a relay.")
    number, stream = _START.unpack_from(data)
    try:
        kind = Kind(number)
    except ValueError:
        raise Malformed("That is no frame of a relay.") from None
    rest = data[_START.size :]
    if kind not in (Kind.REQUEST, Kind.RESPONSE):
        return Frame(kind, stream, body=rest)
    if len(rest) < _HEAD.size:
        raise Malformed("A frame of a relay is cut short.")
    end = _HEAD.size + _HEAD.unpack_from(rest)[0]
    if len(rest) < end:
        raise Malformed("A frame of a relay is cut short.")
    return Frame(kind, stream, rest[_HEAD.size : end], rest[end:])


def decode_head(kind: type[H], frame: Frame) -> H:
    """The typed head of a frame; raises ``Malformed``, also for a length that its first part exceeds."""
    head = decode(kind, frame.head)
    length = getattr(head, "length", 0)
    if not 0 <= len(frame.body) <= length:
        raise Malformed("The first part of a body is longer than the whole.")
    return head


def answer_bytes(request_signature: str, status: int, body: bytes) -> bytes:
    """What a peer behind a relay signs of each answer."""
    return _CONTEXT + f"{request_signature}\n{status}\n{sha256(body)}".encode()
