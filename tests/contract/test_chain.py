"""One contract for every ``Chain``: ours on the development chain, and the in-memory twin."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import bittensor_core as core
import pytest

from subnet.chain.base import MAX_COMMITMENT_BYTES
from subnet.chain.live import create_wallet
from subnet.chain.weights import WeightSetter
from subnet.errors import ChainError
from subnet.localnet.devchain.scale import compact, octets
from subnet.types import Uid
from tests.contract.chains import LiveWorld, World, live_world, memory_world

HEAD = "liquid/1:7:" + "a" * 64


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


def test_the_weights_of_a_reused_uid_are_not_inherited(served: LiveWorld) -> None:
    """Scores follow the hotkey: who takes over a pruned miner's uid gets nothing of its weight."""

    async def replace() -> None:
        miner, validator = served.client("miner"), served.client("validator")
        await miner.register()
        before = await validator.snapshot()
        gone = before.neuron(served.hotkeys["miner"])
        assert gone is not None
        newcomer = create_wallet(served.wallets, "newcomer")

        def prune() -> None:
            state = served.running.chain.state
            state.put("SubtensorModule", "MaxAllowedUids", len(before.neurons), served.netuid)
            state.put("SubtensorModule", "ImmunityPeriod", 0, served.netuid)
            state.put("SubtensorModule", "Emission", [1, 1, 0], served.netuid)  # the miner is the least useful
            served.running.chain.register(served.netuid, *newcomer)

        served.running.call(prune)
        after = await validator.snapshot()
        taken = after.neuron(newcomer[1])
        assert taken is not None
        assert taken.uid == gone.uid
        assert after.neuron(served.hotkeys["miner"]) is None
        setter = WeightSetter(validator, served.hotkeys["validator"])
        assert await setter.set(after, {served.hotkeys["miner"]: 1.0})
        weights = (await validator.snapshot()).neurons[1].weights
        assert weights.get(taken.uid, 0.0) == 0.0
        assert weights[after.burn_uid()] == 1.0
        await miner.close()
        await validator.close()

    asyncio.run(replace())


def test_sealed_weights_are_opened_and_applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No beacon can be had offline: the SDK's seal is made for the recorded round that the chain can open."""

    def seal(uids: list[int], weights: list[int], version_key: int, hotkey: bytes, **_: object) -> tuple[bytes, int]:
        columns = [
            compact(len(part)) + b"".join(item.to_bytes(2, "little") for item in part) for part in (uids, weights)
        ]
        payload = octets(bytes(hotkey)) + b"".join(columns) + version_key.to_bytes(8, "little")
        sealed, reveal_round = core.encrypt_at_round(payload, 1000)
        return bytes(sealed), reveal_round

    monkeypatch.setattr(core, "get_encrypted_commit_v2", seal)
    with live_world(tmp_path, True) as world:

        async def vote() -> None:
            validator = world.client("validator")
            snapshot = await world.until(validator, 3)
            setter = WeightSetter(validator, world.hotkeys["validator"])
            assert await setter.set(snapshot, {world.hotkeys["owner"]: 1.0})
            after = await world.until(validator, snapshot.block + 3 * snapshot.tempo_blocks)
            me = after.neuron(world.hotkeys["validator"])
            assert me is not None
            assert me.weights == {Uid(0): 1.0}
            assert not after.sealed_at_block
            await validator.close()

        asyncio.run(vote())
