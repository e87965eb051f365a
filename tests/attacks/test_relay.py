"""Attack: what strangers, peers and the relay itself may try where requests go over a relay.

A relay can drop and delay, and no more: what it changes is refused by the peer or not believed by the caller.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from subnet.errors import (
    ConfigError,
    DeadlineExceeded,
    Forbidden,
    Malformed,
    PeerUnreachable,
    TooLarge,
    Unauthorized,
    Unavailable,
)
from subnet.net.auth import dev_signer
from subnet.net.base import RELAY_PREFIX, PeerAddress, Request, Response, reply
from subnet.net.frames import CHUNK_BYTES, SUBPROTOCOL, WINDOW_BYTES, Kind, ResponseHead, encode
from subnet.net.outbound import Outbound, behind_relay
from subnet.net.relay import Relay
from subnet.net.relay_link import LinkLimits
from tests.attacks.relays import (
    LIMITS,
    OPERATOR,
    PEER,
    SWIFT,
    ChangesAnswers,
    ChangesPaths,
    ChangesRequests,
    RepeatsAnswers,
    scene,
)
from tests.attacks.wire import CAP_BYTES, code_of, exchange, request_bytes, signed

SOON_S = 5.0
LARGE = bytes(16 * WINDOW_BYTES)  # more than sockets on loopback hold
TARGET = f"{RELAY_PREFIX}/{PEER.hotkey}/v1/forward?shard=1"


class Peer:
    """The peer behind the relay."""

    def __init__(self) -> None:
        self.seen: list[Request] = []

    async def __call__(self, request: Request) -> Response:
        self.seen.append(request)
        return reply(LARGE if request.path == "/v1/shards" else request.body)


def play(scenario: Callable[[Peer], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(20):
            await scenario(Peer())

    asyncio.run(main())


def upgrade(headers: dict[str, str]) -> bytes:
    """A request to be taken as a peer, as it goes over the wire."""
    wanted = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    key = {"Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Protocol": SUBPROTOCOL}
    return request_bytes("GET", RELAY_PREFIX, {**wanted, **key, **headers})


def test_a_hotkey_that_is_not_admitted_is_not_taken() -> None:
    async def scenario(peer: Peer) -> None:
        async with scene(peer, admit=lambda hotkey: hotkey != PEER.hotkey) as at:
            with pytest.raises(ExceptionGroup) as caught:
                await at.connect()
            assert caught.group_contains(Forbidden)
            assert at.relay.connected == frozenset()

    play(scenario)


@pytest.mark.parametrize("spoilt", ["receiver", "signature", "unsigned", "replayed", "path"])
def test_a_connection_in_anothers_name_is_refused(spoilt: str) -> None:
    async def scenario(peer: Peer) -> None:
        async with scene(peer) as at:
            receiver = dev_signer("//other").hotkey if spoilt == "receiver" else OPERATOR.hotkey
            headers = PEER.headers("GET", "/v1/run" if spoilt == "path" else RELAY_PREFIX, b"", receiver)
            if spoilt == "signature":
                headers["X-Bittensor-Hotkey"] = dev_signer("//other").hotkey
            if spoilt == "replayed":
                async with aiohttp.ClientSession() as session:
                    await (await session.ws_connect(at.at.url, headers=headers, protocols=(SUBPROTOCOL,))).close()
            status, answer = await exchange(at.hub.port, upgrade({} if spoilt == "unsigned" else headers))
            assert (status, code_of(answer)) == (401, "unauthorized")

    play(scenario)


def test_a_request_for_another_receiver_or_with_a_forged_signature_does_not_pass_the_peer() -> None:
    async def scenario(peer: Peer) -> None:
        async with scene(peer) as at:
            await at.connect()
            for spoilt in ("receiver", "signature"):
                receiver = OPERATOR.hotkey if spoilt == "receiver" else PEER.hotkey
                headers, body = signed(receiver=receiver)
                if spoilt == "signature":
                    headers["X-Bittensor-Signature"] = "0x" + "ab" * 64
                status, answer = await exchange(at.hub.port, request_bytes("POST", TARGET, headers, body))
                assert (status, code_of(answer)) == (401, "unauthorized")
            assert peer.seen == []

    play(scenario)


def test_a_request_passes_once_whichever_way_it_comes() -> None:
    async def scenario(peer: Peer) -> None:
        async with scene(peer) as at:
            await at.connect()
            headers, body = signed(receiver=PEER.hotkey)
            assert (await exchange(at.hub.port, request_bytes("POST", TARGET, headers, body)))[0] == 200
            direct = request_bytes("POST", "/v1/forward?shard=1", headers, body)
            for port, data in ((at.hub.port, request_bytes("POST", TARGET, headers, body)), (at.there.port, direct)):
                assert (await exchange(port, data))[0] == 401
            assert len(peer.seen) == 1

    play(scenario)


def test_an_oversized_body_is_refused_before_it_is_sent() -> None:
    async def scenario(peer: Peer) -> None:
        async with scene(peer) as at:
            await at.connect()
            headers, _ = signed(receiver=PEER.hotkey)
            headers["Content-Length"] = str(LIMITS.max_body_bytes + 1)
            status, answer = await exchange(at.hub.port, request_bytes("POST", TARGET, headers))  # and no body
            assert (status, code_of(answer)) == (413, "too_large")
            with pytest.raises(TooLarge):  # over the peer's own cap: the peer says so, and signs it
                await at.peers.request(at.to, "POST", "/v1/forward", bytes(CAP_BYTES + 1), timeout_s=SOON_S)
            assert peer.seen == []

    play(scenario)


@pytest.mark.parametrize("kind", [ChangesRequests, ChangesPaths])
def test_a_relay_that_changes_a_request_is_detected_by_the_peer(kind: type[Relay]) -> None:
    async def scenario(peer: Peer) -> None:
        async with scene(peer, kind=kind) as at:
            await at.connect()
            with pytest.raises(Unauthorized):
                await at.peers.request(at.to, "POST", "/v1/forward", b"gradient", timeout_s=SOON_S)
            assert peer.seen == []

    play(scenario)


@pytest.mark.parametrize("kind", [ChangesAnswers, RepeatsAnswers])
def test_a_relay_that_changes_or_repeats_an_answer_is_not_believed(kind: type[Relay]) -> None:
    async def scenario(peer: Peer) -> None:
        async with scene(peer, kind=kind) as at:
            await at.connect()
            if kind is RepeatsAnswers:  # the first one is honest
                assert await at.peers.request(at.to, "POST", "/v1/forward", b"true", timeout_s=SOON_S) == b"true"
            with pytest.raises(Unavailable, match="without the peer's signature"):
                await at.peers.request(at.to, "POST", "/v1/forward", b"true", timeout_s=SOON_S)

    play(scenario)


def test_a_relay_cannot_refuse_in_the_peers_name() -> None:
    async def scenario(peer: Peer) -> None:
        async with scene(peer, limits=replace(LIMITS, max_body_bytes=10)) as at:
            await at.connect()
            with pytest.raises(Unavailable, match="did not bring a request"):
                await at.peers.request(at.to, "POST", "/v1/backward", bytes(11), timeout_s=SOON_S)

    play(scenario)


def test_an_address_behind_a_relay_is_good_for_its_own_hotkey_only() -> None:
    async def scenario(peer: Peer) -> None:
        async with scene(peer) as at:
            other = PeerAddress(dev_signer("//other").hotkey, at.to.url)
            with pytest.raises(Malformed):
                await at.peers.request(other, "POST", "/v1/forward", timeout_s=SOON_S)

    play(scenario)


class Watched(Relay):
    """A relay that says when an answer has ended, one way or another."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.ended = asyncio.Event()

    async def _answer(self, raw: Any, stream: Any, head: ResponseHead, deadline: float) -> Any:
        try:
            return await super()._answer(raw, stream, head, deadline)
        finally:
            if head.length == len(LARGE):
                self.ended.set()


