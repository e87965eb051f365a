"""The network's in-memory twin: handlers called directly, with latency and loss on demand.

For tests and the simulator; works under virtual time. Passes the same contract suite as the real client and server:
equal errors by code, body caps, deadlines, and a POST whose caller gave up still runs to its end. One difference: a bug
in a handler (anything but a ``LiquidError``) reaches the caller as itself, so that a test sees it.
Invariants: ``detach`` is a crash: running handlers are cancelled and their callers get ``PeerUnreachable``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

from subnet.errors import DeadlineExceeded, LiquidError, PeerUnreachable, TooLarge
from subnet.net.base import (
    MAX_RESPONSE_BYTES,
    Caps,
    Handler,
    PeerAddress,
    Request,
    Response,
    cap_of,
    opened,
    refuse,
    split_target,
    target_of,
)
from subnet.records import AuthStamp
from subnet.types import Hotkey

if TYPE_CHECKING:
    from subnet.net.auth import Signer


class Fate(StrEnum):
    """What the network does with one request."""

    DELIVER = "deliver"
    REFUSE = "refuse"  # as a closed port
    LOSE_REQUEST = "lose-request"  # the handler never sees it
    LOSE_REPLY = "lose-reply"  # the handler acts, the caller never learns


FateHook = Callable[[Hotkey, Hotkey, str], Fate]  # sender, receiver, path


def always_deliver(sender: Hotkey, receiver: Hotkey, path: str) -> Fate:
    """The hook of a network without faults."""
    del sender, receiver, path
    return Fate.DELIVER


class MemoryNetwork:
    """All peers of one process. ``latency_s`` is one way; ``fate`` may be replaced at any time."""

    def __init__(
        self,
        *,
        latency_s: float = 0.0,
        fate: FateHook = always_deliver,
        caps: Caps | None = None,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
    ) -> None:
        self.latency_s = latency_s
        self.fate = fate
        self.max_response_bytes = max_response_bytes
        self._caps = caps or {}
        self._handlers: dict[Hotkey, Handler] = {}
        self._running: dict[Hotkey, set[asyncio.Task[Response]]] = {}
        self._num_stamps = 0

    def attach(
        self, hotkey: Hotkey, handler: Handler, *, signer: Signer | None = None, caps: Caps | None = None
    ) -> MemoryPeers:
        """Put a peer on the network. With ``signer`` its stamps can be proved later; without, they are place-holders.

        ``caps`` are added to the network's.
        """
        self._handlers[hotkey] = handler
        self._running.setdefault(hotkey, set())
        self._caps = {**self._caps, **(caps or {})}
        return MemoryPeers(self, hotkey, signer)

    def detach(self, hotkey: Hotkey) -> None:
        """Take a peer off, as if its process had been killed."""
        self._handlers.pop(hotkey, None)
        for task in self._running.pop(hotkey, set()):
            task.cancel()

    def stamp(self, signer: Signer | None, method: str, target: str, body: bytes, receiver: Hotkey) -> AuthStamp:
        """The proof that goes with a request."""
        if signer is not None:
            return signer.stamp(method, target, body, receiver)
        self._num_stamps += 1
        return AuthStamp(nonce=str(self._num_stamps), signature="", method=method, path=target, receiver=receiver)

    async def deliver(self, to: Hotkey, request: Request) -> Response:
        """Carry one request there and its answer back; waits for ever when one of them is lost."""
        fate = self.fate(request.sender, to, request.path)
        await asyncio.sleep(self.latency_s)
        if fate is Fate.REFUSE or to not in self._handlers:
            raise PeerUnreachable("The peer is not on the network.")
        if fate is Fate.LOSE_REQUEST:
            await asyncio.Event().wait()
        response = await self._run(to, request)
        if fate is Fate.LOSE_REPLY:
            await asyncio.Event().wait()
        await asyncio.sleep(self.latency_s)
        return response

    async def _run(self, to: Hotkey, request: Request) -> Response:
        # As on the server: a GET ends with its caller, anything else runs to its end.
        task = asyncio.ensure_future(self._answer(self._handlers[to], request))
        self._running[to].add(task)
        task.add_done_callback(self._running[to].discard)
        try:
            return await (task if request.method == "GET" else asyncio.shield(task))
        except asyncio.CancelledError:
            if to not in self._handlers and task.cancelled():
                raise PeerUnreachable("The peer left the network.") from None
            raise

    async def _answer(self, handler: Handler, request: Request) -> Response:
        if len(request.body) > cap_of(self._caps, request.path):
            return refuse(TooLarge("The body is over the size cap of this path."))
        try:
            return await handler(request)
        except LiquidError as error:
            return refuse(error)


class MemoryPeers:
    """``Peers`` of one attached peer."""

    def __init__(self, network: MemoryNetwork, hotkey: Hotkey, signer: Signer | None) -> None:
        self._network = network
        self._hotkey = hotkey
        self._signer = signer
        self._is_closed = False

    async def request(
        self,
        to: PeerAddress,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        query: Mapping[str, str] | None = None,
        timeout_s: float,
    ) -> bytes:
        """See ``Peers``."""
        if self._is_closed:
            raise PeerUnreachable("This side is closed.")
        target = target_of(path, query)
        stamp = self._network.stamp(self._signer, method, target, body, to.hotkey)
        received_path, received_query = split_target(target)
        request = Request(self._hotkey, method, received_path, received_query, body, stamp)
        try:
            async with asyncio.timeout(timeout_s):
                response = await self._network.deliver(to.hotkey, request)
        except TimeoutError:
            raise DeadlineExceeded(f"No answer to {method} {path} within {timeout_s:g} s.") from None
        if len(response.body) > self._network.max_response_bytes:
            raise TooLarge("The answer is over the size that this side accepts.")
        return opened(response)

    async def aclose(self) -> None:
        """See ``Peers``."""
        self._is_closed = True
