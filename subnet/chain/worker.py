"""A client in a daemon thread with an event loop of its own, every call to it under a deadline.

Made for clients without timeouts that may hang for ever. A call that misses its deadline costs the client: it is
abandoned with its thread, and the next call connects anew. A thread that blocks in foreign code cannot be ended from
here: it is left behind and counted, for a watchdog to see. Not here: what the client is.
Invariants: no call outlives its deadline for the caller; calls that share an abandoned client fail with
``ClientLost`` at once; a cancelled call leaves the client usable; nothing is forked, and an abandoned thread cannot
keep the program alive; an abandoned client is closed as far as it still answers.
Source: bittensor-v11.md, section 3e.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

C = TypeVar("C")
T = TypeVar("T")
Act = Callable[[C], Awaitable[object]]

THREAD_NAME = "chain"
CLOSE_TIMEOUT_S = 2.0  # a close is one frame each way; whoever needs longer hangs


class ClientLost(Exception):
    """The client was abandoned while this call was under way."""


class _Session(Generic[C]):
    """One client and its thread, from connecting to being abandoned."""

    def __init__(self, build: Callable[[], C], connect: Act[C], disconnect: Act[C]) -> None:
        self._build = build
        self._connect = connect
        self._disconnect = disconnect
        self._client: C | None = None  # from before it connects, so that a half-open one is closed as well
        self._is_connected = False
        self._connecting = asyncio.Lock()
        self._loop = asyncio.new_event_loop()
        self._is_abandoned = False
        self._abandoned_at_s = 0.0
        self._thread = threading.Thread(target=self._serve, name=THREAD_NAME, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    async def _run(self, work: Callable[[C], Awaitable[T]]) -> T:
        async with self._connecting:
            client = self._client = self._client or self._build()
            if not self._is_connected:
                await self._connect(client)
                self._is_connected = True
        return await work(client)

    async def call(self, work: Callable[[C], Awaitable[T]]) -> T:
        if self._is_abandoned:
            raise ClientLost
        answer = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._run(work), self._loop))
        try:
            return await answer
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if me is not None and me.cancelling() == 0:
                raise ClientLost from None  # nobody cancelled the caller: the thread gave up its calls
            raise

    def abandon(self) -> None:
        """Close in the background; never waits."""
        if not self._is_abandoned:
            self._is_abandoned, self._abandoned_at_s = True, time.monotonic()
            self._loop.call_soon_threadsafe(lambda: self._loop.create_task(self._wind_up(), name="wind up"))

    def left_behind_since_s(self) -> float | None:
        """When its thread was given up, if it still runs."""
        return self._abandoned_at_s if self._is_abandoned and self._thread.is_alive() else None

    async def _wind_up(self) -> None:
        try:
            if self._client is not None:
                await _settle({asyncio.ensure_future(self._disconnect(self._client))})
            others: set[asyncio.Future[Any]] = {
                task for task in asyncio.all_tasks() if task is not asyncio.current_task()
            }
            for task in others:
                task.cancel()
            await _settle(others)
        finally:
            self._loop.stop()


async def _settle(tasks: set[asyncio.Future[Any]]) -> None:
    """Wait for ``tasks`` for a short while; how they end is nobody's concern any more."""
    if tasks:
        done, _ = await asyncio.wait(tasks, timeout=CLOSE_TIMEOUT_S)
        for task in done:
            if not task.cancelled():
                task.exception()


class Worker(Generic[C]):
    """Calls a client that is built when first needed and again after it was lost."""

    def __init__(self, build: Callable[[], C], connect: Act[C], disconnect: Act[C]) -> None:
        """``disconnect`` must also take a client that is not connected yet."""
        self._build = build
        self._connect = connect
        self._disconnect = disconnect
        self._session: _Session[C] | None = None
        self._left: list[_Session[C]] = []

    async def call(self, work: Callable[[C], Awaitable[T]], timeout_s: float) -> T:
        """Await ``work(client)`` in its thread; raises ``TimeoutError``, ``ClientLost`` and what ``work`` raises."""
        session = self._session = self._session or _Session(self._build, self._connect, self._disconnect)
        try:
            async with asyncio.timeout(timeout_s):
                return await session.call(work)
        except TimeoutError:
            self._forget(session)
            raise

    def abandon(self) -> None:
        """Let go of the client, if there is one; the next call connects anew."""
        if self._session is not None:
            self._forget(self._session)

    def stuck_for_s(self, now_s: float) -> float:
        """How long the oldest thread that was given up has gone on running; 0 without one. Safe from any thread.

        ``now_s``: as ``time.monotonic``.
        """
        since = [at_s for session in list(self._left) if (at_s := session.left_behind_since_s()) is not None]
        return max(0.0, now_s - min(since)) if since else 0.0

    def _forget(self, session: _Session[C]) -> None:
        session.abandon()
        still = [known for known in self._left if known.left_behind_since_s() is not None]
        self._left = [*still, session] if session not in still else still
        if self._session is session:
            self._session = None