def test_a_slow_reader_holds_up_only_itself_and_is_cut_off() -> None:
    async def scenario(peer: Peer) -> None:
        async with scene(peer, kind=Watched, limits=replace(LIMITS, stall_timeout_s=0.5)) as at:
            await at.connect()
            headers, _ = signed(b"", method="GET", target="/v1/shards", receiver=PEER.hotkey)
            path = TARGET.replace("/v1/forward?shard=1", "/v1/shards")
            caller = socket.socket()
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            caller.setblocking(False)
            await asyncio.get_running_loop().sock_connect(caller, ("127.0.0.1", at.hub.port))
            reader, writer = await asyncio.open_connection(sock=caller, limit=1024)
            writer.write(request_bytes("GET", path, headers))
            await reader.readuntil(b"\r\n\r\n")  # and reads no further
            assert isinstance(at.relay, Watched)
            assert not at.relay.ended.is_set()
            for number in range(20):
                body = b"%d" % number
                assert await at.peers.request(at.to, "POST", "/v1/forward", body, timeout_s=SOON_S) == body
            await at.relay.ended.wait()
            received = b"begun"
            with suppress(ConnectionError):
                while received:
                    received = await reader.read(1 << 16)
            assert reader.exception() is not None or reader.at_eof()
            writer.close()

    play(scenario)


