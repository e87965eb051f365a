"""Invariant 5: the fold is deterministic, can be cut anywhere, and a changed byte is seen."""

from __future__ import annotations

import asyncio
import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from subnet.clock import run_virtual
from subnet.errors import LedgerCorrupt, LiquidError
from subnet.records import LedgerEntry, decode, parse_lines, to_lines
from subnet.swarm.ledger import fold
from tests.swarm.harness import Net, network
from tests.tiny import text_corpus, tiny_run


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> list[LedgerEntry]:
    """The ledger of a real run of two rounds."""
    corpus = text_corpus()
    run = tiny_run(corpus, **{"round.min_replicas": 1})

    async def main() -> Net:
        async with network(tmp_path_factory.mktemp("run"), run, corpus, rounds=2) as net:
            for name in ("miner-1", "miner-2", "miner-3"):
                net.start_miner(name)
            await net.finish()
            return net

    return asyncio.run(run_virtual(main()).store.load())


def test_a_fold_can_be_cut_anywhere(entries: list[LedgerEntry]) -> None:
    whole = fold(entries)
    for cut in range(len(entries) + 1):
        assert fold(entries[cut:], fold(entries[:cut])) == whole


def test_entries_survive_the_wire(entries: list[LedgerEntry]) -> None:
    assert parse_lines(to_lines(entries)) == entries


@given(data=st.data())
def test_a_flipped_byte_is_detected(entries: list[LedgerEntry], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(entries) - 1), label="entry")
    raw = bytearray(entries[place].encoded())
    at = data.draw(st.integers(0, len(raw) - 1), label="byte")
    raw[at] ^= 1 << data.draw(st.integers(0, 6), label="bit")
    try:
        changed = decode(LedgerEntry, bytes(raw))
    except (LiquidError, ValueError):
        return  # not even an entry any more
    if changed == entries[place]:
        return  # another spelling of the same values
    view = fold(copy.deepcopy(entries[:place]))
    with pytest.raises(LedgerCorrupt):
        fold([changed, *entries[place + 1 :]], view)


@pytest.mark.parametrize("change", ["drop", "swap", "repeat"])
def test_entries_cannot_be_dropped_swapped_or_repeated(entries: list[LedgerEntry], change: str) -> None:
    place = len(entries) // 2
    before, here, after, rest = entries[:place], entries[place], entries[place + 1], entries[place + 2 :]
    changed = {
        "drop": [*before, after, *rest],
        "swap": [*before, after, here, *rest],
        "repeat": [*before, here, here, after, *rest],
    }[change]
    with pytest.raises(LedgerCorrupt):
        fold(changed)
