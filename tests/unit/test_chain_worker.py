"""A client that hangs, blocks its thread, fails or is slow: what callers see of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from subnet.chain.worker import THREAD_NAME, ClientLost, Vitals, Worker

SHORT_S, LONG_S = 0.05, 10.0


class Client:
    """Answers, hangs, and says when it was closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    async def connect(self) -> None:
        pass

    async def answer(self) -> int:
        return id(self)

    async def hang(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        self.closed.set()


class Workshop:
    """A worker, and the clients that it built."""

    def __init__(self) -> None:
        self.clients: list[Client] = []
        self.worker = Worker(self.build, Client.connect, Client.close)

    def build(self) -> Client:
        self.clients.append(Client())
        return self.clients[-1]


@pytest.fixture
def shop() -> Iterator[Workshop]:
    made = Workshop()
    yield made
    made.worker.abandon()


def test_calls_share_one_client_and_run_side_by_side(shop: Workshop) -> None:
    async def main() -> None:
        hanging = asyncio.create_task(shop.worker.call(Client.hang, LONG_S))
        answers = await asyncio.gather(*[shop.worker.call(Client.answer, LONG_S) for _ in range(3)])
        assert len(set(answers)) == len(shop.clients) == 1
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        assert await shop.worker.call(Client.answer, LONG_S) == answers[0]

    asyncio.run(main())


def test_a_missed_deadline_costs_the_client_and_those_that_shared_it(shop: Workshop) -> None:
    async def main() -> None:
        sharing = asyncio.create_task(shop.worker.call(Client.hang, LONG_S))
        with pytest.raises(TimeoutError):
            await shop.worker.call(Client.hang, SHORT_S)
        with pytest.raises(ClientLost):
            await sharing
        assert await asyncio.to_thread(shop.clients[0].closed.wait, LONG_S)
        await shop.worker.call(Client.answer, LONG_S)
        assert len(shop.clients) == 2

    asyncio.run(main())


def test_a_client_that_blocks_its_thread_is_left_behind(shop: Workshop) -> None:
    release = threading.Event()

    async def block(client: Client) -> None:
        release.wait(LONG_S)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await shop.worker.call(block, SHORT_S)
        await shop.worker.call(Client.answer, LONG_S)
        assert len(shop.clients) == 2

    try:
        asyncio.run(main())
    finally:
        release.set()


def test_a_blocked_thread_leaves_questions_unanswered_until_it_is_released(shop: Workshop) -> None:
    release, blocked = threading.Event(), threading.Event()

    async def block(client: Client) -> None:
        blocked.set()
        release.wait(LONG_S)

    async def main() -> None:
        assert shop.worker.vitals() == Vitals(0, 0)
        calling = asyncio.create_task(shop.worker.call(block, LONG_S))
        assert await asyncio.to_thread(blocked.wait, LONG_S)
        assert [shop.worker.vitals().num_vain for _ in range(3)] == [0, 1, 2]
        release.set()
        await calling
        await shop.worker.call(Client.answer, LONG_S)  # what was asked before is answered before
        assert shop.worker.vitals() == Vitals(0, 0)

    try:
        asyncio.run(main())
    finally:
        release.set()


def test_abandoned_threads_that_do_not_end_are_counted(shop: Workshop) -> None:
    release = threading.Event()

    async def block(client: Client) -> None:
        release.wait(LONG_S)

    async def main() -> None:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await shop.worker.call(block, SHORT_S)
        assert shop.worker.vitals().num_left == 3
        release.set()
        for thread in [known for known in threading.enumerate() if known.name == THREAD_NAME]:
            await asyncio.to_thread(thread.join, LONG_S)
        assert shop.worker.vitals() == Vitals(0, 0)

    try:
        asyncio.run(main())
    finally:
        release.set()


def test_an_error_of_the_work_reaches_the_caller_and_keeps_the_client(shop: Workshop) -> None:
    async def fail(client: Client) -> None:
        raise LookupError("no")

    async def main() -> None:
        with pytest.raises(LookupError):
            await shop.worker.call(fail, LONG_S)
        await shop.worker.call(Client.answer, LONG_S)
        assert len(shop.clients) == 1

    asyncio.run(main())


def test_a_connection_that_fails_is_tried_again_by_the_next_call() -> None:
    attempts: list[int] = []

    async def connect(client: Client) -> None:
        attempts.append(1)
        if len(attempts) == 1:
            raise ConnectionRefusedError

    async def main() -> None:
        worker = Worker(Client, connect, Client.close)
        with pytest.raises(ConnectionRefusedError):
            await worker.call(Client.answer, LONG_S)
        await worker.call(Client.answer, LONG_S)
        worker.abandon()

    asyncio.run(main())


def test_a_client_that_never_finishes_connecting_is_closed() -> None:
    client = Client()

    async def main() -> None:
        worker = Worker(lambda: client, Client.hang, Client.close)
        with pytest.raises(TimeoutError):
            await worker.call(Client.answer, SHORT_S)
        assert await asyncio.to_thread(client.closed.wait, LONG_S)

    asyncio.run(main())
