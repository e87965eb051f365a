"""Each way in which the SDK hangs or a chain misbehaves: our client fails in time, with a type, and works again."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from subnet.chain import live
from subnet.chain.live import STUCK_AFTER_S, LiveChain, create_wallet, load_wallet
from subnet.chain.worker import THREAD_NAME
from subnet.errors import ChainError, ConfigError, DeadlineExceeded
from subnet.localnet.devchain.chain import DevChain, DevChainConfig
from subnet.localnet.devchain.rpc import serve_devchain
from subnet.types import Uid
from tests.contract.worlds import CLOSED_WITHIN_S, LiveWorld, live_world


@pytest.fixture
def served(tmp_path: Path) -> Iterator[LiveWorld]:
    with live_world(tmp_path, False) as made:
        yield made


@pytest.mark.parametrize("code", [1000, 1001, 1006])
def test_a_closed_connection_costs_at_most_a_deadline(
    served: LiveWorld, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "READ_TIMEOUT_S", 2.0)

    async def close_and_read() -> None:
        chain = served.client("validator")
        await chain.snapshot()
        served.fault("silent", True)
        reading = asyncio.create_task(chain.snapshot())
        await asyncio.sleep(0.1)
        await asyncio.to_thread(served.running.wait, served.running.server.close_connections(code))
        with pytest.raises((DeadlineExceeded, ChainError)):
            await reading
        served.fault("silent", False)
        assert (await chain.snapshot()).netuid == served.netuid
        await chain.close()

    asyncio.run(close_and_read())


def test_a_silent_chain_and_one_without_blocks_cost_a_deadline(
    served: LiveWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "READ_TIMEOUT_S", 1.5)
    monkeypatch.setattr(live, "SUBMIT_TIMEOUT_S", 1.5)

    async def wait() -> None:
        chain = served.client("owner")
        acts: dict[str, Callable[[], Awaitable[object]]] = {
            "silent": chain.snapshot,
            "stalled": lambda: chain.commit("hello"),
        }
        for fault, act in acts.items():
            served.fault(fault, True)
            with pytest.raises(DeadlineExceeded):
                await act()
            served.fault(fault, False)
        assert (await chain.snapshot()).block > 0
        await chain.close()

    asyncio.run(wait())


def test_a_wrong_wallet_and_a_missing_subnet_are_named(served: LiveWorld) -> None:
    with pytest.raises(ConfigError, match="nobody"):
        load_wallet(served.wallets, "nobody", "default")

    async def look() -> None:
        chain = LiveChain(served.running.url, 77, load_wallet(served.wallets, "miner", "default"))
        with pytest.raises(ChainError, match="77"):
            await chain.snapshot()
        await chain.close()

    asyncio.run(look())


def test_refusals_keep_the_connection_and_lost_ones_are_closed(
    served: LiveWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def be_refused() -> None:
        chain = served.client("miner")
        await chain.snapshot()
        before = set(served.running.server.connections)
        for _ in range(3):
            with pytest.raises(ChainError):
                await chain.set_weights({Uid(0): 1.0}, 1)
        assert set(served.running.server.connections) == before
        monkeypatch.setattr(live, "READ_TIMEOUT_S", 0.5)
        served.fault("silent", True)
        with pytest.raises(DeadlineExceeded):
            await chain.snapshot()
        await served.closes_connections()

    asyncio.run(be_refused())


def test_connections_that_never_open_do_not_pile_up(served: LiveWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "READ_TIMEOUT_S", 0.5)

    async def knock() -> None:
        chain = served.client("miner")
        served.fault("silent", True)
        for _ in range(2):
            with pytest.raises(DeadlineExceeded):
                await chain.snapshot()
        # The SDK keeps a connection that it was opening to itself: it ends when its thread has and it is collected.
        for thread in [known for known in threading.enumerate() if known.name == THREAD_NAME]:
            await asyncio.to_thread(thread.join, CLOSED_WITHIN_S)
        gc.collect()
        await served.closes_connections()

    asyncio.run(knock())


def test_a_cancelled_call_leaves_a_client_that_answers(served: LiveWorld) -> None:
    async def change_our_mind() -> None:
        chain = served.client("owner")
        await chain.snapshot()
        served.fault("silent", True)
        reading = asyncio.create_task(chain.snapshot())
        await asyncio.sleep(0.1)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        served.fault("silent", False)
        snapshots = await asyncio.gather(chain.snapshot(), chain.snapshot())
        assert all(snapshot.netuid == served.netuid for snapshot in snapshots)
        assert len(served.running.server.connections) == 1
        await chain.close()
        await served.closes_connections()

    asyncio.run(change_our_mind())


def test_two_clients_of_one_hotkey_do_not_trip_over_their_nonces(served: LiveWorld) -> None:
    async def take_turns() -> None:
        one, other = served.client("owner"), served.client("owner")
        for number in range(2):
            await one.commit(f"one {number}")
            await other.commit(f"other {number}")
        assert (await one.snapshot()).commitments == {served.hotkeys["owner"]: "other 1"}
        await one.close()
        await other.close()

    asyncio.run(take_turns())


def test_a_chain_that_is_away_for_long_is_no_stuck_thread(served: LiveWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "READ_TIMEOUT_S", 0.5)

    async def wait() -> None:
        chain = served.client("owner")
        served.fault("silent", True)
        for _ in range(2):
            with pytest.raises(DeadlineExceeded):
                await chain.snapshot()
        for thread in [known for known in threading.enumerate() if known.name == THREAD_NAME]:
            await asyncio.to_thread(thread.join, CLOSED_WITHIN_S)
        assert not chain.is_stuck(time.monotonic() + 100 * STUCK_AFTER_S)
        served.fault("silent", False)
        monkeypatch.setattr(live, "READ_TIMEOUT_S", 10.0)
        await chain.snapshot()
        await chain.close()

    asyncio.run(wait())


def test_a_pool_that_refuses_is_an_error_that_may_pass(served: LiveWorld) -> None:
    async def submit() -> None:
        chain = served.client("owner")
        served.running.call(lambda: setattr(served.running.server.faults, "pool_rejection", "Custom error: 6"))
        with pytest.raises(ChainError) as refused:
            await chain.commit("hello")
        assert refused.value.retryable
        served.running.call(lambda: setattr(served.running.server.faults, "pool_rejection", None))
        await chain.commit("hello")
        await chain.close()

    asyncio.run(submit())


def test_a_connection_lost_while_a_transaction_is_watched_costs_at_most_a_deadline(
    served: LiveWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "SUBMIT_TIMEOUT_S", 3.0)

    async def lose() -> None:
        chain = served.client("owner")
        for code in (1000, 1001, 1006):
            await chain.snapshot()
            served.fault("stalled", True)
            committing = asyncio.create_task(chain.commit(f"lost {code}"))
            await asyncio.to_thread(served.running.wait, pooled(served))
            await asyncio.to_thread(served.running.wait, served.running.server.close_connections(code))
            with pytest.raises((DeadlineExceeded, ChainError)) as failed:
                await committing
            assert failed.value.retryable
            served.fault("stalled", False)
        await chain.commit("back")
        assert (await chain.snapshot()).commitments == {served.hotkeys["owner"]: "back"}
        await chain.close()

    asyncio.run(lose())


async def pooled(served: LiveWorld) -> None:
    """Returns once a transaction waits in the pool."""
    async with asyncio.timeout(CLOSED_WITHIN_S):
        while not served.running.chain.pool.waiting:  # noqa: ASYNC110 - the pool tells nobody
            await asyncio.sleep(0.01)


def test_an_endpoint_that_is_down_at_first_is_an_error_and_is_used_once_it_is_up(tmp_path: Path) -> None:
    create_wallet(tmp_path, "owner")
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    chain = LiveChain(f"ws://127.0.0.1:{port}", 1, load_wallet(tmp_path, "owner", "default"))

    async def knock() -> None:
        with pytest.raises(ChainError) as refused:
            await chain.snapshot()
        assert refused.value.retryable
        made = DevChain(DevChainConfig(block_time_s=0.1))
        made.add_subnet(
            "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY",
            str(load_wallet(tmp_path, "owner", "default").hotkey.ss58_address),
        )
        async with serve_devchain(made, port=port):
            assert (await chain.snapshot()).netuid == 1
            await chain.close()

    asyncio.run(knock())
