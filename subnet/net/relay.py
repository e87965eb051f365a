"""The relay: brings requests to peers that cannot be reached, over connections that these opened themselves.

A peer opens one websocket, signed like any request; from then on, what arrives under its address here
(``RELAY_PREFIX``/HOTKEY/...) goes to it, and its answer back. Not here: the flow over one connection
(``subnet.net.relay_link``), the peer's end (``subnet.net.outbound``), signatures of what is carried: sender and peer
make them for each other, over the path behind the prefix, and a relay can change nothing that they would not see.
Invariants: only a hotkey that the operator admits is served; a body over the cap is refused unread, others are passed
on in parts and never kept; every request has a deadline; a peer that is away is ``Unavailable`` at once; a newer
connection of a hotkey takes the place of the older.
Source: design.md, section 2 (``net/`` moves bytes, decides nothing).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from aiohttp import web

from subnet.errors import DeadlineExceeded, Forbidden, LiquidError, Malformed, Missing, TooLarge, Unavailable
from subnet.log import Event, event
from subnet.net.auth import Verifier
from subnet.net.base import MAX_TARGET_CHARS, RELAY_PREFIX
from subnet.net.frames import ANSWER_HEADER, CHUNK_BYTES, MAX_FRAME_BYTES, SUBPROTOCOL, RequestHead, ResponseHead
from subnet.net.gate import READ_TIMEOUT_S
from subnet.net.quota import Quotas
from subnet.net.relay_link import CLOSE_REPLACED, Link, LinkLimits, Stream
from subnet.net.server import length_of
from subnet.types import Hotkey

SIGNATURE_HEADERS = "x-bittensor-"  # beginning of the headers that are passed on
MAX_HEADER_CHARS = 256  # of one of them; a signature has 130

Admit = Callable[[Hotkey], bool]


@dataclass(frozen=True)
class RelayLimits:
    """What a relay takes. ``request_timeout_s`` bounds everything about one request, the others a part of it."""

    max_body_bytes: int
    max_links: int = 1024  # four times the neurons of a subnet
    request_timeout_s: float = 300.0  # an answer of the largest size at 30 Mbit/s
    read_timeout_s: float = READ_TIMEOUT_S
    stall_timeout_s: float = 30.0  # a caller that takes nothing of its answer for so long has gone
    heartbeat_s: float = 20.0  # a connection is given up when a ping is not answered within half of it
    link: LinkLimits = field(default_factory=LinkLimits)


class Relay:
    """Serves what arrives under ``RELAY_PREFIX``; give it to ``serve``. ``verifier`` is the one of that server."""

    def __init__(self, verifier: Verifier, admit: Admit, limits: RelayLimits, *, quotas: Quotas | None = None) -> None:
        self._verifier = verifier
        self._admit = admit
        self._limits = limits
        self._quotas = Quotas() if quotas is None else quotas
        self._links: dict[Hotkey, Link] = {}

    @property
    def connected(self) -> frozenset[Hotkey]:
        """Who is behind this relay now."""
        return frozenset(self._links)

    async def __call__(self, raw: web.BaseRequest) -> web.StreamResponse:
        """Take a peer's connection, or carry a request; raises ``LiquidError``."""
        target = raw.raw_path
        if target == RELAY_PREFIX:
            return await self._accept(raw)
        hotkey, slash, inner = target.removeprefix(f"{RELAY_PREFIX}/").partition("/")
        if not slash or len(inner) > MAX_TARGET_CHARS:
            raise Missing("There is no such route here.")
        return await self._carry(raw, Hotkey(hotkey), f"/{inner}")

    # --- peers

    async def _accept(self, raw: web.BaseRequest) -> web.StreamResponse:
        hotkey, _ = self._verifier.verify(raw.headers, raw.method, RELAY_PREFIX, b"")
        if not self._admit(hotkey):
            raise Forbidden("This relay serves only miners that are registered.")
        if hotkey not in self._links and len(self._links) >= self._limits.max_links:
            raise Unavailable("This relay is full.")
        socket = web.WebSocketResponse(
            heartbeat=self._limits.heartbeat_s, protocols=(SUBPROTOCOL,), compress=False, max_msg_size=MAX_FRAME_BYTES
        )
        ready = socket.can_prepare(raw)
        if not ready.ok or ready.protocol != SUBPROTOCOL:
            raise Malformed(f"A relay is connected to by a websocket with the protocol {SUBPROTOCOL}.")
        await socket.prepare(raw)
        link, older = Link(hotkey, socket, self._limits.link), self._links.get(hotkey)
        self._links[hotkey] = link
        if older is not None:
            older.close(CLOSE_REPLACED)
        event(Event.RELAY_UP, hotkey=hotkey, is_replaced=older is not None)
        await self._run(link)
        return socket

    async def _run(self, link: Link) -> None:
        reason = "closed"
        try:
            await link.run()
        except Malformed as error:
            reason = str(error)
        finally:
            if self._links.get(link.hotkey) is link:
                del self._links[link.hotkey]
            requests, carried = link.num_requests, link.num_bytes
            event(Event.RELAY_DOWN, hotkey=link.hotkey, reason=reason, num_requests=requests, num_bytes=carried)

    # --- requests

    async def _carry(self, raw: web.BaseRequest, hotkey: Hotkey, target: str) -> web.StreamResponse:
        host, length = str(raw.remote), length_of(raw)
        if length > self._limits.max_body_bytes:
            raise TooLarge(f"A body of {length} bytes is over what this relay carries.")
        link = self._links.get(hotkey)
        if link is None or not self._admit(hotkey):
            raise Unavailable("The peer is not connected to this relay.")
        self._quotas.charge(f"host:{host}", length, self._verifier.now_s())
        head = RequestHead(method=raw.method, target=target, headers=_signature_headers(raw), host=host, length=length)
        deadline = asyncio.get_running_loop().time() + self._limits.request_timeout_s
        with link.stream(host, length) as stream:
            upload = asyncio.ensure_future(self._upload(raw, stream, head))
            try:
                async with asyncio.timeout_at(deadline):
                    answer = await stream.head()
                return await self._answer(raw, stream, answer, deadline)
            except TimeoutError:
                raise DeadlineExceeded("The peer behind this relay did not answer in time.") from None
            finally:
                upload.cancel()  # an answer may come before its request is complete: a refusal

    async def _upload(self, raw: web.BaseRequest, stream: Stream, head: RequestHead) -> None:
        """Pass a request on, part by part, as fast as the peer's connection takes it."""
        left = head.length
        try:
            async with asyncio.timeout(self._limits.read_timeout_s):
                part = await _part(raw, left)
                await stream.send_head(head, part)
                left -= len(part)
                while left:
                    part = await _part(raw, left)
                    await stream.send_part(part)
                    left -= len(part)
        except TimeoutError:
            stream.fail(DeadlineExceeded("The body did not arrive in time."))
        except LiquidError as error:
            stream.fail(error)

    async def _answer(
        self, raw: web.BaseRequest, stream: Stream, head: ResponseHead, deadline: float
    ) -> web.StreamResponse:
        """Pass an answer back, part by part, as fast as the caller reads it."""
        response = web.StreamResponse(status=head.status, headers={ANSWER_HEADER: head.proof[:MAX_HEADER_CHARS]})
        response.content_type, response.content_length = "application/octet-stream", head.length
        left = head.length
        try:
            async with asyncio.timeout_at(deadline):
                await response.prepare(raw)
                while left:
                    part = await stream.part()
                    left -= len(part)
                    async with asyncio.timeout(self._limits.stall_timeout_s):
                        await response.write(part)
        except (LiquidError, TimeoutError) as error:
            event(Event.REQUEST_FAILED, level=logging.DEBUG, path=RELAY_PREFIX, reason=type(error).__name__)
            if raw.transport is not None:
                raw.transport.abort()  # the status is out: only a broken connection says that the rest is missing
        return response


async def _part(raw: web.BaseRequest, left: int) -> bytes:
    """The next part of a caller's body, b"" when there is none left; raises ``Malformed`` when it ends early."""
    if not left:
        return b""
    try:
        part = await raw.content.read(min(left, CHUNK_BYTES))
    except (ConnectionError, web.RequestPayloadError):
        part = b""
    if not part:
        raise Malformed("The body is shorter than its Content-Length.")
    return part


def _signature_headers(raw: web.BaseRequest) -> tuple[tuple[str, str], ...]:
    chosen = [(name, value) for name, value in raw.headers.items() if name.lower().startswith(SIGNATURE_HEADERS)]
    if len({name.lower() for name, _ in chosen}) < len(chosen) or any(
        len(text) > MAX_HEADER_CHARS for _, text in chosen
    ):
        raise Malformed("The headers of a signature are given twice, or too long.")
    return tuple(chosen)
