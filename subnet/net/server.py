"""The HTTP side of a peer: what arrives at its socket is brought to its gate, the gate's answer goes back.

Not here: checks (``subnet.net.gate``), routes (the handler has them), clients (``subnet.net.client``).
Invariants: a body without a length is refused unread; a stranger's bytes are never echoed; closing takes little longer
than ``SHUTDOWN_S`` at most, even with long polls open.
Source: design.md section 9; aiohttp's low-level server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web

from subnet.errors import LiquidError, Malformed
from subnet.log import Event, event
from subnet.net.auth import Verifier
from subnet.net.base import RELAY_PREFIX, Caps, Handler, Response, refuse
from subnet.net.gate import PUBLIC_PATHS, READ_TIMEOUT_S, SHUTDOWN_S, Arrival, Gate
from subnet.net.quota import Quotas

__all__ = ["SHUTDOWN_S", "Served", "serve"]

KEEPALIVE_S = 75.0  # more than the client's, so that the client closes first
LINGER_S = 1.0  # how long a refused body is read and thrown away, so that its sender sees the answer

RawHandler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@dataclass
class Served:
    """A server that runs."""

    host: str
    port: int
    gate: Gate

    @property
    def num_failed(self) -> int:
        """Answers that a bug of ours spoiled."""
        return self.gate.num_failed


class _Door:
    """Brings what arrives to the gate, or to the relay what is meant for somebody behind it."""

    def __init__(self, gate: Gate, relay: RawHandler | None) -> None:
        self._gate = gate
        self._relay = relay

    async def __call__(self, raw: web.BaseRequest) -> web.StreamResponse:
        target = raw.raw_path
        try:
            if self._relay is not None and (target == RELAY_PREFIX or target.startswith(f"{RELAY_PREFIX}/")):
                return await self._relay(raw)
            response = await self._gate.answer(_arrival(raw))
        except LiquidError as error:
            response = self._gate.refusal(error, target)
        return sent(response)


def sent(response: Response) -> web.Response:
    """An answer as aiohttp sends it."""
    return web.Response(status=response.status, body=response.body, content_type="application/octet-stream")


def _arrival(raw: web.BaseRequest) -> Arrival:
    async def read(length: int) -> bytes:
        try:
            return await raw.content.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError, web.RequestPayloadError):
            raise Malformed("The body is shorter than its Content-Length.") from None

    return Arrival(raw.method, raw.raw_path, raw.headers, str(raw.remote), length_of(raw), read)


def length_of(raw: web.BaseRequest) -> int:
    """Length of a body, as it was declared; raises ``Malformed`` for a body without."""
    if raw.content_length is None and raw.body_exists:
        raise Malformed("A body must come with its Content-Length.")
    return raw.content_length or 0


class _Connection(web.RequestHandler):
    """One connection. What cannot be parsed as HTTP is refused without the excerpt that aiohttp would send back."""

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """A refusal that shows nothing of the input, after which the connection is closed."""
        del message
        event(Event.REQUEST_REFUSED, level=logging.DEBUG, peer=request.remote, reason=type(exc).__name__)
        if request.writer.output_size > 0:
            raise ConnectionError("The answer has begun already.")
        refusal = refuse(Malformed("That is no HTTP/1.1 request."))
        answer = web.Response(status=status, body=refusal.body, content_type="application/octet-stream")
        answer.force_close()
        return answer


class _Server(web.Server):
    """Makes the connections."""

    def __call__(self) -> web.RequestHandler:
        return _Connection(
            self,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]
            keepalive_timeout=KEEPALIVE_S,
            lingering_time=LINGER_S,
            auto_decompress=False,
        )


@asynccontextmanager
async def serve(
    handler: Handler,
    verifier: Verifier,
    host: str,
    port: int,
    caps: Caps | None = None,
    *,
    public: Collection[str] = PUBLIC_PATHS,
    quotas: Quotas | None = None,
    read_timeout_s: float = READ_TIMEOUT_S,
    relay: RawHandler | None = None,
) -> AsyncIterator[Served]:
    """Serve until the block ends. ``port`` 0 takes a free one; a port in use raises ``OSError``.

    ``relay`` gets what arrives under ``RELAY_PREFIX``.
    """
    gate = Gate(handler, verifier, caps, public=public, quotas=quotas, read_timeout_s=read_timeout_s)
    runner = web.ServerRunner(
        _Server(_Door(gate, relay), handler_cancellation=True), shutdown_timeout=0.05
    )  # what may still be done is waited for in `finish`
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        bound = runner.addresses[0]
        yield Served(bound[0], bound[1], gate)
    finally:
        for site in runner.sites:
            await site.stop()
        await gate.finish()
        await runner.cleanup()
