"""One contract for every ``Chain``: ours on the development chain, and the in-memory twin."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bittensor_core as core
import pytest
from bittensor.intents import weights as sdk_weights

from subnet.chain.base import MAX_COMMITMENT_BYTES
from subnet.chain.weights import WeightSetter
from subnet.errors import ChainError
from subnet.localnet.devchain.scale import octets, vector
from subnet.records import HEAD_PREFIX
from subnet.types import Uid
from tests.contract.chains import RATE_LIMIT_BLOCKS, TEMPO_BLOCKS, World, live_world, memory_world

PAST_ROUND = 1000  # of drand; the development chain knows its signature
HEAD = f"{HEAD_PREFIX}7:" + "a" * 64


@pytest.fixture(params=["memory", "live"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with memory_world(False) if request.param == "memory" else live_world(tmp_path, False) as made:
        yield made


@pytest.fixture(params=["memory", "live"])
def sealing_world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with memory_world(True) if request.param == "memory" else live_world(tmp_path, True) as made:
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


# --- weights in the open


def test_everything_is_burnt_at_the_owners_place_when_nobody_qualifies(world: World) -> None:
    async def burn() -> None:
        validator = world.client("validator")
        snapshot = await world.until(validator, RATE_LIMIT_BLOCKS + 1)
        setter = WeightSetter(validator, world.hotkeys["validator"])
        assert await setter.set(snapshot, {world.hotkeys["miner"]: 1.0})  # not registered (any more)
        me = (await validator.snapshot()).neuron(world.hotkeys["validator"])
        assert me is not None
        assert me.weights == {Uid(0): 1.0}
        await validator.close()

    asyncio.run(burn())


def test_a_reused_uid_gets_nothing_of_its_predecessor(world: World) -> None:
    async def reuse() -> None:
        miner, validator = world.client("miner"), world.client("validator")
        await miner.register()
        before = await world.until(validator, RATE_LIMIT_BLOCKS + 1)
        setter = WeightSetter(validator, world.hotkeys["validator"])
        scores = {world.hotkeys["miner"]: 3.0, world.hotkeys["owner"]: 1.0}
        world.prune("miner", "newcomer")
        assert not await setter.set(before, scores), "they went to somebody else, and are not held to be set"
        after = await world.until(validator, before.block + 2 * RATE_LIMIT_BLOCKS + 2)
        place = before.neuron(world.hotkeys["miner"])
        newcomer = after.neuron(world.hotkeys["newcomer"])
        assert place is not None
        assert newcomer is not None
        assert newcomer.uid == place.uid
        assert after.neuron(world.hotkeys["miner"]) is None
        assert setter.look(after), "the epoch's weights are still due"
        assert await setter.set(after, scores)
        me = (await validator.snapshot()).neuron(world.hotkeys["validator"])
        assert me is not None
        assert me.weights == {Uid(0): 1.0}, "what was the predecessor's burns"
        await miner.close()
        await validator.close()

    asyncio.run(reuse())


def test_without_a_permit_no_weights_are_due(world: World) -> None:
    async def starve() -> None:
        validator = world.client("validator")
        setter = WeightSetter(validator, world.hotkeys["validator"])
        assert setter.is_due(await world.until(validator, RATE_LIMIT_BLOCKS + 1))
        world.starve("validator")
        snapshot = await validator.snapshot()
        me = snapshot.neuron(world.hotkeys["validator"])
        assert me is not None
        assert not me.validator_permit
        assert not setter.is_due(snapshot)
        await validator.close()

    asyncio.run(starve())


def test_a_subnet_can_change_hands(world: World) -> None:
    async def sell() -> None:
        chain = world.client("owner")
        assert (await chain.snapshot()).owner_hotkey == world.hotkeys["owner"]
        world.hand_over("validator")
        snapshot = await chain.snapshot()
        assert snapshot.owner_hotkey == world.hotkeys["validator"]
        assert snapshot.burn_uid() == Uid(1)
        await chain.close()

    asyncio.run(sell())


# --- sealed weights


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
        assert after.sealed_at_block[world.hotkeys["validator"]] > snapshot.block
        assert not setter.is_due(after)
        restarted = WeightSetter(validator, world.hotkeys["validator"])
        later = await world.until(validator, after.block + RATE_LIMIT_BLOCKS)
        assert not restarted.is_due(later), "what the chain still keeps sealed is this epoch's"
        await validator.close()

    asyncio.run(seal())


def sealed_for_a_round_that_is_past(**vote: Any) -> tuple[bytes, int]:
    """As the SDK seals weights, but for a drand round whose signature the development chain has on record."""
    numbers = [vector(number.to_bytes(2, "little") for number in vote[part]) for part in ("uids", "weights")]
    payload = octets(bytes(vote["hotkey"])) + b"".join(numbers) + int(vote["version_key"]).to_bytes(8, "little")
    sealed, _ = core.encrypt_at_round(payload, PAST_ROUND)
    return bytes(sealed), PAST_ROUND


def test_sealed_weights_are_opened_at_their_epoch(sealing_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # No fake can stand in here: nobody can sign a future round, so the SDK's own sealing is given a past one.
    monkeypatch.setattr(sdk_weights._core, "get_encrypted_commit_v2", sealed_for_a_round_that_is_past)
    world = sealing_world

    async def reveal() -> None:
        validator = world.client("validator")
        snapshot = await world.until(validator, RATE_LIMIT_BLOCKS + 1)
        setter = WeightSetter(validator, world.hotkeys["validator"])
        wanted = {world.hotkeys["owner"]: 1.0, world.hotkeys["validator"]: 3.0}
        assert await setter.set(snapshot, wanted)
        opened = await world.until(validator, snapshot.block + 2 * TEMPO_BLOCKS + 1)
        me = opened.neuron(world.hotkeys["validator"])
        assert me is not None
        assert me.weights == {Uid(0): pytest.approx(0.25, abs=1e-3), Uid(1): pytest.approx(0.75, abs=1e-3)}
        assert opened.sealed_at_block == {}
        assert setter.look(opened), "the next epoch's are due"
        await validator.close()

    asyncio.run(reveal())
