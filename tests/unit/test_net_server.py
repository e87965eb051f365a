"""The server's end: it closes fast with polls open, finishes what was begun, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import time

import pytest

from subnet.errors import LiquidError, PeerUnreachable
from subnet.net.auth import Verifier, dev_signer
from subnet.net.base import PeerAddress, Request, Response, reply
from subnet.net.client import HttpPeers
from subnet.net.server import SHUTDOWN_S, serve

NUM_POLLS = 20
OWNER = dev_signer("//owner")


def test_closing_ends_open_polls_within_a_second_and_finishes_posts() -> None:
    async def main() -> None:
        open_polls, all_open, ended, appended = set[int](), asyncio.Event(), [], asyncio.Event()
        posting, is_closing = asyncio.Event(), asyncio.Event()

        async def handle(request: Request) -> Response:
            if request.method == "POST":
                posting.set()
                await is_closing.wait()
                appended.set()
                return reply(b"appended")
            open_polls.add(int(request.query["n"]))
            if len(open_polls) == NUM_POLLS:
                all_open.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(request.query["n"])
            return reply(b"")

        peers = HttpPeers(dev_signer("//a"))
        async with serve(handle, Verifier(OWNER.hotkey), "127.0.0.1", 0) as served:
            to = PeerAddress(OWNER.hotkey, f"http://127.0.0.1:{served.port}")
            polls = [
                asyncio.ensure_future(peers.request(to, "GET", "/v1/ledger", query={"n": str(n)}, timeout_s=60))
                for n in range(NUM_POLLS)
            ]
            post = asyncio.ensure_future(peers.request(to, "POST", "/v1/ready", b"{}", timeout_s=60))
            await all_open.wait()
            await posting.wait()
            is_closing.set()
            began_s = time.monotonic()
        took_s = time.monotonic() - began_s
        results = await asyncio.gather(*polls, return_exceptions=True)
        assert took_s < SHUTDOWN_S  # nobody waited for the grace period to pass
        assert all(isinstance(result, PeerUnreachable) for result in results)
        assert len(ended) == NUM_POLLS
        assert appended.is_set()
        await asyncio.gather(post, return_exceptions=True)
        with pytest.raises(PeerUnreachable):
            await peers.request(to, "GET", "/v1/ledger", timeout_s=5)
        await peers.aclose()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_a_post_that_hangs_does_not_hold_the_server_open() -> None:
    async def main() -> None:
        begun = asyncio.Event()

        async def hang(request: Request) -> Response:
            begun.set()
            await asyncio.Event().wait()
            return reply(b"")

        peers = HttpPeers(dev_signer("//a"))
        async with serve(hang, Verifier(OWNER.hotkey), "127.0.0.1", 0) as served:
            to = PeerAddress(OWNER.hotkey, f"http://127.0.0.1:{served.port}")
            call = asyncio.ensure_future(peers.request(to, "POST", "/v1/ready", timeout_s=60))
            await begun.wait()
            began_s = time.monotonic()
        assert time.monotonic() - began_s < 1.0
        with pytest.raises(PeerUnreachable):
            await call
        await peers.aclose()

    asyncio.run(main())


def test_connections_are_reused() -> None:
    async def main() -> None:
        async def handle(request: Request) -> Response:
            return reply(b"")

        peers = HttpPeers(dev_signer("//a"))
        async with serve(handle, Verifier(OWNER.hotkey), "127.0.0.1", 0) as served:
            to = PeerAddress(OWNER.hotkey, f"http://127.0.0.1:{served.port}")
            for _ in range(5):
                await peers.request(to, "POST", "/v1/forward", b"x" * 20_000, timeout_s=5)
            connector = peers._session.connector
            assert connector is not None
            assert sum(len(idle) for idle in connector._conns.values()) == 1
            await peers.aclose()

    asyncio.run(main())


def test_a_port_in_use_is_an_error_of_the_system() -> None:
    async def main() -> None:
        async def handle(request: Request) -> Response:
            return reply(b"")

        async with serve(handle, Verifier(OWNER.hotkey), "127.0.0.1", 0) as served:
            with pytest.raises(OSError, match="in use"):
                async with serve(handle, Verifier(OWNER.hotkey), "127.0.0.1", served.port):
                    pass

    asyncio.run(main())


class LateClock:
    """Tells the time once; later it is long after."""

    def __init__(self) -> None:
        self._readings = [time.time()]

    def now_s(self) -> float:
        return self._readings.pop() if self._readings else time.time() + 20.0


def test_freshness_is_judged_when_the_headers_come_not_when_the_body_is_complete() -> None:
    async def main() -> None:
        async def handle(request: Request) -> Response:
            return reply(b"done")

        peers = HttpPeers(dev_signer("//a"))
        async with serve(handle, Verifier(OWNER.hotkey, LateClock()), "127.0.0.1", 0) as served:
            to = PeerAddress(OWNER.hotkey, f"http://127.0.0.1:{served.port}")
            assert await peers.request(to, "POST", "/v1/forward", b"x", timeout_s=5) == b"done"
        await peers.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("head", ["302 Found\r\nLocation: /v1/other", "200 OK\r\nContent-Encoding: gzip"])
def test_the_client_neither_follows_nor_unpacks(head: str) -> None:
    async def main() -> None:
        targets: list[bytes] = []

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            targets.append((await reader.readuntil(b"\r\n\r\n")).splitlines()[0])
            writer.write(f"HTTP/1.1 {head}\r\nContent-Length: 3\r\nConnection: close\r\n\r\nraw".encode())
            await writer.drain()
            writer.close()

        peers = HttpPeers(dev_signer("//a"))
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            to = PeerAddress(OWNER.hotkey, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            if head.startswith("200"):
                assert await peers.request(to, "GET", "/v1/me", timeout_s=5) == b"raw"
            else:
                with pytest.raises(LiquidError, match="302"):
                    await peers.request(to, "GET", "/v1/me", timeout_s=5)
            await peers.aclose()
        assert targets == [b"GET /v1/me HTTP/1.1"]

    asyncio.run(main())
