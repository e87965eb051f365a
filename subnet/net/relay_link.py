"""A relay's end of one peer's connection: many requests under way at a time, each with its own flow.

Not here: who may connect, callers, HTTP (``subnet.net.relay``); the peer's end (``subnet.net.outbound``).
Invariants: of an answer, no more than ``WINDOW_BYTES`` lie here unread, so that a slow reader holds up only itself; a
peer that sends more than it was granted loses its connection; when the connection ends, every request that was under
way fails at once.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from aiohttp import WSMsgType, web

from subnet.errors import LiquidError, Malformed, PeerUnreachable, Unavailable
from subnet.net.base import MAX_RESPONSE_BYTES
from subnet.net.frames import (
    MAX_FRAME_BYTES,
    WINDOW_BYTES,
    Frame,
    Kind,
    RequestHead,
    ResponseHead,
    decode_frame,
    decode_head,
    encode,
    encode_credit,
)
from subnet.types import Hotkey

CLOSE_REPLACED = 4001  # the same hotkey has connected again (application codes begin at 4000: RFC 6455, section 7.4.2)
CLOSE_PROTOCOL = 1002
CREDIT_BYTES = WINDOW_BYTES // 4  # read before more is granted: fewer frames, and the flow never runs dry


@dataclass(frozen=True)
class LinkLimits:
    """What one peer may have under way. ``per_host`` leaves room for others when one host takes all it can."""

    max_requests: int = 128
    max_requests_per_host: int = 96
    max_bytes: int = 256 * 1024 * 1024  # of bodies, as declared; the peer keeps them in memory


class Stream:
    """One request under way."""

    def __init__(self, link: Link, number: int) -> None:
        self._link = link
        self._number = number
        self._head: ResponseHead | None = None
        self._parts: deque[bytes] = deque()
        self._arrived = asyncio.Event()
        self._failure: LiquidError | None = None
        self._received = self._read = self._credited = 0

    @property
    def is_complete(self) -> bool:
        """Whether the whole answer is here."""
        return self._head is not None and self._received == self._head.length

    async def send_head(self, head: RequestHead, first: bytes) -> None:
        """Begin the request."""
        await self._link.send(encode(Kind.REQUEST, self._number, first, head))

    async def send_part(self, part: bytes) -> None:
        """The next part of its body."""
        await self._link.send(encode(Kind.BODY, self._number, part))

    def fail(self, error: LiquidError) -> None:
        """End the request; what has arrived can still be read."""
        self._failure = self._failure or error
        self._arrived.set()

    def feed(self, frame: Frame) -> None:
        """What the peer sent; raises ``Malformed`` when it broke the rules."""
        match frame.kind:
            case Kind.RESPONSE if self._head is None:
                head = decode_head(ResponseHead, frame)
                if not 200 <= head.status <= 599 or head.length > MAX_RESPONSE_BYTES:
                    raise Malformed("That is no answer that a relay carries.")
                self._head = head
            case Kind.BODY if self._head is not None:
                pass
            case Kind.CANCEL:
                self.fail(PeerUnreachable("The peer gave this request up."))
                return
            case _:
                raise Malformed("A frame came out of order.")
        self._received += len(frame.body)
        if self._received > min(self._head.length, WINDOW_BYTES + self._credited):
            raise Malformed("The peer sent more than it was granted.")
        if frame.body:
            self._parts.append(frame.body)
        self._arrived.set()

    async def head(self) -> ResponseHead:
        """The answer's head; raises what ended the request."""
        while self._head is None:
            await self._wait()
        return self._head

    async def part(self) -> bytes:
        """The next part of the answer's body; raises what ended the request."""
        while not self._parts:
            await self._wait()
        part = self._parts.popleft()
        self._read += len(part)
        assert self._head is not None
        is_due = self._read - self._credited >= CREDIT_BYTES
        if is_due and self._head.length > WINDOW_BYTES + self._credited:
            granted, self._credited = self._read - self._credited, self._read
            await self._link.send(encode_credit(self._number, granted))
        return part

    async def _wait(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._arrived.clear()
        await self._arrived.wait()


class Link:
    """One peer's connection. ``num_requests`` and ``num_bytes`` (both ways) count what it carried."""

    def __init__(self, hotkey: Hotkey, socket: web.WebSocketResponse, limits: LinkLimits) -> None:
        self.hotkey = hotkey
        self.num_requests = 0
        self.num_bytes = 0
        self._socket = socket
        self._limits = limits
        self._streams: dict[int, Stream] = {}
        self._hosts: Counter[str] = Counter()
        self._bytes = 0
        self._stray_bytes = 0  # that may still come for requests whose callers have left
        self._is_open = True
        self._tasks: set[asyncio.Task[object]] = set()

    async def run(self) -> None:
        """Take the peer's frames until the connection ends; raises ``Malformed`` when it ends for a broken rule."""
        try:
            async for message in self._socket:
                if message.type is not WSMsgType.BINARY:
                    raise Malformed("A relay is spoken to in binary frames.")
                self._feed(decode_frame(message.data))
        except Malformed:
            self.close(CLOSE_PROTOCOL)
            raise
        finally:
            self._is_open = False
            for stream in self._streams.values():
                stream.fail(PeerUnreachable("The peer's connection to its relay was lost."))

    def _feed(self, frame: Frame) -> None:
        self.num_bytes += len(frame.body)
        stream = self._streams.get(frame.stream)
        if stream is not None:
            stream.feed(frame)
            return
        self._stray_bytes -= len(frame.body)
        if self._stray_bytes < 0:
            raise Malformed("The peer sends what nobody asked for.")

    @contextmanager
    def stream(self, host: str, length: int) -> Iterator[Stream]:
        """Room for one request from ``host`` with a body of ``length`` bytes; raises ``Unavailable`` if there is none.

        When the block ends before the answer is here, the peer is told that nobody waits for it.
        """
        limits = self._limits
        if not self._is_open:
            raise Unavailable("The peer's connection to its relay was lost.")
        if len(self._streams) >= limits.max_requests or self._hosts[host] >= limits.max_requests_per_host:
            raise Unavailable("Too many requests are under way to this peer.")
        if self._bytes and self._bytes + length > limits.max_bytes:
            raise Unavailable("Too many bytes are under way to this peer.")
        self.num_requests += 1
        number = self.num_requests % (1 << 32)
        stream = self._streams[number] = Stream(self, number)
        self._hosts[host] += 1
        self._bytes += length
        try:
            yield stream
        finally:
            del self._streams[number]
            self._hosts[host] -= 1
            self._hosts += Counter()  # drops hosts that have nothing under way
            self._bytes -= length
            if not stream.is_complete and self._is_open:
                self._stray_bytes += WINDOW_BYTES + MAX_FRAME_BYTES
                self._spawn(self._cancel(number))

    async def _cancel(self, number: int) -> None:
        with suppress(PeerUnreachable):  # with the connection, the request has ended as well
            await self.send(encode(Kind.CANCEL, number))

    async def send(self, frame: bytes) -> None:
        """Write one frame, no faster than the connection takes it; raises ``PeerUnreachable``."""
        try:
            await self._socket.send_bytes(frame)
        except (ConnectionError, RuntimeError):
            raise PeerUnreachable("The peer's connection to its relay was lost.") from None
        self.num_bytes += len(frame)

    def close(self, code: int) -> None:
        """Begin to close; ``run`` ends."""
        self._is_open = False
        self._spawn(self._socket.close(code=code))

    def _spawn(self, work: object) -> None:
        task: asyncio.Task[object] = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
