"""Typed key-value storage of the chain, with the state at every recent block and all-or-nothing changes.

Values are held as the SCALE bytes that clients read. History is kept as what each block overwrote, so a block costs
memory by what it changed, and reading n blocks back costs n lookups at most. What is written between two blocks (by a
test or by the launcher) amends the newest block. Not a trie: there are no proofs and state roots are zero.

Source: storage layout by `bittensor_core.Runtime`, over our own metadata.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from bittensor_core import Runtime

PREFIX_BYTES = 32  # twox128(pallet) + twox128(item), in front of every key of that item

READS_WITHOUT_INDEX = 16  # by scripts/bench_chain.py: one index costs about as much as fifty reads

Overwritten = dict[bytes, bytes | None]


class Codec:
    """Storage keys and values of one runtime; how an item that holds nothing reads."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.entry = cache(runtime.storage_entry)
        self.prefix = cache(lambda pallet, item: bytes(runtime.storage_prefix(pallet, item)))

    def key(self, pallet: str, item: str, keys: tuple[Any, ...]) -> bytes:
        return bytes(self.runtime.storage_key(pallet, item, list(keys)))

    def encode(self, pallet: str, item: str, value: Any) -> bytes:
        return bytes(self.runtime.encode(self.entry(pallet, item).value_type, value))

    def decode(self, pallet: str, item: str, raw: bytes | None) -> Any:
        entry = self.entry(pallet, item)
        if raw is None:
            if entry.modifier != "Default":
                return None
            raw = bytes(entry.default_bytes)
        return self.runtime.decode(entry.value_type, raw)


class View:
    """Storage as of one block, for reading."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec

    def raw(self, key: bytes) -> bytes | None:
        raise KeyError(key)

    def raw_keys(self, prefix: bytes) -> list[bytes]:
        """All keys that start with ``prefix``, in byte order."""
        raise KeyError(prefix)

    def get(self, pallet: str, item: str, *keys: Any) -> Any:
        return self.codec.decode(pallet, item, self.raw(self.codec.key(pallet, item, keys)))

    def values(self, pallet: str, item: str) -> list[Any]:
        return [
            self.codec.decode(pallet, item, self.raw(key)) for key in self.raw_keys(self.codec.prefix(pallet, item))
        ]


class State(View):
    """The newest storage; everything that runs in a block reads and writes it."""

    def __init__(self, codec: Codec, history_blocks: int) -> None:
        super().__init__(codec)
        self.items: dict[bytes, dict[bytes, bytes]] = {}
        self.number = 0
        self.history_blocks = history_blocks
        self.unsaved: set[bytes] | None = None  # what was written since `store` emptied it; None without a store
        self.overwritten: deque[Overwritten] = deque([{}], maxlen=history_blocks)  # the last is the newest block's
        self.pending: list[Overwritten] = []  # open transactions, the innermost last

    def raw(self, key: bytes) -> bytes | None:
        return self.items.get(key[:PREFIX_BYTES], {}).get(key)

    def raw_keys(self, prefix: bytes) -> list[bytes]:
        if len(prefix) < PREFIX_BYTES:
            return sorted(key for start, item in self.items.items() if start.startswith(prefix) for key in item)
        return sorted(key for key in self.items.get(prefix[:PREFIX_BYTES], ()) if key.startswith(prefix))

    def write(self, key: bytes, value: bytes | None) -> None:
        """value: None removes the key"""
        journal = self.pending[-1] if self.pending else self.overwritten[-1]
        journal.setdefault(key, self.raw(key))
        self._store(key, value)

    def _store(self, key: bytes, value: bytes | None) -> None:
        if self.unsaved is not None:
            self.unsaved.add(key)
        item = self.items.setdefault(key[:PREFIX_BYTES], {})
        if value is None:
            item.pop(key, None)
        else:
            item[key] = value

    def put(self, pallet: str, item: str, value: Any, *keys: Any) -> None:
        self.write(self.codec.key(pallet, item, keys), self.codec.encode(pallet, item, value))

    def remove(self, pallet: str, item: str, *keys: Any) -> None:
        self.write(self.codec.key(pallet, item, keys), None)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Undoes every write of its body if the body raises."""
        journal: Overwritten = {}
        self.pending.append(journal)
        is_done = False
        try:
            yield
            is_done = True
        finally:
            self.pending.pop()
            if not is_done:
                for key, value in journal.items():
                    self._store(key, value)
        outer = self.pending[-1] if self.pending else self.overwritten[-1]
        for key, value in journal.items():
            outer.setdefault(key, value)

    def next_block(self, number: int) -> None:
        """From here on writes belong to block ``number``."""
        if number != self.number + 1:
            raise ValueError(f"block {number} does not follow {self.number}")
        self.number = number
        self.overwritten.append({})

    def drop_block(self) -> None:
        """Undoes everything that was written since the newest block began, what amended it included."""
        if self.number == 0:
            raise ValueError("block 0 cannot be undone")
        for key, value in self.overwritten.pop().items():
            self._store(key, value)
        if not self.overwritten:  # a history of one block
            self.overwritten.append({})
        self.number -= 1

    def restore(self, storage: dict[bytes, bytes], number: int, journals: list[Overwritten]) -> None:
        """Everything as saved at block ``number``. journals: what the last blocks overwrote, in order"""
        for key, value in storage.items():
            self._store(key, value)
        self.unsaved = set()
        self.number = number
        self.overwritten.clear()
        self.overwritten.extend(journals)

    def at(self, number: int) -> View | None:
        """Storage as it was when block ``number`` was the newest, or None where that has been forgotten."""
        distance = self.number - number
        if not 0 <= distance < len(self.overwritten):
            return None
        return PastState(self, number) if distance else self


class PastState(View):
    """Storage at an earlier block: the oldest value that a later block overwrote, else the newest value.

    A few reads look through the later blocks one by one; more of them are worth one index over all of these.
    Used at once and thrown away: a block that is produced meanwhile shifts the history that it looks into.
    """

    def __init__(self, state: State, number: int) -> None:
        super().__init__(state.codec)
        self.state = state
        self.later = list(state.overwritten)[number - state.number :]
        self.num_reads = 0
        self.index: Overwritten | None = None

    def indexed(self) -> Overwritten:
        if self.index is None:
            self.index = {}
            for journal in reversed(self.later):
                self.index.update(journal)
        return self.index

    def raw(self, key: bytes) -> bytes | None:
        self.num_reads += 1
        journals = self.later if self.num_reads <= READS_WITHOUT_INDEX else [self.indexed()]
        for journal in journals:
            if key in journal:
                return journal[key]
        return self.state.raw(key)

    def raw_keys(self, prefix: bytes) -> list[bytes]:
        index = self.indexed()
        known = {key for key in self.state.raw_keys(prefix) if key not in index}
        known.update(key for key, value in index.items() if value is not None and key.startswith(prefix))
        return sorted(known)
