"""Each way in which the SDK is known to hang or to fail, with the real SDK on a development chain that misbehaves.

Of every fault: a typed error within its deadline, and the same ``LiveChain`` works once the fault is over.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from subnet.chain.live import LiveChain, Timeouts, load_wallet
from subnet.chain.worker import THREAD_NAME
from subnet.errors import (
    ChainError,
    ChainNotNow,
    ChainRefused,
    ChainUnreachable,
    ConfigError,
    DeadlineExceeded,
    LiquidError,
)
from subnet.types import Uid
from tests.contract.chains import CLOSED_WITHIN_S, RATE_LIMIT_BLOCKS, LiveWorld, live_world

CLEAN_AND_ABNORMAL = (1000, 1001, 1006)
UNANSWERED = (DeadlineExceeded, ChainUnreachable)  # both retryable
SLACK_S = 2.0  # shared cores


@pytest.fixture
def served(tmp_path: Path) -> Iterator[LiveWorld]:
    with live_world(tmp_path) as made:
        yield made


async def fails(work: asyncio.Task[object], within_s: float) -> LiquidError:
    """The retryable error that ``work`` ends with, in time."""
    with pytest.raises(UNANSWERED) as caught:
        await asyncio.wait_for(work, within_s + SLACK_S)
    assert isinstance(caught.value, LiquidError)
    assert caught.value.retryable
    return caught.value


async def works_again(world: LiveWorld, chain: LiveChain, text: str) -> None:
    await chain.commit(text)
    assert (await chain.snapshot()).commitments == {world.hotkeys["owner"]: text}


@pytest.mark.parametrize("code", CLEAN_AND_ABNORMAL)
def test_a_connection_closed_under_a_read_costs_at_most_its_deadline(served: LiveWorld, code: int) -> None:
    async def main() -> None:
        chain = served.hasty("owner", read_s=1.5, submit_s=10.0)
        await chain.snapshot()
        served.running.fault("silent")
        reading: asyncio.Task[object] = asyncio.create_task(chain.snapshot())
        await asyncio.sleep(0.1)
        await served.close_connections(code)
        await fails(reading, 1.5)
        served.running.fault("silent", False)
        await works_again(served, chain, "after")
        await chain.close()

    asyncio.run(main())


@pytest.mark.parametrize("code", CLEAN_AND_ABNORMAL)
def test_a_connection_closed_under_a_transaction_costs_at_most_its_deadline(served: LiveWorld, code: int) -> None:
    async def main() -> None:
        chain = served.hasty("owner", read_s=5.0, submit_s=3.0)
        await chain.snapshot()
        served.running.fault("stalled")  # it stays in the pool, watched
        committing: asyncio.Task[object] = asyncio.create_task(chain.commit("before"))
        await served.until_pooled()
        await served.close_connections(code)
        await fails(committing, 3.0)
        served.running.fault("stalled", False)
        await works_again(served, chain, "after")
        await chain.close()

    asyncio.run(main())


def test_silence_and_a_chain_without_blocks_cost_a_deadline(served: LiveWorld) -> None:
    async def main() -> None:
        chain = served.hasty("owner", read_s=1.0, submit_s=5.0)
        served.running.fault("silent")
        assert isinstance(await fails(asyncio.create_task(chain.snapshot()), 1.0), DeadlineExceeded)
        served.running.fault("silent", False)
        await works_again(served, chain, "heard")
        served.running.fault("stalled")
        assert isinstance(await fails(asyncio.create_task(chain.commit("stalled")), 5.0), DeadlineExceeded)
        served.running.fault("stalled", False)
        await works_again(served, chain, "moving")
        await chain.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("text", "error", "kind"),
    [
        ("Custom error: 6", ChainNotNow, "rate_limited"),
        ("Custom error: 10", ChainRefused, "not_registered"),
        ("Inability to pay some fees (e.g. account balance too low)", ChainRefused, "insufficient_balance"),
        ("Transaction would exhaust the block limits", ChainNotNow, "limit_exceeded"),
    ],
)
def test_a_refusing_pool_is_an_error_with_name_and_kind(
    served: LiveWorld, text: str, error: type[ChainRefused], kind: str
) -> None:
    async def main() -> None:
        chain = served.hasty("owner", read_s=5.0, submit_s=10.0)
        served.running.fault("pool_rejection", text)
        with pytest.raises(ChainRefused) as caught:
            await chain.commit("no")
        assert type(caught.value) is error
        assert caught.value.kind == kind
        assert caught.value.name
        assert caught.value.retryable == (error is ChainNotNow)
        served.running.fault("pool_rejection", None)
        await works_again(served, chain, "yes")
        await chain.close()

    asyncio.run(main())


def test_refusals_of_the_runtime_say_whether_they_pass(served: LiveWorld) -> None:
    async def main() -> None:
        miner, validator = served.client("miner"), served.client("validator")
        with pytest.raises(ChainRefused) as caught:
            await miner.set_weights({Uid(0): 1.0}, 1)
        assert (caught.value.kind, caught.value.retryable) == ("not_registered", False)
        await miner.register()
        await served.until(miner, (await miner.snapshot()).block + RATE_LIMIT_BLOCKS + 1)
        with pytest.raises(ChainRefused) as caught:
            await miner.set_weights({Uid(0): 1.0}, 1)
        assert (caught.value.name, caught.value.retryable) == ("NeuronNoValidatorPermit", False)
        await validator.set_weights({Uid(0): 1.0}, 1)
        served.running.fault("stalled")  # or the limit is over before it is asked again
        with pytest.raises(ChainNotNow) as caught:
            await validator.set_weights({Uid(0): 1.0}, 1)
        assert caught.value.kind == "rate_limited"
        await miner.close()
        await validator.close()

    asyncio.run(main())


def test_refusals_keep_the_connection_and_lost_ones_are_closed(served: LiveWorld) -> None:
    async def main() -> None:
        chain = served.hasty("miner", read_s=0.5, submit_s=10.0)
        await chain.snapshot()
        before = set(served.running.server.connections)
        for _ in range(3):
            with pytest.raises(ChainRefused):
                await chain.set_weights({Uid(0): 1.0}, 1)
        assert set(served.running.server.connections) == before
        served.running.fault("silent")
        await fails(asyncio.create_task(chain.snapshot()), 0.5)
        await served.closes_connections()

    asyncio.run(main())


def test_two_clients_of_one_hotkey_do_not_trip_over_their_nonces(served: LiveWorld) -> None:
    async def main() -> None:
        one, other = served.client("owner"), served.client("owner")
        for number in range(2):
            await one.commit(f"one {number}")
            await other.commit(f"other {number}")
        assert (await one.snapshot()).commitments == {served.hotkeys["owner"]: "other 1"}
        await one.close()
        await other.close()

    asyncio.run(main())


def test_an_endpoint_that_is_down_at_start_is_used_once_it_is_up(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = int(taken.getsockname()[1])
    with live_world(tmp_path):
        pass  # only for its wallets
    chain = LiveChain(f"ws://127.0.0.1:{port}", 1, load_wallet(tmp_path, "owner", "default"), Timeouts(10.0, 20.0))

    async def main() -> None:
        with pytest.raises(ChainUnreachable, match=f"127.0.0.1:{port}"):
            await chain.snapshot()
        with live_world(tmp_path, port=port) as world:
            await works_again(world, chain, "up")
            await chain.close()

    asyncio.run(main())


def _read_in_child(url: str, netuid: int, wallets: str, found: multiprocessing.Queue[int]) -> None:
    async def main() -> None:
        chain = LiveChain(url, netuid, load_wallet(Path(wallets), "miner", "default"))
        found.put((await chain.snapshot()).netuid)
        await chain.close()

    asyncio.run(main())


def test_a_spawned_child_has_a_client_of_its_own_while_the_parent_keeps_its(served: LiveWorld) -> None:
    async def main() -> None:
        chain = served.client("owner")
        await chain.snapshot()
        context = multiprocessing.get_context("spawn")
        found: multiprocessing.Queue[int] = context.Queue()
        child = context.Process(
            target=_read_in_child, args=(served.running.url, served.netuid, str(served.wallets), found)
        )
        await asyncio.to_thread(child.start)
        try:
            assert await asyncio.to_thread(found.get, True, 60) == served.netuid
            await asyncio.to_thread(child.join, 10)
            assert child.exitcode == 0
        finally:
            child.kill()
        await works_again(served, chain, "parent")
        await chain.close()

    asyncio.run(main())


def test_a_wrong_wallet_and_a_missing_subnet_are_named(served: LiveWorld) -> None:
    with pytest.raises(ConfigError, match="nobody"):
        load_wallet(served.wallets, "nobody", "default")

    async def main() -> None:
        chain = LiveChain(served.running.url, 77, load_wallet(served.wallets, "miner", "default"))
        with pytest.raises(ChainRefused, match=r"no subnet 77 on .*; it has 1\.") as caught:
            await chain.snapshot()
        assert not caught.value.retryable
        await chain.close()

    asyncio.run(main())


def test_a_chain_that_is_silent_for_long_leaves_no_threads_and_is_not_stuck(served: LiveWorld) -> None:
    async def main() -> None:
        chain = served.hasty("miner", read_s=0.3)
        served.running.fault("silent")
        for _ in range(4):
            with pytest.raises(DeadlineExceeded):
                await chain.snapshot()
            assert chain.stuck() is None
        for thread in [known for known in threading.enumerate() if known.name == THREAD_NAME]:
            await asyncio.to_thread(thread.join, CLOSED_WITHIN_S)
            assert not thread.is_alive()
        await served.closes_connections()
        served.running.fault("silent", False)
        chain = served.client("miner")
        assert (await chain.snapshot()).netuid == served.netuid
        await chain.close()

    asyncio.run(main())


def test_a_cancelled_call_leaves_a_client_that_answers(served: LiveWorld) -> None:
    async def main() -> None:
        chain = served.client("owner")
        await chain.snapshot()
        served.running.fault("silent")
        reading = asyncio.create_task(chain.snapshot())
        await asyncio.sleep(0.1)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        served.running.fault("silent", False)
        snapshots = await asyncio.gather(chain.snapshot(), chain.snapshot())
        assert all(snapshot.netuid == served.netuid for snapshot in snapshots)
        assert len(served.running.server.connections) == 1
        await chain.close()
        await served.closes_connections()

    asyncio.run(main())


def test_every_failure_is_of_the_tree() -> None:
    assert {kind.retryable for kind in UNANSWERED} == {True}
    assert (ChainError.retryable, ChainRefused.retryable, ChainNotNow.retryable) == (False, False, True)
