"""Our client on the development chain: what a neuron does in its life, and each way in which the SDK hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from subnet.chain import live
from subnet.chain.base import MAX_COMMITMENT_BYTES
from subnet.chain.live import LiveChain, create_wallet, load_wallet
from subnet.chain.weights import WeightSetter
from subnet.errors import ChainError, ConfigError, DeadlineExceeded
from subnet.types import Hotkey, Uid
from tests.contract.chains import Running, running_chain

FUNDS_RAO = 10**12


@dataclass
class World:
    """A subnet with an owner, a validator with stake, and a miner that is not registered yet."""

    running: Running
    wallets: Path
    netuid: int
    hotkeys: dict[str, Hotkey]

    def client(self, name: str) -> LiveChain:
        return LiveChain(self.running.url, self.netuid, load_wallet(self.wallets, name, "default"))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    keys = {name: create_wallet(tmp_path, name) for name in ("owner", "validator", "miner")}
    with running_chain() as running:

        def genesis() -> int:
            netuid = running.chain.add_subnet(*keys["owner"], WeightsSetRateLimit=2, Tempo=30)
            for coldkey, _ in keys.values():
                running.chain.endow(coldkey, FUNDS_RAO)
            running.chain.register(netuid, *keys["validator"])
            running.chain.set_stake(netuid, keys["validator"][1], FUNDS_RAO)
            return netuid

        netuid = running.call(genesis)
        yield World(running, tmp_path, netuid, {name: pair[1] for name, pair in keys.items()})


def test_a_neurons_life(world: World) -> None:
    async def live_it() -> None:
        miner, validator, owner = (world.client(name) for name in ("miner", "validator", "owner"))
        await miner.register()
        with pytest.raises(ChainError, match="HotKeyAlreadyRegistered"):
            await miner.register()
        await miner.serve_axon("127.0.0.1", 4321)
        await owner.commit("liquid/1:7:" + "a" * 64)
        with pytest.raises(ChainError):
            await owner.commit("x" * (MAX_COMMITMENT_BYTES + 1))
        with pytest.raises(ChainError, match="NeuronNoValidatorPermit"):
            await miner.set_weights({Uid(0): 1.0}, 1)
        snapshot = await validator.snapshot()
        assert snapshot.owner_hotkey == world.hotkeys["owner"]
        assert snapshot.commitments[world.hotkeys["owner"]] == "liquid/1:7:" + "a" * 64
        neuron = snapshot.neuron(world.hotkeys["miner"])
        assert neuron is not None
        assert neuron.axon == "127.0.0.1:4321"
        setter = WeightSetter(validator, world.hotkeys["validator"])
        assert setter.is_due(snapshot)
        assert await setter.set(snapshot, {world.hotkeys["miner"]: 3.0, world.hotkeys["owner"]: 1.0})
        with pytest.raises(ChainError):
            await validator.set_weights({Uid(0): 1.0}, 1)  # the rate limit
        target = snapshot.last_epoch_block + 2 * snapshot.tempo_blocks
        while (snapshot := await validator.snapshot()).block < target:
            await asyncio.to_thread(world.running.call, world.running.chain.produce)
        paid = snapshot.neuron(world.hotkeys["miner"])
        assert paid is not None
        assert paid.incentive == pytest.approx(0.75, abs=1e-3)
        assert paid.stake_rao > 0
        assert setter.is_due(snapshot)
        assert await validator.block_hash(1) is not None
        assert await validator.block_hash(10**6) is None
        for client in (miner, validator, owner):
            await client.close()

    asyncio.run(live_it())


@pytest.mark.parametrize("code", [1000, 1001, 1006])
def test_a_closed_connection_costs_at_most_a_deadline(world: World, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "READ_TIMEOUT_S", 2.0)

    async def close_and_read() -> None:
        chain = world.client("validator")
        await chain.snapshot()
        world.running.call(lambda: setattr(world.running.server.faults, "silent", True))
        reading = asyncio.create_task(chain.snapshot())
        await asyncio.sleep(0.1)
        await asyncio.to_thread(world.running.wait, world.running.server.close_connections(code))
        with pytest.raises((DeadlineExceeded, ChainError)):
            await reading
        world.running.call(lambda: setattr(world.running.server.faults, "silent", False))
        assert (await chain.snapshot()).netuid == world.netuid
        await chain.close()

    asyncio.run(close_and_read())


def test_a_silent_chain_and_one_without_blocks_cost_a_deadline(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "READ_TIMEOUT_S", 1.5)
    monkeypatch.setattr(live, "SUBMIT_TIMEOUT_S", 1.5)

    async def wait() -> None:
        chain = world.client("owner")
        faults = world.running.server.faults
        for fault, act in (("silent", chain.snapshot), ("stalled", lambda: chain.commit("hello"))):
            setattr(faults, fault, True)
            with pytest.raises(DeadlineExceeded):
                await act()
            setattr(faults, fault, False)
        assert (await chain.snapshot()).block > 0
        await chain.close()

    asyncio.run(wait())


def test_a_wrong_wallet_and_a_missing_subnet_are_named(world: World) -> None:
    with pytest.raises(ConfigError, match="nobody"):
        load_wallet(world.wallets, "nobody", "default")

    async def look() -> None:
        chain = LiveChain(world.running.url, 77, load_wallet(world.wallets, "miner", "default"))
        with pytest.raises(ChainError, match="77"):
            await chain.snapshot()
        await chain.close()

    asyncio.run(look())