def test_a_newer_connection_takes_the_olders_place_and_the_older_ends() -> None:
    async def scenario(peer: Peer) -> None:
        async with scene(peer) as at:
            links: list[Outbound] = []

            async def older() -> None:
                async with behind_relay(at.there.gate, PEER, at.at, SWIFT):
                    links.append(await at.connect())
                    await asyncio.Event().wait()

            with pytest.raises(ExceptionGroup) as caught:
                await older()
            assert caught.group_contains(ConfigError, match="Another program")
            [newer] = links
            assert await at.peers.request(at.to, "POST", "/v1/forward", b"x", timeout_s=SOON_S) == b"x"
            assert newer.num_connections == 1

    play(scenario)


def test_who_is_not_connected_is_away_at_once_and_a_lost_connection_ends_what_is_under_way() -> None:
    async def scenario(peer: Peer) -> None:
        async with scene(peer) as at, aiohttp.ClientSession() as session:
            with pytest.raises(Unavailable, match="not connected"):
                await at.peers.request(at.to, "POST", "/v1/forward", b"x", timeout_s=SOON_S)
            link = await at.raw_link(session)
            call = asyncio.ensure_future(at.peers.request(at.to, "POST", "/v1/forward", b"x", timeout_s=SOON_S))
            await link.receive()  # the request is there, and will not be answered
            await link.close()
            with pytest.raises(PeerUnreachable):
                await call
            await at.connect()
            assert await at.peers.request(at.to, "POST", "/v1/forward", b"x", timeout_s=SOON_S) == b"x"

    play(scenario)


def test_a_peer_that_never_answers_runs_into_the_relays_deadline() -> None:
    async def scenario(peer: Peer) -> None:
        limits = replace(LIMITS, request_timeout_s=0.1)
        async with scene(peer, limits=limits) as at, aiohttp.ClientSession() as session:
            link = await at.raw_link(session)
            with pytest.raises(DeadlineExceeded, match="behind this relay"):
                await at.peers.request(at.to, "POST", "/v1/forward", b"x", timeout_s=SOON_S)
            await link.receive()
            cancelled = await link.receive()
            assert cancelled.data[0] == Kind.CANCEL
            await link.close()

    play(scenario)


def test_one_host_cannot_take_all_that_a_peer_may_have_under_way() -> None:
    async def scenario(peer: Peer) -> None:
        limits = replace(LIMITS, link=LinkLimits(max_requests=4, max_requests_per_host=2))
        async with scene(peer, limits=limits) as at, aiohttp.ClientSession() as session:
            link = await at.raw_link(session)
            ask = [at.peers.request(at.to, "POST", "/v1/forward", b"x", timeout_s=SOON_S) for _ in range(3)]
            calls = [asyncio.ensure_future(call) for call in ask]
            done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            assert [type(call.exception()) for call in done] == [Unavailable]
            await link.close()
            await asyncio.gather(*calls, return_exceptions=True)

    play(scenario)


@pytest.mark.parametrize("said", ["garbage", "text", "unasked", "twice", "too-much"])
def test_a_peer_that_breaks_the_rules_of_the_relay_loses_its_connection(said: str) -> None:
    async def scenario(peer: Peer) -> None:
        async with scene(peer) as at, aiohttp.ClientSession() as session:
            link = await at.raw_link(session)
            call = asyncio.ensure_future(at.peers.request(at.to, "GET", "/v1/shards", timeout_s=SOON_S))
            number = int.from_bytes((await link.receive()).data[1:5], "big")
            head = ResponseHead(status=200, length=len(LARGE), proof="")
            match said:
                case "garbage":
                    await link.send_bytes(b"\xff" * 9)
                case "text":
                    await link.send_str("hello")
                case "unasked":
                    await link.send_bytes(encode(Kind.BODY, number + 1, b"x"))
                case "twice":
                    await link.send_bytes(encode(Kind.RESPONSE, number, b"", head))
                    await link.send_bytes(encode(Kind.RESPONSE, number, b"", head))
                case "too-much":
                    small = head.model_copy(update={"length": CHUNK_BYTES})
                    await link.send_bytes(encode(Kind.RESPONSE, number, bytes(CHUNK_BYTES - 1), small))
                    await link.send_bytes(encode(Kind.BODY, number, b"xx"))
            closed = await link.receive()
            assert closed.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
            with pytest.raises(Unavailable):
                await call

    play(scenario)
