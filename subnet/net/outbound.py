"""A peer's end of a relay: one connection that it opens itself, and through which its gate is served.

Not here: the relay (``subnet.net.relay``), the checks of a request (``subnet.net.gate``, the same object that the
peer's own socket uses, so that a request passes once whichever way it comes).
Invariants: a lost connection is opened again with growing pauses, for ever; every answer carries the proof that it is
this peer's; an answer flows no faster than its reader takes it; a peer that was replaced by another program with its
hotkey ends instead of taking turns with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import stamina

from subnet.errors import ConfigError, Forbidden, LiquidError, Malformed, PeerUnreachable, Refused, Unauthorized
from subnet.log import Event, event
from subnet.net.auth import Signer
from subnet.net.base import RELAY_PREFIX, PeerAddress, Response
from subnet.net.frames import (
    CHUNK_BYTES,
    INLINE_BYTES,
    MAX_FRAME_BYTES,
    SUBPROTOCOL,
    WINDOW_BYTES,
    Frame,
    Kind,
    RequestHead,
    ResponseHead,
    answer_bytes,
    decode_frame,
    decode_head,
    encode,
)
from subnet.net.gate import SIGNED_HEADER, Arrival, Gate
from subnet.net.relay_link import CLOSE_REPLACED

MAX_STREAMS = 256  # requests under way; a relay of ours sends half as many


@dataclass(frozen=True)
class Timings:
    """How long a peer waits, in seconds. A connection that lasted ``settled_s`` ends the growing of pauses."""

    connect_timeout_s: float = 10.0
    first_timeout_s: float = 30.0  # until the first connection stands, or the program ends with the reason
    first_pause_s: float = 0.2
    longest_pause_s: float = 15.0
    settled_s: float = 10.0
    heartbeat_s: float = 20.0


@dataclass
class _Incoming:
    """One request under way. ``window`` is how much of its answer may be sent."""

    head: RequestHead
    parts: list[bytes] = field(default_factory=list)
    received: int = 0
    window: int = WINDOW_BYTES
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    def feed(self, part: bytes) -> None:
        self.received += len(part)
        if self.received > self.head.length:
            raise Malformed("A body is longer than its head said.")
        self.parts.append(part)
        self.changed.set()

    def grant(self, num_bytes: int) -> None:
        self.window += num_bytes
        self.changed.set()

    async def wait(self) -> None:
        self.changed.clear()
        await self.changed.wait()

    async def read(self, length: int) -> bytes:
        while self.received < length:
            await self.wait()
        body = b"".join(self.parts)
        self.parts.clear()
        return body


class Outbound:
    """Keeps one peer behind one relay."""

    def __init__(self, gate: Gate, signer: Signer, relay: PeerAddress, timings: Timings) -> None:
        self._gate = gate
        self._signer = signer
        self._relay = relay
        self._timings = timings
        self._incoming: dict[int, _Incoming] = {}
        self._first = asyncio.Event()
        self._trouble: LiquidError = PeerUnreachable("The relay did not answer.")
        self.num_connections = 0

    async def first(self) -> None:
        """Wait until the relay has taken this peer; raises what was in the way after ``first_timeout_s``."""
        try:
            async with asyncio.timeout(self._timings.first_timeout_s):
                await self._first.wait()
        except TimeoutError:
            raise self._trouble from None

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Connect, serve, connect again; raises ``ConfigError`` when another program has taken this one's place."""
        timings, retried = self._timings, (PeerUnreachable, Refused)
        while True:
            async for attempt in stamina.retry_context(
                on=retried,
                attempts=None,
                timeout=None,
                wait_initial=timings.first_pause_s,
                wait_jitter=timings.first_pause_s,
                wait_max=timings.longest_pause_s,
            ):
                with attempt:
                    await self._serve_once(session)

    async def _serve_once(self, session: aiohttp.ClientSession) -> None:
        """One connection from beginning to end; raises ``PeerUnreachable`` if it was a short one."""
        try:
            socket = await self._connect(session)
        except LiquidError as error:
            self._trouble = error
            event(Event.RELAY_DOWN, level=logging.WARNING, relay=self._relay.url, reason=str(error))
            raise
        began_s = asyncio.get_running_loop().time()
        self.num_connections += 1
        event(Event.RELAY_UP, relay=self._relay.url)
        self._first.set()
        reason = "the connection ended"
        try:
            await self._serve(socket)
        except Malformed as error:
            reason = str(error)
        finally:
            self._incoming.clear()
            await socket.close()
        event(Event.RELAY_DOWN, level=logging.WARNING, relay=self._relay.url, reason=reason)
        if socket.close_code == CLOSE_REPLACED:
            raise ConfigError(
                "Another program has connected to the relay with this hotkey.", remedy="Run one miner per hotkey."
            )
        if asyncio.get_running_loop().time() - began_s < self._timings.settled_s:
            raise PeerUnreachable("The relay ended the connection soon after it began.")

    async def _connect(self, session: aiohttp.ClientSession) -> aiohttp.ClientWebSocketResponse:
        headers = self._signer.headers("GET", RELAY_PREFIX, b"", self._relay.hotkey)
        try:
            async with asyncio.timeout(self._timings.connect_timeout_s):
                return await session.ws_connect(
                    self._relay.url,
                    headers=headers,
                    protocols=(SUBPROTOCOL,),
                    heartbeat=self._timings.heartbeat_s,
                    max_msg_size=MAX_FRAME_BYTES,
                    compress=0,
                )
        except aiohttp.WSServerHandshakeError as error:
            kinds: dict[int, type[Refused]] = {401: Unauthorized, 403: Forbidden}
            kind = kinds.get(error.status, PeerUnreachable)
            raise kind(f"The relay refused the connection with status {error.status}.") from None
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise PeerUnreachable(f"The relay cannot be reached: {type(error).__name__}.") from None

    async def _serve(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        tasks: set[asyncio.Task[None]] = set()
        try:
            async for message in socket:
                if message.type is not aiohttp.WSMsgType.BINARY:
                    raise Malformed("A relay speaks in binary frames.")
                frame = decode_frame(message.data)
                if frame.kind is Kind.REQUEST:
                    incoming = self._begin(frame)
                    incoming.task = asyncio.create_task(self._answer(socket, frame.stream, incoming))
                    tasks.add(incoming.task)
                    incoming.task.add_done_callback(tasks.discard)
                else:
                    self._feed(frame)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, frame: Frame) -> _Incoming:
        incoming = _Incoming(decode_head(RequestHead, frame))
        if frame.stream in self._incoming or len(self._incoming) >= MAX_STREAMS:
            raise Malformed("The relay has more requests under way than it may.")
        incoming.feed(frame.body)
        self._incoming[frame.stream] = incoming
        return incoming

    def _feed(self, frame: Frame) -> None:
        incoming = self._incoming.get(frame.stream)
        if incoming is None:
            return  # answered already
        match frame.kind:
            case Kind.BODY:
                incoming.feed(frame.body)
            case Kind.CREDIT:
                incoming.grant(frame.credit())
            case Kind.CANCEL if incoming.task is not None:
                incoming.task.cancel()
            case _:
                raise Malformed("A frame came out of order.")

    async def _answer(self, socket: aiohttp.ClientWebSocketResponse, stream: int, incoming: _Incoming) -> None:
        head = incoming.head
        arrival = Arrival(head.method, head.target, dict(head.headers), head.host, head.length, incoming.read)
        try:
            response = await self._gate.answer(arrival)
            await self._send(socket, stream, incoming, response)
        except ConnectionError:
            pass  # the connection has ended; whoever asked is told by the relay
        finally:
            self._incoming.pop(stream, None)

    async def _send(
        self, socket: aiohttp.ClientWebSocketResponse, stream: int, incoming: _Incoming, response: Response
    ) -> None:
        names = {name.lower(): value for name, value in incoming.head.headers}
        signature, body = names.get(SIGNED_HEADER.lower(), ""), memoryview(response.body)
        if len(body) > INLINE_BYTES:
            signed = await asyncio.to_thread(answer_bytes, signature, response.status, response.body)
        else:
            signed = answer_bytes(signature, response.status, response.body)
        head = ResponseHead(status=response.status, length=len(body), proof=self._signer.sign(signed))
        sent = min(len(body), CHUNK_BYTES)
        await socket.send_bytes(encode(Kind.RESPONSE, stream, body[:sent], head))
        while sent < len(body):
            end = min(sent + CHUNK_BYTES, len(body), incoming.window)
            if end == sent:
                await incoming.wait()
                continue
            await socket.send_bytes(encode(Kind.BODY, stream, body[sent:end]))
            sent = end


@asynccontextmanager
async def behind_relay(
    gate: Gate, signer: Signer, relay: PeerAddress, timings: Timings | None = None
) -> AsyncIterator[Outbound]:
    """Be reached through ``relay`` (its operator's hotkey, and an address that ends in ``RELAY_PREFIX``).

    Raises an exception group with what kept the relay from taking this peer, or with the ``ConfigError`` of ``run``.
    """
    outbound = Outbound(gate, signer, relay, timings or Timings())
    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        task = group.create_task(outbound.run(session))
        await outbound.first()
        yield outbound
        task.cancel()
