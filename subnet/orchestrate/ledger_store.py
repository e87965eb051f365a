"""Where the ledger lies: a table of entries in any SQL database, or memory.

Not here: what entries mean (``subnet.swarm.ledger``).
Invariants: ``append`` is one transaction and durable when it returns; ``load`` gives back whole entries in order, whose
hash chain the caller checks by folding them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sqlalchemy import Column, Integer, LargeBinary, MetaData, Table, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from subnet.errors import LedgerCorrupt, Malformed
from subnet.records import LedgerEntry, decode

_META = MetaData()
_ENTRIES = Table(
    "ledger",
    _META,
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("entry", LargeBinary, nullable=False),
)


class LedgerStore(Protocol):
    """Raises ``LedgerCorrupt`` from ``load``; an append that cannot be made durable raises the store's own error."""

    async def load(self) -> list[LedgerEntry]:
        """All entries in order."""
        ...

    async def append(self, entries: Sequence[LedgerEntry]) -> None:
        """Add entries at the end, all or none."""
        ...

    async def close(self) -> None:
        """Release the store."""
        ...


class MemoryLedgerStore:
    """The in-memory twin. It outlives its orchestrator, as a disk would."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []

    async def load(self) -> list[LedgerEntry]:
        """See ``LedgerStore``."""
        return _entries(self._lines)

    async def append(self, entries: Sequence[LedgerEntry]) -> None:
        """See ``LedgerStore``."""
        self._lines.extend(entry.encoded() for entry in entries)

    async def close(self) -> None:
        """See ``LedgerStore``."""


class SqlLedgerStore:
    """SQLite by default; PostgreSQL and others by URL (``postgresql+psycopg://...``)."""

    def __init__(self, url: str) -> None:
        self._engine: AsyncEngine = create_async_engine(url)

    async def load(self) -> list[LedgerEntry]:
        """See ``LedgerStore``."""
        async with self._engine.begin() as connection:
            await connection.run_sync(_META.create_all)
            if self._engine.dialect.name == "sqlite":
                # An appended entry must survive a loss of power before anybody is told of it.
                await connection.exec_driver_sql("PRAGMA synchronous=FULL")
            rows = await connection.execute(select(_ENTRIES.c.entry).order_by(_ENTRIES.c.seq))
            return _entries([row[0] for row in rows])

    async def append(self, entries: Sequence[LedgerEntry]) -> None:
        """See ``LedgerStore``."""
        rows = [{"seq": entry.seq, "entry": entry.encoded()} for entry in entries]
        async with self._engine.begin() as connection:
            await connection.execute(insert(_ENTRIES), rows)

    async def close(self) -> None:
        """See ``LedgerStore``."""
        await self._engine.dispose()


def _entries(lines: Sequence[bytes]) -> list[LedgerEntry]:
    try:
        return [decode(LedgerEntry, line) for line in lines]
    except Malformed as error:
        raise LedgerCorrupt(f"The stored ledger cannot be read: {error.message}") from None
