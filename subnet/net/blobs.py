"""Blobs: large immutable values by key. The seam and two stores: memory, and any store of obstore's (a folder here).

Not here: who may write what (keys are derived by the orchestrator from the sender, never taken from a request).
Invariants: ``put`` is atomic; a key has one spelling; reading what is not there raises ``Missing``.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from obstore.store import LocalStore

from subnet.errors import Malformed, Missing
from subnet.types import Digest, Hotkey, RoundId, StageId

_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
MAX_KEY_CHARS = 240  # below what any file system takes as one name; ours are about 110
PARTS = frozenset({"params", "momentum"})


def check_key(key: str) -> str:
    """``key`` if it is one of ours; raises ``Malformed`` (dots cannot lead a segment, so no path leaves the store)."""
    if len(key) > MAX_KEY_CHARS or not _KEY.fullmatch(key):
        raise Malformed("That is no key of a blob.")
    return key


def _folder(prefix: str) -> str:
    """``prefix`` as whole segments with a closing slash; empty for everything. Raises ``Malformed``."""
    return f"{check_key(prefix.rstrip('/'))}/" if prefix else ""


def shard_key(run_hash: Digest, round_: RoundId, stage: StageId, hotkey: Hotkey, shard: int, part: str) -> str:
    """Key of an owner's result for one shard; ``part`` is in ``PARTS``."""
    return f"{run_hash[:16]}/round-{round_}/stage-{stage}/{hotkey}/shard-{shard}-{part}"


def round_prefix(run_hash: Digest, round_: RoundId) -> str:
    """What all keys of a round begin with."""
    return f"{run_hash[:16]}/round-{round_}/"


class Blobs(Protocol):
    """Raises ``Missing`` and ``Malformed``; reports nothing."""

    async def put(self, key: str, data: bytes) -> None:
        """Store ``data``, whole or not at all."""
        ...

    async def get(self, key: str) -> bytes:
        """The value; raises ``Missing``."""
        ...

    async def size(self, key: str) -> int | None:
        """Bytes of the value, or None."""
        ...

    async def keys(self, prefix: str) -> list[str]:
        """Keys that begin with ``prefix`` (a folder), ascending."""
        ...

    async def delete(self, key: str) -> None:
        """Remove the value, if it is there."""
        ...


class MemoryBlobs:
    """The in-memory twin."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    async def put(self, key: str, data: bytes) -> None:
        """See ``Blobs``."""
        self._values[check_key(key)] = bytes(data)

    async def get(self, key: str) -> bytes:
        """See ``Blobs``."""
        if check_key(key) not in self._values:
            raise Missing("There is no such blob.")
        return self._values[key]

    async def size(self, key: str) -> int | None:
        """See ``Blobs``."""
        value = self._values.get(check_key(key))
        return None if value is None else len(value)

    async def keys(self, prefix: str) -> list[str]:
        """See ``Blobs``."""
        folder = _folder(prefix)
        return sorted(key for key in self._values if key.startswith(folder))

    async def delete(self, key: str) -> None:
        """See ``Blobs``."""
        self._values.pop(check_key(key), None)


class StoreBlobs:
    """Blobs in a folder, through obstore."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._store = LocalStore(str(folder.resolve()))

    async def put(self, key: str, data: bytes) -> None:
        """See ``Blobs``."""
        await self._store.put_async(check_key(key), data)

    async def get(self, key: str) -> bytes:
        """See ``Blobs``."""
        try:
            result = await self._store.get_async(check_key(key))
        except FileNotFoundError:
            raise Missing("There is no such blob.") from None
        return bytes(await result.bytes_async())

    async def size(self, key: str) -> int | None:
        """See ``Blobs``."""
        try:
            meta = await self._store.head_async(check_key(key))
        except FileNotFoundError:
            return None
        return int(meta["size"])

    async def keys(self, prefix: str) -> list[str]:
        """See ``Blobs``."""

        def listed() -> list[str]:
            return sorted(item["path"] for batch in self._store.list(folder or None) for item in batch)

        folder = _folder(prefix)

        return await asyncio.to_thread(listed)

    async def delete(self, key: str) -> None:
        """See ``Blobs``."""
        with suppress(FileNotFoundError):
            await self._store.delete_async(check_key(key))
