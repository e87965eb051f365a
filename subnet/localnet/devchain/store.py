"""The chain on disk: one SQLite file with the newest storage, the recent blocks and what each of them overwrote.

Each save is one SQLite transaction: after a crash of the program, at whatever instant, the file holds the chain as of
some save, whole. (After a power failure it does too, but the last saves may be missing.) One program at a time may hold
the file. Blocks older than the history are deleted with the same transaction, so the file stops growing. Not here: the
pool, which does not outlive the program, and the switches of `faults`.

Invariant: nothing is written to a file that is refused: another program's, another format's, another genesis's, a
damaged one, one in use.
Source: SQLite's write-ahead log with synchronous=NORMAL.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from subnet.errors import ConfigError
from subnet.localnet.devchain.blocks import Block
from subnet.localnet.devchain.epochs import Payment
from subnet.localnet.devchain.scale import Reader, octets, vector
from subnet.localnet.devchain.state import Overwritten, State

FORMAT = 1  # PRAGMA user_version
APPLICATION_ID = 0x4C514443  # "LQDC", in the file's header
REMEDY = "Name another file with --state, or move this one away to begin a new chain."

SCHEMA = (
    "CREATE TABLE storage (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE blocks (number INTEGER PRIMARY KEY, hash TEXT NOT NULL, parent TEXT NOT NULL,"
    " extrinsics BLOB NOT NULL, time_ms INTEGER NOT NULL)",
    "CREATE TABLE overwritten (number INTEGER, key BLOB, value BLOB, PRIMARY KEY (number, key)) WITHOUT ROWID",
    "CREATE TABLE payments (netuid INTEGER PRIMARY KEY, record TEXT NOT NULL)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
)


@dataclass(frozen=True)
class Saved:
    """A chain as the file held it. blocks: by number, in order; journals: of the last so many of them, in order"""

    storage: dict[bytes, bytes]
    blocks: list[Block]
    journals: list[Overwritten]
    payments: dict[int, Payment]


def unpacked(blob: bytes) -> tuple[bytes, ...]:
    """The transactions of a block, each with its own length in front as in ``octets``."""
    reader = Reader(blob)
    return tuple(reader.octets() for _ in range(reader.compact()))


def contiguous(numbers: list[int]) -> int:
    """How many of the last numbers follow each other without a gap."""
    return next((at for at in range(1, len(numbers)) if numbers[-at - 1] != numbers[-at] - 1), len(numbers))


class Store:
    """An open state file; `load` first. `is_new`: nothing was ever saved in it. Raises ConfigError throughout."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.saved_hash: str | None = None  # of the newest saved block
        self.saved_payments: dict[int, Payment] = {}
        with self._refusing():
            # One thread at a time uses it, but not always the one that opened it.
            self.db = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            with self._refusing():
                self.is_new = self._open()
        except ConfigError:
            self.db.close()
            raise

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.OperationalError, OSError) as error:
            in_use = "locked" in str(error)
            reason = "is in use by another program" if in_use else f"cannot be used: {error}"
            raise ConfigError(f"The state file {self.path} {reason}.", remedy=REMEDY) from error
        except sqlite3.DatabaseError as error:
            raise self._damaged(str(error)) from error

    def _damaged(self, reason: str) -> ConfigError:
        return ConfigError(f"The state file {self.path} is damaged, or not one: {reason}.", remedy=REMEDY)

    def _number(self, question: str) -> int:
        return int(self.db.execute(question).fetchone()[0])

    def _open(self) -> bool:
        """Everything is checked before the first write, which is the change to the write-ahead log."""
        self.db.execute("PRAGMA locking_mode = EXCLUSIVE")
        num_tables = self._number("SELECT count(*) FROM sqlite_master")
        application, version = (self._number(f"PRAGMA {name}") for name in ("application_id", "user_version"))
        if num_tables:
            if application != APPLICATION_ID:
                raise self._damaged("it is another program's database")
            if version != FORMAT:
                reason = f"has format {version}; this program reads and writes format {FORMAT}"
                raise ConfigError(f"The state file {self.path} {reason}.", remedy=REMEDY)
            found = str(self.db.execute("PRAGMA quick_check(1)").fetchone()[0])
            if found != "ok":
                raise self._damaged(found)
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("PRAGMA synchronous = NORMAL")
        with self.transaction():  # takes the lock, also where nothing is written
            pass
        return num_tables == 0

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.db.execute("BEGIN IMMEDIATE")
        is_done = False
        try:
            yield
            self.db.execute("COMMIT")
            is_done = True
        finally:
            if not is_done and self.db.in_transaction:
                self.db.execute("ROLLBACK")

    def close(self) -> None:
        self.db.close()

    # Reading

    def load(self, genesis_hash: str) -> Saved:
        """genesis_hash: what the file's has to be"""
        try:
            with self._refusing():
                return self._load(genesis_hash)
        except ConfigError:
            self.close()
            raise
        except (ValueError, TypeError, LookupError) as error:
            self.close()
            raise self._damaged(f"{type(error).__name__} while reading") from error

    def _load(self, genesis_hash: str) -> Saved:
        rows = self.db.execute("SELECT number, hash, parent, extrinsics, time_ms FROM blocks ORDER BY number")
        blocks = [Block(number, name, parent, unpacked(raw), ms) for number, name, parent, raw, ms in rows]
        if not blocks or blocks[0].number != 0:
            raise self._damaged("it lacks the first block")
        if blocks[0].hash != genesis_hash:
            reason = "belongs to a chain with other metadata (another version, or another block time)"
            raise ConfigError(f"The state file {self.path} {reason}.", remedy=REMEDY)
        recent = blocks[-contiguous([block.number for block in blocks]) :]
        if any(block.parent != before.hash for before, block in pairwise(recent)):
            raise self._damaged("its blocks do not follow each other")
        journals: dict[int, Overwritten] = {block.number: {} for block in recent}
        for number, key, value in self.db.execute("SELECT number, key, value FROM overwritten"):
            if number in journals:
                journals[number][key] = value
        payments = {}
        for netuid, record in self.db.execute("SELECT netuid, record FROM payments"):
            fields: dict[str, Any] = json.loads(record)
            payments[netuid] = Payment(**{**fields, "per_uid": tuple(fields["per_uid"])})
        self.saved_hash, self.saved_payments = blocks[-1].hash, dict(payments)
        storage = dict(self.db.execute("SELECT key, value FROM storage"))
        return Saved(storage, blocks, list(journals.values()), payments)

    # Writing

    def save(self, state: State, block: Block, payments: Mapping[int, Payment]) -> None:
        """Everything that changed since the last save. block: the newest; it may replace a saved one of its number"""
        with self._refusing(), self.transaction():
            if self.is_new:
                for statement in SCHEMA:
                    self.db.execute(statement)
            self._save_storage(state)
            self._save_block(state, block)
            changed = {netuid: paid for netuid, paid in payments.items() if self.saved_payments.get(netuid) != paid}
            self.db.executemany(
                "INSERT OR REPLACE INTO payments VALUES (?, ?)",
                [(netuid, json.dumps(asdict(paid))) for netuid, paid in changed.items()],
            )
        self.is_new, self.saved_hash = False, block.hash
        self.saved_payments.update(changed)
        state.unsaved = set()

    def _save_storage(self, state: State) -> None:
        values = [(key, state.raw(key)) for key in state.unsaved or ()]
        self.db.executemany(
            "INSERT INTO storage VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            [pair for pair in values if pair[1] is not None],
        )
        self.db.executemany("DELETE FROM storage WHERE key = ?", [(key,) for key, value in values if value is None])

    def _save_block(self, state: State, block: Block) -> None:
        number = block.number
        if block.hash != self.saved_hash:
            self.db.execute("DELETE FROM overwritten WHERE number >= ?", (number,))
            self.db.execute(
                "INSERT OR REPLACE INTO blocks VALUES (?, ?, ?, ?, ?)",
                (number, block.hash, block.parent, vector(map(octets, block.extrinsics)), block.time_ms),
            )
        self.db.executemany(
            "INSERT OR IGNORE INTO overwritten VALUES (?, ?, ?)",
            [(number, key, value) for key, value in state.overwritten[-1].items()],
        )
        oldest = number - state.history_blocks
        self.db.execute("DELETE FROM overwritten WHERE number <= ?", (oldest,))
        self.db.execute("DELETE FROM blocks WHERE number <= ? AND number > 0", (oldest,))
