"""A relay with a peer behind it, and relays that lie, for the tests of what each may do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from subnet.net.auth import Verifier, dev_signer
from subnet.net.base import RELAY_PREFIX, Handler, PeerAddress, relay_url
from subnet.net.client import HttpPeers
from subnet.net.frames import SUBPROTOCOL, RequestHead, ResponseHead
from subnet.net.outbound import Outbound, Timings, behind_relay
from subnet.net.relay import Relay, RelayLimits
from subnet.net.relay_link import Stream
from subnet.net.server import Served, serve
from subnet.types import Hotkey
from tests.attacks.wire import CAP_BYTES

OPERATOR, PEER = dev_signer("//relay"), dev_signer("//behind")
LIMITS = RelayLimits(max_body_bytes=2 * CAP_BYTES)
# Nothing here waits for these to pass, but for a connection that is to be refused.
SWIFT = Timings(first_timeout_s=0.5, first_pause_s=0.01, longest_pause_s=0.05, settled_s=0.0)


@dataclass
class Scene:
    """Who is where. ``to`` is the peer's address behind the relay, ``direct`` its own."""

    relay: Relay
    hub: Served
    there: Served
    peers: HttpPeers
    at: PeerAddress
    to: PeerAddress
    direct: PeerAddress
    stack: AsyncExitStack
    links: list[Outbound] = field(default_factory=list)

    async def connect(self) -> Outbound:
        """Let the peer connect to the relay, until the scene ends."""
        link = await self.stack.enter_async_context(behind_relay(self.there.gate, PEER, self.at, SWIFT))
        self.links.append(link)
        return link

    async def raw_link(self, session: aiohttp.ClientSession) -> aiohttp.ClientWebSocketResponse:
        """A connection in the peer's name that says whatever the test says."""
        headers = PEER.headers("GET", RELAY_PREFIX, b"", OPERATOR.hotkey)
        return await session.ws_connect(self.at.url, headers=headers, protocols=(SUBPROTOCOL,))


@asynccontextmanager
async def scene(
    handler: Handler,
    *,
    limits: RelayLimits = LIMITS,
    kind: type[Relay] = Relay,
    admit: Callable[[Hotkey], bool] = lambda hotkey: True,
) -> AsyncIterator[Scene]:
    """A relay and a peer that has not connected to it yet."""
    verifier = Verifier(OPERATOR.hotkey)
    relay = kind(verifier, admit, limits)
    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(serve(handler, verifier, "127.0.0.1", 0, relay=relay))
        caps = {"/v1/forward": CAP_BYTES}
        there = await stack.enter_async_context(serve(handler, Verifier(PEER.hotkey), "127.0.0.1", 0, caps))
        peers = HttpPeers(dev_signer("//caller"))
        stack.push_async_callback(peers.aclose)
        url = f"http://127.0.0.1:{hub.port}{RELAY_PREFIX}"
        yield Scene(
            relay=relay,
            hub=hub,
            there=there,
            peers=peers,
            at=PeerAddress(OPERATOR.hotkey, url),
            to=PeerAddress(PEER.hotkey, relay_url(url, PEER.hotkey)),
            direct=PeerAddress(PEER.hotkey, f"http://127.0.0.1:{there.port}"),
            stack=stack,
        )


def flipped(part: bytes) -> bytes:
    """``part`` with one bit changed."""
    return part[:-1] + bytes([part[-1] ^ 1]) if part else part


class _FlippedRequest:
    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def send_head(self, head: RequestHead, first: bytes) -> None:
        await self._stream.send_head(head, flipped(first))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _FlippedAnswer:
    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def part(self) -> bytes:
        return flipped(await self._stream.part())


class ChangesRequests(Relay):
    """Changes a bit of each request's body."""

    async def _upload(self, raw: web.BaseRequest, stream: Any, head: RequestHead) -> None:
        await super()._upload(raw, _FlippedRequest(stream), head)  # type: ignore[arg-type]


class ChangesPaths(Relay):
    """Brings each request to another route than the one it was signed for."""

    async def _upload(self, raw: web.BaseRequest, stream: Stream, head: RequestHead) -> None:
        await super()._upload(raw, stream, head.model_copy(update={"target": "/v1/backward"}))


class ChangesAnswers(Relay):
    """Changes a bit of each answer's body."""

    async def _answer(
        self, raw: web.BaseRequest, stream: Any, head: ResponseHead, deadline: float
    ) -> web.StreamResponse:
        return await super()._answer(raw, _FlippedAnswer(stream), head, deadline)  # type: ignore[arg-type]


class RepeatsAnswers(Relay):
    """Gives the first answer that it saw, with its proof, to whatever is asked later."""

    first: ResponseHead | None = None
    body = b""

    async def _answer(
        self, raw: web.BaseRequest, stream: Any, head: ResponseHead, deadline: float
    ) -> web.StreamResponse:
        if self.first is None:
            self.first, self.body = head, await stream.part()
        await asyncio.sleep(0)
        proof = {"X-Liquid-Answer": self.first.proof}
        return web.Response(status=self.first.status, body=self.body, headers=proof)
