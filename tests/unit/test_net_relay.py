"""A relay under way: answers larger than a window, many at a time, a relay that comes back, a peer that reads on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from subnet.errors import Unavailable
from subnet.net.auth import Verifier, dev_signer
from subnet.net.base import RELAY_PREFIX, PeerAddress, Request, Response, relay_url, reply
from subnet.net.client import HttpPeers
from subnet.net.frames import WINDOW_BYTES
from subnet.net.outbound import Timings, behind_relay
from subnet.net.relay import Relay, RelayLimits
from subnet.net.server import Served, serve
from subnet.types import Hotkey

OPERATOR, PEER = dev_signer("//relay"), dev_signer("//behind")
SOON_S = 10.0
LARGE = b"".join(number.to_bytes(4, "big") for number in range(9 * WINDOW_BYTES // 4))
CAPS = {"/v1/forward": len(LARGE)}
TIMINGS = Timings(first_pause_s=0.01, longest_pause_s=0.05, settled_s=0.0)


async def echo(request: Request) -> Response:
    return reply(LARGE if request.path == "/v1/shards" else request.body)


def play(scenario: Callable[[AsyncExitStack], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(20), AsyncExitStack() as stack:
            await scenario(stack)

    asyncio.run(main())


async def hub(stack: AsyncExitStack, port: int = 0) -> tuple[Relay, Served]:
    verifier = Verifier(OPERATOR.hotkey)
    relay = Relay(verifier, lambda hotkey: True, RelayLimits(max_body_bytes=len(LARGE)))
    return relay, await stack.enter_async_context(serve(echo, verifier, "127.0.0.1", port, relay=relay))


async def peer(stack: AsyncExitStack, port: int) -> tuple[HttpPeers, PeerAddress]:
    at = PeerAddress(OPERATOR.hotkey, f"http://127.0.0.1:{port}{RELAY_PREFIX}")
    there = await stack.enter_async_context(serve(echo, Verifier(PEER.hotkey), "127.0.0.1", 0, CAPS))
    await stack.enter_async_context(behind_relay(there.gate, PEER, at, TIMINGS))
    peers = HttpPeers(dev_signer("//caller"))
    stack.push_async_callback(peers.aclose)
    return peers, PeerAddress(PEER.hotkey, relay_url(at.url, PEER.hotkey))


def test_large_bodies_pass_unchanged_and_small_ones_between_them() -> None:
    async def scenario(stack: AsyncExitStack) -> None:
        _, served = await hub(stack)
        peers, to = await peer(stack, served.port)
        large = [peers.request(to, "GET", "/v1/shards", timeout_s=SOON_S) for _ in range(3)]
        large += [peers.request(to, "POST", "/v1/forward", LARGE, timeout_s=SOON_S) for _ in range(3)]
        small = [peers.request(to, "POST", "/v1/ready", b"%d" % number, timeout_s=SOON_S) for number in range(50)]
        answers = await asyncio.gather(*large, *small)
        assert answers[:6] == [LARGE] * 6
        assert answers[6:] == [b"%d" % number for number in range(50)]

    play(scenario)


def test_a_relay_that_comes_back_is_connected_to_again() -> None:
    async def scenario(stack: AsyncExitStack) -> None:
        first = AsyncExitStack()
        _, served = await hub(first)
        peers, to = await peer(stack, served.port)
        assert await peers.request(to, "POST", "/v1/ready", b"1", timeout_s=SOON_S) == b"1"
        await first.aclose()
        await hub(stack, served.port)
        while True:
            try:
                answer = await peers.request(to, "POST", "/v1/ready", b"2", timeout_s=SOON_S)
            except Unavailable:
                await asyncio.sleep(0.01)
            else:
                break
        assert answer == b"2"

    play(scenario)


def test_a_peer_is_behind_the_relay_for_as_long_as_it_is_connected_and_admitted() -> None:
    async def scenario(stack: AsyncExitStack) -> None:
        admitted = {PEER.hotkey}
        verifier = Verifier(OPERATOR.hotkey)

        def admit(hotkey: Hotkey) -> bool:
            return hotkey in admitted

        relay = Relay(verifier, admit, RelayLimits(max_body_bytes=1024))
        served = await stack.enter_async_context(serve(echo, verifier, "127.0.0.1", 0, relay=relay))
        async with AsyncExitStack() as inner:
            peers, to = await peer(inner, served.port)
            assert relay.connected == {PEER.hotkey}
            assert await peers.request(to, "POST", "/v1/ready", b"1", timeout_s=SOON_S) == b"1"
            admitted.clear()
            with pytest.raises(Unavailable, match="not connected"):
                await peers.request(to, "POST", "/v1/ready", b"1", timeout_s=SOON_S)
        admitted.add(PEER.hotkey)
        caller = HttpPeers(dev_signer("//caller"))
        stack.push_async_callback(caller.aclose)
        with pytest.raises(Unavailable):
            await caller.request(to, "POST", "/v1/ready", b"1", timeout_s=SOON_S)

    play(scenario)


def test_the_relays_own_routes_are_its_prefix_only() -> None:
    async def scenario(stack: AsyncExitStack) -> None:
        _, served = await hub(stack)
        peers, to = await peer(stack, served.port)
        own = PeerAddress(OPERATOR.hotkey, f"http://127.0.0.1:{served.port}")
        assert await peers.request(own, "POST", "/v1/ready", b"x", timeout_s=SOON_S) == b"x"
        assert await peers.request(own, "POST", "/relayed/x", b"x", timeout_s=SOON_S) == b"x"
        assert await peers.request(to, "POST", "/relay/x", b"x", timeout_s=SOON_S) == b"x"  # a path behind it

    play(scenario)
