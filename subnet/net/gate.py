"""What stands between a transport and a handler: size before reading, signature before parsing, then the handler.

One gate serves every way in (``subnet.net.server`` by its socket, ``subnet.net.outbound`` through a relay), so that a
request meets the same checks and the same store of nonces on each. Not here: sockets, routes.
Invariants: a body over its path's cap is never read into memory; an unsigned request reaches the handler only for a GET
of a public path; a stranger's bytes are never echoed; every read has a deadline, and what is being read at one time is
bounded; a GET ends with its caller, anything else runs to its end.
Source: design.md section 9.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass

from subnet.errors import DeadlineExceeded, LiquidError, TooLarge, Unauthorized, Unavailable
from subnet.log import Event, event
from subnet.net.auth import Verifier
from subnet.net.base import ANONYMOUS, DEFAULT_CAP_BYTES, Caps, Handler, Request, Response, cap_of, refuse, split_target
from subnet.net.quota import Quotas

READ_TIMEOUT_S = 30.0  # for a whole body; a slower upload is a stalled one at every preset's sizes
SHUTDOWN_S = 0.5  # for what is being done when the server closes; a crash at any instant is survived as well
MAX_READS = 64  # bodies of the largest cap that may be in memory unverified at one time
PUBLIC_PATHS = frozenset({"/v1/run", "/v1/ledger", "/v1/status", "/v1/health"})
SIGNED_HEADER = "X-Bittensor-Signature"


@dataclass(frozen=True)
class Arrival:
    """A request whose body is still outside. ``read`` gives all ``length`` bytes of it or raises ``Malformed``."""

    method: str
    target: str
    headers: Mapping[str, str]  # by any case of their names
    host: str  # where it came from; says nothing about who signed it
    length: int
    read: Callable[[int], Awaitable[bytes]]


class Gate:
    """The checks of one peer. ``num_failed`` counts answers that a bug of ours spoiled."""

    def __init__(
        self,
        handler: Handler,
        verifier: Verifier,
        caps: Caps | None = None,
        *,
        public: Collection[str] = PUBLIC_PATHS,
        quotas: Quotas | None = None,
        read_timeout_s: float = READ_TIMEOUT_S,
    ) -> None:
        self._handler = handler
        self._verifier = verifier
        self._caps = caps or {}
        self._public = frozenset(public)
        self._quotas = Quotas() if quotas is None else quotas
        self._read_timeout_s = read_timeout_s
        self._reading_bytes = 0
        self._max_reading_bytes = MAX_READS * max(DEFAULT_CAP_BYTES, *self._caps.values(), 0)
        self.num_failed = 0
        self.polls: set[asyncio.Task[Response]] = set()
        self.tasks: set[asyncio.Task[Response]] = set()

    def refusal(self, error: LiquidError, target: str) -> Response:
        """The answer that says ``error``, noted in the diary."""
        level = logging.DEBUG if error.retryable or error.status in (404, 409) else logging.INFO
        event(Event.REQUEST_REFUSED, level=level, path=target[:80], code=error.code)
        return refuse(error)

    def failure(self, target: str) -> Response:
        """The answer after a bug of ours, from within the handler of the exception."""
        self.num_failed += 1
        event(Event.REQUEST_FAILED, level=logging.ERROR, exc_info=True, path=target[:80])
        return refuse(LiquidError("This side failed; the fault is logged there."))

    async def answer(self, arrival: Arrival) -> Response:
        """The answer to one request, whatever happens to it."""
        try:
            return await self._answer(arrival)
        except LiquidError as error:
            return self.refusal(error, arrival.target)
        except Exception:  # noqa: BLE001 (a bug in a handler must not end the connection without an answer)
            return self.failure(arrival.target)

    async def _answer(self, arrival: Arrival) -> Response:
        path, query = split_target(arrival.target)
        is_signed = SIGNED_HEADER.lower() in {name.lower() for name in arrival.headers}
        came_s = self._verifier.now_s()
        if not is_signed and not (arrival.method == "GET" and path in self._public):
            raise Unauthorized("This request must be signed.")
        body = await self._body(arrival, cap_of(self._caps, path))
        if is_signed:
            sender, stamp = self._verifier.verify(arrival.headers, arrival.method, arrival.target, body, at_s=came_s)
            request = Request(sender, arrival.method, path, query, body, stamp)
            self._quotas.charge(sender, len(body), came_s)
        else:
            request = Request(ANONYMOUS, "GET", path, query, body, None)
            self._quotas.charge(f"host:{arrival.host}", len(body), came_s)
        return await self._run(request)

    async def _run(self, request: Request) -> Response:
        # Whoever asked may leave; what was asked is done to its end, so that nothing is left half changed.
        is_poll = request.method == "GET"
        tasks = self.polls if is_poll else self.tasks
        task = asyncio.ensure_future(self._handler(request))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return await (task if is_poll else asyncio.shield(task))

    async def _body(self, arrival: Arrival, cap_bytes: int) -> bytes:
        length = arrival.length
        if length > cap_bytes:
            raise TooLarge(f"A body of {length} bytes is over this path's cap of {cap_bytes}.")
        if not length:
            return b""
        if self._reading_bytes + length > self._max_reading_bytes:
            raise Unavailable("Too many bodies are being sent here at this time.")
        self._reading_bytes += length
        try:
            async with asyncio.timeout(self._read_timeout_s):
                return await arrival.read(length)
        except TimeoutError:
            raise DeadlineExceeded("The body did not arrive in time.") from None
        finally:
            self._reading_bytes -= length

    async def finish(self) -> None:
        """End all polls; give the rest ``SHUTDOWN_S``."""
        for poll in self.polls:
            poll.cancel()
        rest = [*self.polls, *self.tasks]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SHUTDOWN_S):
                await asyncio.gather(*rest, return_exceptions=True)  # cancels them when the time is up
