"""The contract of ``Peers``: one suite for the in-memory network, for real HTTP on loopback, and through a relay."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from subnet.errors import (
    DeadlineExceeded,
    Diverged,
    LiquidError,
    Malformed,
    OutOfTurn,
    PeerUnreachable,
    Refused,
    TooLarge,
    Unavailable,
)
from subnet.net.auth import Verifier, dev_signer, verify_stamp
from subnet.net.base import (
    DEFAULT_CAP_BYTES,
    RELAY_PREFIX,
    Handler,
    PeerAddress,
    Peers,
    Request,
    Response,
    relay_url,
    reply,
)
from subnet.net.client import HttpPeers
from subnet.net.memory import MemoryNetwork
from subnet.net.outbound import behind_relay
from subnet.net.relay import Relay, RelayLimits
from subnet.net.server import serve

SOON_S = 5.0
CAPS = {"/v1/forward": 512 * 1024}
MAX_RESPONSE_BYTES = 1024 * 1024


class World:
    """Peers that can reach each other, by either network."""

    def __init__(self, kind: str, stack: AsyncExitStack) -> None:
        self._kind = kind
        self._stack = stack
        self._memory = MemoryNetwork(max_response_bytes=MAX_RESPONSE_BYTES)
        self._relay: PeerAddress | None = None

    async def join(self, name: str, handler: Handler) -> tuple[Peers, PeerAddress]:
        signer = dev_signer(f"//{name}")
        if self._kind == "memory":
            peers: Peers = self._memory.attach(signer.hotkey, handler, signer=signer, caps=CAPS)
            return peers, PeerAddress(signer.hotkey, "http://127.0.0.1:1")
        served = await self._stack.enter_async_context(serve(handler, Verifier(signer.hotkey), "127.0.0.1", 0, CAPS))
        peers = HttpPeers(signer, max_response_bytes=MAX_RESPONSE_BYTES)
        self._stack.push_async_callback(peers.aclose)
        if self._kind == "http":
            return peers, PeerAddress(signer.hotkey, f"http://127.0.0.1:{served.port}")
        relay = self._relay = self._relay or await self._relay_up()
        await self._stack.enter_async_context(behind_relay(served.gate, signer, relay))
        return peers, PeerAddress(signer.hotkey, relay_url(relay.url, signer.hotkey))

    async def _relay_up(self) -> PeerAddress:
        operator = dev_signer("//relay")
        verifier = Verifier(operator.hotkey)
        relay = Relay(verifier, lambda hotkey: True, RelayLimits(max_body_bytes=2 * CAPS["/v1/forward"]))
        serving = serve(Recorder(), verifier, "127.0.0.1", 0, relay=relay)
        served = await self._stack.enter_async_context(serving)
        return PeerAddress(operator.hotkey, f"http://127.0.0.1:{served.port}{RELAY_PREFIX}")


Scenario = Callable[[World], Awaitable[None]]
Play = Callable[[Scenario], None]


@pytest.fixture(params=["memory", "http", "relay"])
def play(request: pytest.FixtureRequest) -> Play:
    def run(scenario: Scenario) -> None:
        async def main() -> None:
            async with asyncio.timeout(20), AsyncExitStack() as stack:
                await scenario(World(request.param, stack))

        asyncio.run(main())

    return run


class Recorder:
    """A handler that keeps what it was asked and answers with ``answer``."""

    def __init__(self, answer: Callable[[Request], Response] = lambda request: reply(request.body)) -> None:
        self.requests: list[Request] = []
        self._answer = answer

    async def __call__(self, request: Request) -> Response:
        self.requests.append(request)
        return self._answer(request)


def raising(error: LiquidError) -> Recorder:
    def answer(request: Request) -> Response:
        raise error

    return Recorder(answer)


def test_a_request_arrives_as_it_was_sent_and_can_be_proved(play: Play) -> None:
    async def scenario(world: World) -> None:
        there = Recorder()
        here, own = await world.join("a", Recorder())
        _, address = await world.join("b", there)
        body = bytes(range(256)) * 80
        query = {"shard": "3", "part": "a b&c=d/ü"}
        assert await here.request(address, "POST", "/v1/forward", body, query=query, timeout_s=SOON_S) == body
        (seen,) = there.requests
        assert (seen.sender, seen.method, seen.path, seen.query, seen.body) == (
            own.hotkey,
            "POST",
            "/v1/forward",
            query,
            body,
        )
        assert seen.auth is not None
        assert seen.auth.receiver == address.hotkey
        assert verify_stamp(own.hotkey, seen.auth, body)
        assert not verify_stamp(own.hotkey, seen.auth, body + b"x")
        assert not verify_stamp(address.hotkey, seen.auth, body)

    play(scenario)


def test_empty_bodies_and_empty_answers(play: Play) -> None:
    async def scenario(world: World) -> None:
        here, own = await world.join("a", Recorder())
        assert await here.request(own, "GET", "/v1/me", timeout_s=SOON_S) == b""

    play(scenario)


@pytest.mark.parametrize("kind", [OutOfTurn, Malformed, Unavailable, PeerUnreachable])
def test_an_error_arrives_by_its_class_with_message_and_remedy(play: Play, kind: type[LiquidError]) -> None:
    async def scenario(world: World) -> None:
        here, _ = await world.join("a", Recorder())
        _, address = await world.join("b", raising(kind("Round 3 is over.", remedy="Look at the ledger.")))
        with pytest.raises(kind, match=r"Round 3 is over\. Look at the ledger\.") as caught:
            await here.request(address, "POST", "/v1/forward", timeout_s=SOON_S)
        assert type(caught.value) is kind

    play(scenario)


def test_a_peer_cannot_make_us_believe_in_a_fault_of_our_own(play: Play) -> None:
    async def scenario(world: World) -> None:
        here, _ = await world.join("a", Recorder())
        _, address = await world.join("b", raising(Diverged("NaN.")))
        with pytest.raises(LiquidError) as caught:
            await here.request(address, "POST", "/v1/forward", timeout_s=SOON_S)
        assert type(caught.value) is LiquidError

    play(scenario)


def test_no_answer_ends_with_the_deadline(play: Play) -> None:
    async def scenario(world: World) -> None:
        ended = asyncio.Event()

        async def poll(request: Request) -> Response:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            return reply(b"")

        here, _ = await world.join("a", Recorder())
        _, address = await world.join("b", poll)
        with pytest.raises(DeadlineExceeded):
            await here.request(address, "GET", "/v1/ledger", timeout_s=0.05)
        await ended.wait()  # a poll ends with its caller

    play(scenario)


def test_a_post_whose_caller_left_runs_to_its_end(play: Play) -> None:
    async def scenario(world: World) -> None:
        begun, go_on, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def append(request: Request) -> Response:
            if request.method == "GET":
                return reply(b"")
            begun.set()
            await go_on.wait()
            done.set()
            return reply(b"")

        here, _ = await world.join("a", Recorder())
        _, address = await world.join("b", append)
        call = asyncio.ensure_future(here.request(address, "POST", "/v1/ready", b"{}", timeout_s=SOON_S))
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        for _ in range(3):  # by now the other side has seen that the caller is gone
            await here.request(address, "GET", "/v1/me", timeout_s=SOON_S)
        go_on.set()
        await done.wait()
        assert await here.request(address, "POST", "/v1/ready", b"{}", timeout_s=SOON_S) == b""

    play(scenario)


def test_bodies_up_to_the_cap_pass_and_larger_ones_do_not(play: Play) -> None:
    async def scenario(world: World) -> None:
        there = Recorder(lambda request: reply(str(len(request.body)).encode()))
        here, _ = await world.join("a", Recorder())
        _, address = await world.join("b", there)
        for path, cap in (("/v1/forward", CAPS["/v1/forward"]), ("/v1/ready", DEFAULT_CAP_BYTES)):
            exact = await here.request(address, "POST", path, bytes(cap), timeout_s=SOON_S)
            assert exact == str(cap).encode()
            with pytest.raises(TooLarge):
                await here.request(address, "POST", path, bytes(cap + 1), timeout_s=SOON_S)
        assert len(there.requests) == 2

    play(scenario)


def test_an_answer_over_what_we_accept_is_refused(play: Play) -> None:
    async def scenario(world: World) -> None:
        here, _ = await world.join("a", Recorder())
        _, address = await world.join("b", Recorder(lambda request: reply(bytes(MAX_RESPONSE_BYTES + 1))))
        with pytest.raises(TooLarge):
            await here.request(address, "GET", "/v1/me", timeout_s=SOON_S)

    play(scenario)


def test_a_path_that_has_a_second_spelling_is_refused(play: Play) -> None:
    async def scenario(world: World) -> None:
        there = Recorder()
        here, _ = await world.join("a", Recorder())
        _, address = await world.join("b", there)
        for path in ("/v1/%6de", "/v1//me", "/v1/me/"):
            with pytest.raises(Malformed):
                await here.request(address, "GET", path, timeout_s=SOON_S)
        assert there.requests == []

    play(scenario)


def test_a_peer_that_is_not_there(play: Play) -> None:
    async def scenario(world: World) -> None:
        here, _ = await world.join("a", Recorder())
        nobody = PeerAddress(dev_signer("//nobody").hotkey, "http://127.0.0.1:1")
        with pytest.raises(PeerUnreachable):
            await here.request(nobody, "POST", "/v1/forward", timeout_s=SOON_S)

    play(scenario)


def test_many_requests_at_once_and_none_after_closing(play: Play) -> None:
    async def scenario(world: World) -> None:
        here, _ = await world.join("a", Recorder())
        _, address = await world.join("b", Recorder())
        calls = [here.request(address, "POST", "/v1/forward", b"%d" % i, timeout_s=SOON_S) for i in range(50)]
        assert await asyncio.gather(*calls) == [b"%d" % i for i in range(50)]
        await here.aclose()
        with pytest.raises(PeerUnreachable):
            await here.request(address, "POST", "/v1/forward", timeout_s=SOON_S)

    play(scenario)


def test_refusals_are_not_retryable_and_absence_is(play: Play) -> None:
    async def scenario(world: World) -> None:
        here, _ = await world.join("a", Recorder())
        _, address = await world.join("b", raising(OutOfTurn("Later.")))
        with pytest.raises(Refused) as caught:
            await here.request(address, "POST", "/v1/forward", timeout_s=SOON_S)
        assert not caught.value.retryable
        assert PeerUnreachable.retryable

    play(scenario)
