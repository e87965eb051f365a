"""The probe of a peer's address: who answers counts, where it may lead is bounded, and nothing else is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from aiohttp import web

from subnet.clock import WallClock
from subnet.errors import Forbidden, Malformed, Missing, Unavailable
from subnet.net.auth import Signer, Verifier, dev_signer
from subnet.net.base import PeerAddress, Request, Response, relay_url, reply
from subnet.net.client import HttpPeers
from subnet.net.messages import ProbeReply, ProbeRequest
from subnet.net.reach import BURST_PROBES, PROBE_PATH, Prober, answer_probe, is_private, is_reachable
from subnet.net.server import serve
from subnet.records import decode

OWNER, MINER = dev_signer("//owner"), dev_signer("//miner")


def play(scenario: Callable[[AsyncExitStack], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(20), AsyncExitStack() as stack:
            await scenario(stack)

    asyncio.run(main())


async def miner_at(
    stack: AsyncExitStack, signer: Signer = MINER, verifies_for: Signer = MINER
) -> tuple[str, list[str]]:
    """A miner that answers probes: its address, and what it was asked."""
    urls: list[str] = []
    seen: list[str] = []

    async def handle(request: Request) -> Response:
        seen.append(request.path)
        return answer_probe(request, signer, urls[0])

    served = await stack.enter_async_context(serve(handle, Verifier(verifies_for.hotkey), "127.0.0.1", 0))
    urls.append(f"http://127.0.0.1:{served.port}")
    return urls[0], seen


def prober(stack: AsyncExitStack, *, allows_private: bool = True) -> Prober:
    made = Prober(OWNER, WallClock(), allows_private=allows_private)
    stack.push_async_callback(made.aclose)
    return made


def test_a_miner_that_answers_is_reachable_and_asks_so_over_the_route() -> None:
    async def scenario(stack: AsyncExitStack) -> None:
        url, seen = await miner_at(stack)
        probe = prober(stack)

        async def handle(request: Request) -> Response:
            if request.path != PROBE_PATH:
                raise Missing("No.")
            return reply(await probe.probe(request.sender, decode(ProbeRequest, request.body)))

        served = await stack.enter_async_context(serve(handle, Verifier(OWNER.hotkey), "127.0.0.1", 0))
        peers = HttpPeers(MINER)
        stack.push_async_callback(peers.aclose)
        orchestrator = PeerAddress(OWNER.hotkey, f"http://127.0.0.1:{served.port}")
        assert await is_reachable(peers, orchestrator, url)
        assert seen == [PROBE_PATH]
        assert not await is_reachable(peers, orchestrator, "http://127.0.0.1:1")
        assert not await is_reachable(peers, PeerAddress(OWNER.hotkey, "http://127.0.0.1:1"), url)

    play(scenario)


def test_another_peer_at_the_address_does_not_count() -> None:
    async def scenario(stack: AsyncExitStack) -> None:
        probe = prober(stack)
        stranger, _ = await miner_at(stack, dev_signer("//stranger"), dev_signer("//stranger"))
        forger, _ = await miner_at(stack, dev_signer("//stranger"), MINER)  # takes the request, signs with its own key
        for url in (stranger, forger):
            assert await probe.probe(MINER.hotkey, ProbeRequest(url=url)) == ProbeReply(is_reachable=False)

    play(scenario)


def test_neither_a_redirect_nor_a_flood_is_followed() -> None:
    async def scenario(stack: AsyncExitStack) -> None:
        url, seen = await miner_at(stack)

        async def answer(raw: web.BaseRequest) -> web.StreamResponse:
            if raw.host.startswith("localhost"):
                return web.Response(body=bytes(1 << 20))
            return web.Response(status=307, headers={"Location": url + PROBE_PATH})

        runner = web.ServerRunner(web.Server(answer))
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        probe = prober(stack)
        for host in ("127.0.0.1", "localhost"):
            at = ProbeRequest(url=f"http://{host}:{runner.addresses[0][1]}")
            assert not (await probe.probe(MINER.hotkey, at)).is_reachable
        assert seen == []

    play(scenario)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "[::1]", "[::ffff:127.0.0.1]", "2130706433"])
def test_private_addresses_are_not_connected_to(host: str) -> None:
    async def scenario(stack: AsyncExitStack) -> None:
        url, seen = await miner_at(stack)
        at = ProbeRequest(url=url.replace("127.0.0.1", host))
        assert not (await prober(stack, allows_private=False).probe(MINER.hotkey, at)).is_reachable
        assert seen == []

    play(scenario)


def test_the_address_that_means_every_address_is_nobodys() -> None:
    async def scenario(stack: AsyncExitStack) -> None:
        url, seen = await miner_at(stack)
        at = ProbeRequest(url=url.replace("127.0.0.1", "0.0.0.0"))
        assert not (await prober(stack).probe(MINER.hotkey, at)).is_reachable
        assert seen == []

    play(scenario)


def test_a_hotkey_is_probed_a_few_times_and_only_at_origins() -> None:
    async def scenario(stack: AsyncExitStack) -> None:
        url, _ = await miner_at(stack)
        probe = prober(stack)
        for strange in ("file:///etc/passwd", f"{url}/v1/run", relay_url(f"{url}/relay", MINER.hotkey)):
            with pytest.raises(Malformed):
                await probe.probe(MINER.hotkey, ProbeRequest(url=strange))
        for _ in range(int(BURST_PROBES)):
            assert (await probe.probe(MINER.hotkey, ProbeRequest(url=url))).is_reachable
        with pytest.raises(Unavailable):
            await probe.probe(MINER.hotkey, ProbeRequest(url=url))
        assert not (await probe.probe(dev_signer("//other").hotkey, ProbeRequest(url=url))).is_reachable

    play(scenario)


def test_a_miner_signs_for_its_own_address_only() -> None:
    challenge = b'{"nonce":"ab","url":"http://10.0.0.2:1"}'
    request = Request(OWNER.hotkey, "POST", PROBE_PATH, {}, challenge, None)
    with pytest.raises(Forbidden):
        answer_probe(request, MINER, "http://10.0.0.1:1")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("10.0.0.1", True),
        ("127.0.0.1", True),
        ("8.8.8.8", False),
        ("0.0.0.0", False),
        ("peer.example", False),
        ("", False),
    ],
)
def test_which_addresses_are_private(host: str, expected: bool) -> None:
    assert is_private(host) is expected
