"""One contract for every ``Chain``: ours on the development chain, and the in-memory twin; and each way in which the
SDK hangs, on the development chain alone."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from subnet.chain import live
from subnet.chain.base import MAX_COMMITMENT_BYTES, Chain, ChainSnapshot
from subnet.chain.live import STUCK_AFTER_S, LiveChain, create_wallet, load_wallet
from subnet.chain.memory import MemoryChain, MemoryLedgerChain
from subnet.chain.weights import WeightSetter
from subnet.chain.worker import THREAD_NAME
from subnet.errors import ChainError, ConfigError, DeadlineExceeded
from subnet.types import Hotkey, Uid
from tests.contract.chains import Running, running_chain

FUNDS_RAO = 10**12
NAMES = ("owner", "validator", "miner")
HEAD = "liquid/1:7:" + "a" * 64
CLOSED_WITHIN_S = 5.0


@dataclass
class World:
    """A subnet with an owner, a validator with stake, and a miner that is not registered yet."""

    hotkeys: dict[str, Hotkey]
    client: Callable[[str], Chain]
    produce: Callable[[], None]

    async def until(self, chain: Chain, block: int) -> ChainSnapshot:
        while (snapshot := await chain.snapshot()).block < block:
            await asyncio.to_thread(self.produce)
        return snapshot


@dataclass
class LiveWorld(World):
    client: Callable[[str], LiveChain]
    running: Running
    wallets: Path
    netuid: int

    def fault(self, name: str, value: bool) -> None:
        self.running.call(lambda: setattr(self.running.server.faults, name, value))

    async def closes_connections(self) -> None:
        """Raises ``TimeoutError`` if any stays open."""

        async def closed() -> None:
            await asyncio.gather(*[known.socket.wait_closed() for known in self.running.server.connections])

        await asyncio.to_thread(self.running.wait, asyncio.wait_for(closed(), CLOSED_WITHIN_S))


@contextmanager
def live_world(folder: Path, has_commit_reveal: bool) -> Iterator[LiveWorld]:
    keys = {name: create_wallet(folder, name) for name in NAMES}
    with running_chain() as running:

        def genesis() -> int:
            settings: dict[str, Any] = {
                "WeightsSetRateLimit": 2,
                "Tempo": 30,
                "CommitRevealWeightsEnabled": has_commit_reveal,
            }
            netuid = running.chain.add_subnet(*keys["owner"], **settings)
            for coldkey, _ in keys.values():
                running.chain.endow(coldkey, FUNDS_RAO)
            running.chain.register(netuid, *keys["validator"])
            running.chain.set_stake(netuid, keys["validator"][1], FUNDS_RAO)
            return netuid

        netuid = running.call(genesis)
        hotkeys = {name: pair[1] for name, pair in keys.items()}

        def client(name: str) -> LiveChain:
            return LiveChain(running.url, netuid, load_wallet(folder, name, "default"))

        yield LiveWorld(hotkeys, client, lambda: running.call(running.chain.produce), running, folder, netuid)


@contextmanager
def memory_world(has_commit_reveal: bool) -> Iterator[World]:
    hotkeys = {name: Hotkey(f"hot {name}") for name in NAMES}
    ledger = MemoryLedgerChain(
        ("cold owner", hotkeys["owner"]),
        tempo_blocks=30,
        weights_rate_limit_blocks=2,
        has_commit_reveal=has_commit_reveal,
    )
    ledger.register("cold validator", hotkeys["validator"], FUNDS_RAO)
    yield World(hotkeys, lambda name: MemoryChain(ledger, f"cold {name}", hotkeys[name]), ledger.step)


@pytest.fixture(params=["memory", "live"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with memory_world(False) if request.param == "memory" else live_world(tmp_path, False) as made:
        yield made


@pytest.fixture(params=["memory", "live"])
def sealing_world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with memory_world(True) if request.param == "memory" else live_world(tmp_path, True) as made:
        yield made


@pytest.fixture
def served(tmp_path: Path) -> Iterator[LiveWorld]:
    with live_world(tmp_path, False) as made:
        yield made


# --- the contract


def test_a_neurons_life(world: World) -> None:
    async def live_it() -> None:
        miner, validator, owner = (world.client(name) for name in ("miner", "validator", "owner"))
        await miner.register()
        with pytest.raises(ChainError, match="HotKeyAlreadyRegistered"):
            await miner.register()
        await miner.serve_axon("127.0.0.1", 4321)
        await owner.commit(HEAD)
        with pytest.raises(ChainError):
            await owner.commit("x" * (MAX_COMMITMENT_BYTES + 1))
        with pytest.raises(ChainError, match="NeuronNoValidatorPermit"):
            await miner.set_weights({Uid(0): 1.0}, 1)
        snapshot = await validator.snapshot()
        assert snapshot.owner_hotkey == world.hotkeys["owner"]
        assert snapshot.burn_uid() == Uid(0)
        assert not snapshot.has_commit_reveal
        assert snapshot.commitments == {world.hotkeys["owner"]: HEAD}
        neuron = snapshot.neuron(world.hotkeys["miner"])
        assert neuron is not None
        assert neuron.axon == "127.0.0.1:4321"
        setter = WeightSetter(validator, world.hotkeys["validator"])
        assert setter.is_due(snapshot)
        assert await setter.set(snapshot, {world.hotkeys["miner"]: 3.0, world.hotkeys["owner"]: 1.0})
        assert not setter.is_due(await validator.snapshot())
        with pytest.raises(ChainError):
            await validator.set_weights({Uid(0): 1.0}, 1)  # the rate limit
        snapshot = await world.until(validator, snapshot.last_epoch_block + 2 * snapshot.tempo_blocks)
        paid = snapshot.neuron(world.hotkeys["miner"])
        assert paid is not None
        assert paid.incentive == pytest.approx(0.75, abs=1e-3)
        assert paid.stake_rao > 0
        assert setter.is_due(snapshot)
        for client in (miner, validator, owner):
            await client.close()

    asyncio.run(live_it())


def test_a_commitment_of_the_full_length_comes_back_and_the_next_replaces_it(world: World) -> None:
    async def publish() -> None:
        owner = world.client("owner")
        for text in ("x" * MAX_COMMITMENT_BYTES, "short"):
            await owner.commit(text)
            assert (await owner.snapshot()).commitments == {world.hotkeys["owner"]: text}
        await owner.close()

    asyncio.run(publish())


def test_hashes_are_of_final_blocks_and_stay(world: World) -> None:
    async def look() -> None:
        chain = world.client("owner")
        await world.until(chain, 2)
        first = await chain.block_hash(1)
        assert first is not None
        assert first.startswith("0x")
        assert len(first) == 2 + 64
        assert await chain.block_hash(2) != first
        assert await chain.block_hash(1) == first
        assert await chain.block_hash(10**6) is None
        await chain.close()

    asyncio.run(look())


def test_who_is_not_registered_is_refused(world: World) -> None:
    async def knock() -> None:
        miner = world.client("miner")
        with pytest.raises(ChainError):
            await miner.serve_axon("127.0.0.1", 4321)
        with pytest.raises(ChainError):
            await miner.set_weights({Uid(0): 1.0}, 1)
        assert (await miner.snapshot()).neuron(world.hotkeys["miner"]) is None
        await miner.close()

    asyncio.run(knock())


def test_sealed_weights_count_as_set_once_the_chain_took_them(sealing_world: World) -> None:
    world = sealing_world

    async def seal() -> None:
        validator = world.client("validator")
        snapshot = await world.until(validator, 5)
        assert snapshot.has_commit_reveal
        setter = WeightSetter(validator, world.hotkeys["validator"])
        assert setter.is_due(snapshot)
        assert await setter.set(snapshot, {world.hotkeys["owner"]: 1.0})
        after = await validator.snapshot()
        me = after.neuron(world.hotkeys["validator"])
        assert me is not None
        assert not me.weights  # still sealed
        assert not setter.is_due(after)
        await validator.close()

    asyncio.run(seal())


# --- ours on a chain that misbehaves


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


def test_a_chain_that_is_away_is_stuck_after_a_while_and_not_once_it_answers(
    served: LiveWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "READ_TIMEOUT_S", 0.5)

    async def wait() -> None:
        chain = served.client("owner")
        assert not chain.is_stuck(time.monotonic() + STUCK_AFTER_S)
        served.fault("silent", True)
        with pytest.raises(DeadlineExceeded):
            await chain.snapshot()
        assert not chain.is_stuck(time.monotonic())
        assert chain.is_stuck(time.monotonic() + STUCK_AFTER_S)
        served.fault("silent", False)
        monkeypatch.setattr(live, "READ_TIMEOUT_S", 10.0)
        await chain.snapshot()
        assert not chain.is_stuck(time.monotonic() + STUCK_AFTER_S)
        await chain.close()

    asyncio.run(wait())
