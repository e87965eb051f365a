"""The HTTP side of a peer: size before reading, signature before parsing, then the handler.

Not here: routes (the handler has them), clients (``subnet.net.client``).
Invariants: a body over its path's cap is never read into memory; an unsigned request reaches the handler only for a GET
of a public path; a stranger's bytes are never echoed; every read has a deadline, and what is being read at one time is
bounded; a GET ends with its caller, anything else runs to its end; closing takes little longer than ``SHUTDOWN_S`` at
most, even with long polls open.
Source: design.md section 9; aiohttp's low-level server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from subnet.errors import DeadlineExceeded, LiquidError, Malformed, TooLarge, Unauthorized, Unavailable
from subnet.log import Event, event
from subnet.net.auth import Verifier
from subnet.net.base import ANONYMOUS, DEFAULT_CAP_BYTES, Caps, Handler, Request, Response, cap_of, refuse, split_target
from subnet.net.quota import Quotas

READ_TIMEOUT_S = 30.0  # for a whole body; a slower upload is a stalled one at every preset's sizes
SHUTDOWN_S = 0.5  # for what is being done when the server closes; a crash at any instant is survived as well
KEEPALIVE_S = 75.0  # more than the client's, so that the client closes first
LINGER_S = 1.0  # how long a refused body is read and thrown away, so that its sender sees the answer
MAX_READS = 64  # bodies of the largest cap that may be in memory unverified at one time
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

    def __init__(
        self, handler: Handler, verifier: Verifier, caps: Caps, public: Collection[str], quotas: Quotas
    ) -> None:
        self._handler = handler
        self._verifier = verifier
        self._caps = caps
        self._public = frozenset(public)
        self._quotas = quotas
        self.read_timeout_s = READ_TIMEOUT_S
        self._reading_bytes = 0
        self._max_reading_bytes = MAX_READS * max(DEFAULT_CAP_BYTES, *caps.values(), 0)
        self.served = Served("", 0)
        self.polls: set[asyncio.Task[Response]] = set()

    async def __call__(self, raw: web.BaseRequest) -> web.StreamResponse:
        try:
            response = await self._answer(raw)
        except LiquidError as error:
            level = logging.DEBUG if error.retryable or error.status in (404, 409) else logging.INFO
            event(Event.REQUEST_REFUSED, level=level, path=raw.raw_path[:80], code=error.code)
            response = refuse(error)
        except Exception:  # noqa: BLE001 (a bug in a handler must not end the connection without an answer)
            self.served.num_failed += 1
            event(Event.REQUEST_FAILED, level=logging.ERROR, exc_info=True, path=raw.raw_path[:80])
            response = refuse(LiquidError("This side failed; the fault is logged there."))
        return web.Response(status=response.status, body=response.body, content_type="application/octet-stream")

    async def _answer(self, raw: web.BaseRequest) -> Response:
        target = raw.raw_path
        path, query = split_target(target)
        is_signed, came_s = SIGNED_HEADER in raw.headers, self._verifier.now_s()
        if not is_signed and not (raw.method == "GET" and path in self._public):
            raise Unauthorized("This request must be signed.")
        body = await self._body(raw, cap_of(self._caps, path))
        if is_signed:
            sender, stamp = self._verifier.verify(raw.headers, raw.method, target, body, at_s=came_s)
            request = Request(sender, raw.method, path, query, body, stamp)
            self._quotas.charge(sender, len(body), came_s)
        else:
            request = Request(ANONYMOUS, "GET", path, query, body, None)
            self._quotas.charge(f"host:{raw.remote}", len(body), came_s)
        return await self._run(request)

    async def _run(self, request: Request) -> Response:
        # Whoever asked may leave; what was asked is done to its end, so that nothing is left half changed.
        is_poll = request.method == "GET"
        tasks = self.polls if is_poll else self.served.tasks
        task = asyncio.ensure_future(self._handler(request))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return await (task if is_poll else asyncio.shield(task))

    async def _body(self, raw: web.BaseRequest, cap_bytes: int) -> bytes:
        length = raw.content_length
        if length is None and raw.body_exists:
            raise Malformed("A body must come with its Content-Length.")
        if length is not None and length > cap_bytes:
            raise TooLarge(f"A body of {length} bytes is over this path's cap of {cap_bytes}.")
        if not length:
            return b""
        if self._reading_bytes + length > self._max_reading_bytes:
            raise Unavailable("Too many bodies are being sent here at this time.")
        self._reading_bytes += length
        try:
            async with asyncio.timeout(self.read_timeout_s):
                return await raw.content.readexactly(length)
        except TimeoutError:
            raise DeadlineExceeded("The body did not arrive in time.") from None
        except (asyncio.IncompleteReadError, ConnectionError, web.RequestPayloadError):
            raise Malformed("The body is shorter than its Content-Length.") from None
        finally:
            self._reading_bytes -= length

    async def finish(self) -> None:
        """End all polls; give the rest ``SHUTDOWN_S``."""
        for poll in self.polls:
            poll.cancel()
        rest = [*self.polls, *self.served.tasks]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SHUTDOWN_S):
                await asyncio.gather(*rest, return_exceptions=True)  # cancels them when the time is up


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
) -> AsyncIterator[Served]:
    """Serve until the block ends. ``port`` 0 takes a free one; a port in use raises ``OSError``."""
    gate = _Gate(handler, verifier, caps or {}, public, Quotas() if quotas is None else quotas)
    gate.read_timeout_s = read_timeout_s
    runner = web.ServerRunner(
        _Server(gate, handler_cancellation=True), shutdown_timeout=0.05
    )  # what may still be done is waited for in `finish`
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        gate.served.host, gate.served.port = runner.addresses[0][:2]
        yield gate.served
    finally:
        for site in runner.sites:
            await site.stop()
        await gate.finish()
        await runner.cleanup()
