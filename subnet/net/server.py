"""The HTTP side of a peer: size before reading, signature before parsing, then the handler.

Not here: routes (the handler has them), clients (``subnet.net.client``).
Invariants: a body over its path's cap is never read into memory; an unsigned request reaches the handler only for a GET
of a public path; a stranger's bytes are never echoed; every read has a deadline; closing takes no longer than
``SHUTDOWN_S`` even with long polls open.
Source: design.md section 9; aiohttp's low-level server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from subnet.errors import DeadlineExceeded, LiquidError, Malformed, TooLarge
from subnet.log import Event, event
from subnet.net.auth import Verifier
from subnet.net.base import ANONYMOUS, Caps, Handler, Request, Response, cap_of, refuse, split_target

READ_TIMEOUT_S = 30.0  # for a whole body; a slower upload is a stalled one at every preset's sizes
SHUTDOWN_S = 0.5
PUBLIC_PATHS = frozenset({"/v1/run", "/v1/ledger", "/v1/status", "/v1/health"})
SIGNED_HEADER = "X-Bittensor-Signature"


@dataclass
class Served:
    """A server that runs. ``num_failed`` counts answers that a bug of ours spoiled."""

    host: str
    port: int
    num_failed: int = 0
    tasks: set[asyncio.Task[Response]] = field(default_factory=set)


class _Gate:
    """What stands between the socket and the handler."""

    def __init__(self, handler: Handler, verifier: Verifier, caps: Caps, public: Collection[str]) -> None:
        self._handler = handler
        self._verifier = verifier
        self._caps = caps
        self._public = frozenset(public)
        self.served = Served("", 0)

    async def __call__(self, raw: web.BaseRequest) -> web.StreamResponse:
        try:
            response = await self._answer(raw)
        except LiquidError as error:
            level = logging.DEBUG if error.retryable or error.status in (404, 409) else logging.INFO
            event(Event.REQUEST_REFUSED, level=level, path=raw.rel_url.path[:80], code=error.code)
            response = refuse(error)
        except Exception:
            self.served.num_failed += 1
            event(Event.REQUEST_FAILED, level=logging.ERROR, exc_info=True, path=raw.rel_url.path[:80])
            response = refuse(LiquidError("This side failed; the fault is logged there."))
        return web.Response(status=response.status, body=response.body, content_type="application/octet-stream")

    async def _answer(self, raw: web.BaseRequest) -> Response:
        target = raw.raw_path
        path, query = split_target(target)
        body = await self._body(raw, cap_of(self._caps, path))
        if raw.method == "GET" and path in self._public and SIGNED_HEADER not in raw.headers:
            request = Request(ANONYMOUS, "GET", path, query, body, None)
        else:
            sender, stamp = self._verifier.verify(raw.headers, raw.method, target, body)
            request = Request(sender, raw.method, path, query, body, stamp)
        if raw.method == "GET":
            return await self._handler(request)
        # Whoever asked may leave; what was asked is done to its end, so that nothing is left half changed.
        task = asyncio.ensure_future(self._handler(request))
        self.served.tasks.add(task)
        task.add_done_callback(self.served.tasks.discard)
        return await asyncio.shield(task)

    async def _body(self, raw: web.BaseRequest, cap_bytes: int) -> bytes:
        length = raw.content_length
        if length is None and raw.body_exists:
            raise Malformed("A body must come with its Content-Length.")
        if length is not None and length > cap_bytes:
            raise TooLarge(f"A body of {length} bytes is over this path's cap of {cap_bytes}.")
        if not length:
            return b""
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                return await raw.content.readexactly(length)
        except TimeoutError:
            raise DeadlineExceeded("The body did not arrive in time.") from None
        except asyncio.IncompleteReadError:
            raise Malformed("The body is shorter than its Content-Length.") from None


@asynccontextmanager
async def serve(
    handler: Handler,
    verifier: Verifier,
    host: str,
    port: int,
    caps: Caps | None = None,
    *,
    public: Collection[str] = PUBLIC_PATHS,
) -> AsyncIterator[Served]:
    """Serve until the block ends. ``port`` 0 takes a free one; a port in use raises ``OSError``."""
    gate = _Gate(handler, verifier, caps or {}, public)
    runner = web.ServerRunner(web.Server(gate, access_log=None), shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        gate.served.host, gate.served.port = runner.addresses[0][:2]
        yield gate.served
    finally:
        for task in list(gate.served.tasks):
            task.cancel()
        await asyncio.gather(*gate.served.tasks, return_exceptions=True)
        await runner.cleanup()
