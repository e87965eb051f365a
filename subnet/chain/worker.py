"""A client in a daemon thread with an event loop of its own, every call to it under a deadline.

Made for clients without timeouts that may hang for ever. A call that misses its deadline costs the client: it is
abandoned with its thread, and the next call connects anew. Not here: what the client is.
Invariants: no call outlives its deadline for the caller; calls that share an abandoned client fail with
``ClientLost`` at once; a cancelled call leaves the client usable; nothing is forked, a worker may not be either; an
abandoned thread cannot keep the program alive and ends by itself unless native code holds it, which ``vitals`` tells.
Source: bittensor-v11.md, section 3e.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

C = TypeVar("C")
T = TypeVar("T")
Act = Callable[[C], Awaitable[object]]

THREAD_NAME = "chain"
CLOSE_TIMEOUT_S = 2.0  # a close is one frame each way; whoever needs longer hangs
CANCEL_ATTEMPTS = 8  # the SDK's supervisor may take a first cancellation for a lost connection, and dial again


class ClientLost(Exception):
    """The client was abandoned while this call was under way."""


@dataclass(frozen=True)
class Vitals:
    """How the client threads are. ``num_vain``: questions in a row that the most silent one left unanswered;
    ``num_left``: abandoned ones that have not ended yet."""

    num_vain: int
    num_left: int


class _Loop(asyncio.SelectorEventLoop):
    """Knows its connections: a client that never finished connecting cannot close its own."""

    def __init__(self) -> None:
        super().__init__()
        self._connections: weakref.WeakSet[asyncio.BaseTransport] = weakref.WeakSet()

    async def create_connection(self, *args: Any, **options: Any) -> Any:
        """As in asyncio, and remembered."""
        transport, protocol = await super().create_connection(*args, **options)
        self._connections.add(transport)
        return transport, protocol

    def cut_off(self) -> None:
        """End every connection that is still there."""
        for transport in list(self._connections):
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()


class _Session(Generic[C]):
    """One client and its thread, from connecting to being abandoned."""

    def __init__(self, build: Callable[[], C], connect: Act[C], disconnect: Act[C]) -> None:
        self._build = build
        self._connect = connect
        self._disconnect = disconnect
        self._client: C | None = None  # from before it connects, so that a half-open one is closed as well
        self._is_connected = False
        self._connecting = asyncio.Lock()
        self._loop = _Loop()
        self.is_abandoned = False
        self._is_asked = False
        self._num_vain = 0
        self._thread = threading.Thread(target=self._serve, name=THREAD_NAME, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    @property
    def is_alive(self) -> bool:
        """Whether its thread has not ended."""
        return self._thread.is_alive()

    def ask(self) -> int:
        """Ask the loop for a sign of life; returns how many times in a row it was asked in vain."""
        if self._is_asked:
            self._num_vain += 1
        else:
            self._is_asked, self._num_vain = True, 0
            with suppress(RuntimeError):  # it has just ended
                self._loop.call_soon_threadsafe(self._answer)
        return self._num_vain

    def _answer(self) -> None:
        self._is_asked = False

    async def _run(self, work: Callable[[C], Awaitable[T]]) -> T:
        async with self._connecting:
            client = self._client = self._client or self._build()
            if not self._is_connected:
                await self._connect(client)
                self._is_connected = True
        return await work(client)

    async def call(self, work: Callable[[C], Awaitable[T]]) -> T:
        if self.is_abandoned:
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
        if not self.is_abandoned:
            self.is_abandoned = True
            self._loop.call_soon_threadsafe(lambda: self._loop.create_task(self._wind_up(), name="wind up"))

    async def _wind_up(self) -> None:
        try:
            if self._client is not None:
                await _settle({asyncio.ensure_future(self._disconnect(self._client))}, CLOSE_TIMEOUT_S)
            for _ in range(CANCEL_ATTEMPTS):
                others: set[asyncio.Future[Any]] = {
                    task for task in asyncio.all_tasks() if task is not asyncio.current_task()
                }
                for task in others:
                    task.cancel()
                await _settle(others, CLOSE_TIMEOUT_S / CANCEL_ATTEMPTS)
            self._loop.cut_off()
            await asyncio.sleep(0)  # for what they say at their end
        finally:
            self._loop.stop()


async def _settle(tasks: set[asyncio.Future[Any]], timeout_s: float) -> None:
    """Wait for ``tasks`` for a short while; how they end is nobody's concern any more."""
    if tasks:
        done, _ = await asyncio.wait(tasks, timeout=timeout_s)
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
        self._threads: list[_Session[C]] = []  # all whose thread may still be there
        self._changing_threads = threading.Lock()

    def _begin(self) -> _Session[C]:
        session = _Session(self._build, self._connect, self._disconnect)
        with self._changing_threads:
            self._threads.append(session)
        return session

    def vitals(self) -> Vitals:
        """Ask every client thread for a sign of life; from one thread, at a steady pace."""
        with self._changing_threads:
            self._threads = [known for known in self._threads if known.is_alive]
            known = list(self._threads)
        return Vitals(max((one.ask() for one in known), default=0), sum(one.is_abandoned for one in known))

    async def call(self, work: Callable[[C], Awaitable[T]], timeout_s: float) -> T:
        """Await ``work(client)`` in its thread; raises ``TimeoutError``, ``ClientLost`` and what ``work`` raises."""
        session = self._session = self._session or self._begin()
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

    def _forget(self, session: _Session[C]) -> None:
        session.abandon()
        if self._session is session:
            self._session = None
