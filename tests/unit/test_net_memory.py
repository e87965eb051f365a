"""Faults of the in-memory network, under virtual time."""

from __future__ import annotations

import asyncio

import pytest

from subnet.clock import LoopClock, run_virtual
from subnet.errors import DeadlineExceeded, PeerUnreachable
from subnet.net.base import PeerAddress, Request, Response, reply
from subnet.net.memory import Fate, MemoryNetwork
from subnet.types import Hotkey

A, B = Hotkey("a"), Hotkey("b")
TO_B = PeerAddress(B, "")


def test_latency_passes_on_the_loops_clock() -> None:
    async def echo(request: Request) -> Response:
        return reply(request.body)

    async def main() -> float:
        net = MemoryNetwork(latency_s=30.0)
        peers = net.attach(A, echo)
        net.attach(B, echo)
        began_s = LoopClock().now_s()
        assert await peers.request(TO_B, "POST", "/v1/forward", b"x", timeout_s=100) == b"x"
        return LoopClock().now_s() - began_s

    assert run_virtual(main()) == pytest.approx(60.0)


@pytest.mark.parametrize(
    ("fate", "kind", "num_seen"),
    [
        (Fate.REFUSE, PeerUnreachable, 0),
        (Fate.LOSE_REQUEST, DeadlineExceeded, 0),
        (Fate.LOSE_REPLY, DeadlineExceeded, 1),
    ],
)
def test_fates(fate: Fate, kind: type[Exception], num_seen: int) -> None:
    seen: list[Request] = []

    async def handle(request: Request) -> Response:
        seen.append(request)
        return reply(b"")

    async def main() -> None:
        net = MemoryNetwork(fate=lambda sender, receiver, path: fate if path == "/v1/forward" else Fate.DELIVER)
        peers = net.attach(A, handle)
        net.attach(B, handle)
        with pytest.raises(kind):
            await peers.request(TO_B, "POST", "/v1/forward", timeout_s=10)
        assert len(seen) == num_seen
        await peers.request(TO_B, "POST", "/v1/backward", timeout_s=10)

    run_virtual(main())


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_detaching_kills_what_runs_there(method: str) -> None:
    async def main() -> None:
        begun, killed = asyncio.Event(), asyncio.Event()

        async def hang(request: Request) -> Response:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                killed.set()
            return reply(b"")

        net = MemoryNetwork()
        peers = net.attach(A, hang)
        net.attach(B, hang)
        call = asyncio.ensure_future(peers.request(TO_B, method, "/v1/forward", timeout_s=10))
        await begun.wait()
        net.detach(B)
        with pytest.raises(PeerUnreachable):
            await call
        assert killed.is_set()
        with pytest.raises(PeerUnreachable):
            await peers.request(TO_B, method, "/v1/forward", timeout_s=10)

    run_virtual(main())


def test_a_bug_in_a_handler_is_seen_by_the_test() -> None:
    async def fail(request: Request) -> Response:
        raise KeyError("bug")

    async def main() -> None:
        net = MemoryNetwork()
        peers = net.attach(B, fail)
        with pytest.raises(KeyError):
            await peers.request(TO_B, "POST", "/v1/forward", timeout_s=1)

    run_virtual(main())
