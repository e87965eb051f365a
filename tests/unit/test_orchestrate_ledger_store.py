"""The ledger on disk: one suite for both stores, and what only a file can suffer."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy.exc import IntegrityError

from subnet.errors import LedgerCorrupt
from subnet.orchestrate.ledger_store import LedgerStore, MemoryLedgerStore, SqlLedgerStore
from subnet.records import LedgerEntry, LedgerKind, RunOpened, RunStopped
from subnet.swarm.ledger import append, fold
from subnet.types import Hotkey
from tests.unit.fake_swarm import RUN

OWNER = Hotkey("owner")


def entries() -> list[LedgerEntry]:
    """A run that opens, stops, opens again and stops."""
    found: list[LedgerEntry] = []
    opened = RunOpened(run=RUN.model_dump(mode="json"), run_hash=RUN.hash(), owner=OWNER)
    for number in range(2):
        for kind, body in (
            (LedgerKind.RUN_OPENED, opened),
            (LedgerKind.RUN_STOPPED, RunStopped(reason=f"pause {number} \u2713")),
        ):
            found.append(append(found[-1] if found else None, kind, OWNER, body, None, 1000.1 + len(found)))
    return found


@pytest.fixture(params=["memory", "sqlite"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], LedgerStore]:
    memory = MemoryLedgerStore()
    url = f"sqlite+aiosqlite:///{tmp_path / 'ledger.sqlite'}"
    return (lambda: memory) if request.param == "memory" else (lambda: SqlLedgerStore(url))


def test_what_was_appended_is_there_after_a_restart(open_store: Callable[[], LedgerStore]) -> None:
    async def main() -> None:
        written = entries()
        store = open_store()
        assert await store.load() == []
        await store.append(written[:1])
        await store.append(written[1:3])
        await store.close()
        store = open_store()
        assert await store.load() == written[:3]
        await store.append(written[3:])
        await store.close()
        store = open_store()
        assert await store.load() == written
        assert fold(await store.load()) == fold(written)
        await store.close()

    asyncio.run(main())


def test_entries_go_in_together_or_not_at_all(tmp_path: Path) -> None:
    async def main() -> None:
        written = entries()
        store = SqlLedgerStore(f"sqlite+aiosqlite:///{tmp_path / 'ledger.sqlite'}")
        await store.load()
        await store.append(written[:2])
        with pytest.raises(IntegrityError):
            await store.append([written[2], written[1]])
        assert await store.load() == written[:2]
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "damage", ["UPDATE ledger SET entry = X'7B7D' WHERE seq = 1", "DELETE FROM ledger WHERE seq = 1"]
)
def test_a_damaged_file_is_seen(tmp_path: Path, damage: str) -> None:
    async def main() -> None:
        path = tmp_path / "ledger.sqlite"
        store = SqlLedgerStore(f"sqlite+aiosqlite:///{path}")
        await store.load()
        await store.append(entries())
        await store.close()
        with sqlite3.connect(path) as connection:
            connection.execute(damage)
        store = SqlLedgerStore(f"sqlite+aiosqlite:///{path}")
        with pytest.raises(LedgerCorrupt):
            fold(await store.load())
        await store.close()

    asyncio.run(main())
