"""The contract of ``Blobs``: one suite for the store in memory and for a folder through obstore."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from subnet.errors import Malformed, Missing
from subnet.net.blobs import Blobs, MemoryBlobs, StoreBlobs, round_prefix, shard_key
from subnet.types import Digest, Hotkey, RoundId, StageId

RUN = Digest("ab" * 32)


@pytest.fixture(params=["memory", "folder"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    return MemoryBlobs() if request.param == "memory" else StoreBlobs(tmp_path / "blobs")


def test_what_was_put_is_got_and_may_be_replaced(blobs: Blobs) -> None:
    async def scenario() -> None:
        await blobs.put("run/a", b"one")
        await blobs.put("run/a", b"three")
        await blobs.put("run/empty", b"")
        assert await blobs.get("run/a") == b"three"
        assert await blobs.size("run/a") == 5
        assert await blobs.get("run/empty") == b""
        assert await blobs.size("run/empty") == 0

    asyncio.run(scenario())


def test_what_is_missing(blobs: Blobs) -> None:
    async def scenario() -> None:
        with pytest.raises(Missing):
            await blobs.get("run/none")
        assert await blobs.size("run/none") is None
        await blobs.put("run/a", b"x")
        await blobs.delete("run/a")
        await blobs.delete("run/a")
        with pytest.raises(Missing):
            await blobs.get("run/a")

    asyncio.run(scenario())


def test_keys_lists_a_folder_by_whole_segments(blobs: Blobs) -> None:
    async def scenario() -> None:
        for key in ("run/round-10/b", "run/round-1/b", "run/round-1/a/c", "other/x"):
            await blobs.put(key, b"x")
        assert await blobs.keys("run/round-1") == ["run/round-1/a/c", "run/round-1/b"]
        assert await blobs.keys("run/round-1/") == ["run/round-1/a/c", "run/round-1/b"]
        assert await blobs.keys("none") == []
        assert len(await blobs.keys("")) == 4

    asyncio.run(scenario())


def test_the_value_is_a_copy(blobs: Blobs) -> None:
    async def scenario() -> None:
        data = bytearray(b"abc")
        await blobs.put("run/a", data)
        data[0] = 0
        assert await blobs.get("run/a") == b"abc"

    asyncio.run(scenario())


def test_derived_keys_are_keys_and_lie_below_their_round(blobs: Blobs) -> None:
    async def scenario() -> None:
        hotkey = Hotkey("5GYWwqruExA8bRq8ZGQqWZfZKr4RFMEAqmQsVVqXMhLMUycf")
        key = shard_key(RUN, RoundId(7), StageId(2), hotkey, 3, "params")
        await blobs.put(key, b"x")
        assert await blobs.keys(round_prefix(RUN, RoundId(7))) == [key]
        assert await blobs.keys(round_prefix(RUN, RoundId(70))) == []

    asyncio.run(scenario())


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "../a", "a/../b", "a/.b", "a b", "a\0b", "ä", "a" * 241])
def test_a_key_has_one_spelling(blobs: Blobs, key: str) -> None:
    async def scenario() -> None:
        for operation in (blobs.put(key, b"x"), blobs.get(key), blobs.size(key), blobs.delete(key)):
            with pytest.raises(Malformed):
                await operation

    asyncio.run(scenario())
