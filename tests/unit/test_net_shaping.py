"""The link model under times that the test names, and the wrapper under virtual time."""

from __future__ import annotations

import asyncio

import pytest

from subnet.clock import LoopClock, run_virtual
from subnet.errors import DeadlineExceeded
from subnet.net.base import PeerAddress, Request, Response
from subnet.net.memory import MemoryNetwork
from subnet.net.shaping import HEADER_BYTES, Link, LinkShape, ShapedNetwork, ShapedPeers
from subnet.types import Hotkey

A, B = Hotkey("a"), Hotkey("b")
TO_B = PeerAddress(B, "memory://b")


def test_a_message_takes_its_bytes_over_the_rate_and_the_delay() -> None:
    link = Link(LinkShape(rate_bytes_per_s=1000.0, delay_s=0.05))
    assert link.arrival_s(10.0, 500) == pytest.approx(10.55)


def test_messages_queue_and_the_delay_is_not_queued_for() -> None:
    link = Link(LinkShape(rate_bytes_per_s=1000.0, delay_s=2.0))
    arrivals = [link.arrival_s(0.0, 100) for _ in range(3)]
    assert arrivals == pytest.approx([2.1, 2.2, 2.3])
    assert link.backlog_s(0.0) == pytest.approx(0.3)
    assert link.backlog_s(1.0) == 0.0


def test_an_idle_link_lets_its_burst_through_and_then_keeps_its_rate() -> None:
    link = Link(LinkShape(rate_bytes_per_s=1000.0, burst_bytes=200.0))
    assert [link.arrival_s(0.0, 100) for _ in range(4)] == pytest.approx([0.0, 0.0, 0.1, 0.2])


@pytest.mark.parametrize("burst_bytes", [0.0, 150.0, 5000.0])
def test_no_interval_carries_more_than_burst_and_rate(burst_bytes: float) -> None:
    link = Link(LinkShape(rate_bytes_per_s=1000.0, burst_bytes=burst_bytes))
    times = [0.0, 0.0, 0.01, 0.5, 0.5, 0.5, 2.0, 2.0, 2.1]
    arrivals = [link.arrival_s(now_s, 300) for now_s in times]
    assert arrivals == sorted(arrivals)
    for first in range(len(times)):
        for last in range(first + 1, len(times)):
            sent = 300 * (last - first)  # all but the first, which may have been on its way before
            assert sent <= burst_bytes + 1000.0 * (arrivals[last] - arrivals[first]) + 1e-6


def test_without_a_limit_only_the_delay_counts() -> None:
    link = Link(LinkShape(delay_s=0.25))
    assert link.arrival_s(1.0, 1 << 30) == pytest.approx(1.25)
    assert link.backlog_s(1.0) == 0.0


@pytest.mark.parametrize("wrong", [{"rate_bytes_per_s": 0.0}, {"delay_s": -1.0}, {"burst_bytes": -1.0}])
def test_an_impossible_shape_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="positive rate"):
        LinkShape(**wrong)


async def echo(request: Request) -> Response:
    return Response(200, request.body)


async def pair(network: ShapedNetwork) -> ShapedPeers:
    memory = MemoryNetwork()
    memory.attach(B, echo)
    return ShapedPeers(memory.attach(A, echo), A, network)


def test_request_and_answer_pass_their_senders_uplinks() -> None:
    async def scene() -> float:
        network = ShapedNetwork(LoopClock())
        network.shape(A, LinkShape(rate_bytes_per_s=1000.0, delay_s=0.1))
        network.shape(B, LinkShape(rate_bytes_per_s=500.0, delay_s=0.2))
        peers = await pair(network)
        assert await peers.request(TO_B, "POST", "/v1/x", bytes(1000), timeout_s=60.0) == bytes(1000)
        return asyncio.get_running_loop().time()

    assert run_virtual(scene()) == pytest.approx((HEADER_BYTES + 1000) / 1000 + 0.1 + 1000 / 500 + 0.2)


def test_requests_of_one_peer_share_its_uplink() -> None:
    async def scene() -> float:
        network = ShapedNetwork(LoopClock())
        network.shape(A, LinkShape(rate_bytes_per_s=1000.0))
        peers = await pair(network)
        await asyncio.gather(*(peers.request(TO_B, "POST", "/v1/x", bytes(400), timeout_s=60.0) for _ in range(3)))
        return asyncio.get_running_loop().time()

    assert run_virtual(scene()) == pytest.approx(3 * (HEADER_BYTES + 400) / 1000)


def test_a_slow_link_runs_into_the_callers_deadline() -> None:
    async def scene() -> float:
        network = ShapedNetwork(LoopClock())
        network.shape(A, LinkShape(rate_bytes_per_s=10.0))
        peers = await pair(network)
        with pytest.raises(DeadlineExceeded):
            await peers.request(TO_B, "POST", "/v1/x", bytes(1000), timeout_s=3.0)
        return asyncio.get_running_loop().time()

    assert run_virtual(scene()) == pytest.approx(3.0)
