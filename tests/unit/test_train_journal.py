"""The journal's file: what survives a killed process, a damaged disk and a full one."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from subnet.errors import JournalCorrupt, Malformed
from subnet.hashing import EMPTY_ROOT, merkle_root
from subnet.train.journal import EntryKind, Frame, Journal, JournalEntry, decode_frames, encode_frame, encode_frames
from subnet.types import Digest, Hotkey, MicrobatchId

DIGEST = Digest("d" * 64)


def entry(index: int, **changes: object) -> JournalEntry:
    plain: dict[str, object] = {
        "index": index,
        "kind": EntryKind.BACKWARD,
        "microbatch": MicrobatchId(index),
        "attempt": 0,
        "peer": Hotkey("peer"),
        "version": 0,
        "input_digest": DIGEST,
        "output_digest": None,
        "loss": 1.25,
        "num_tokens": 32,
        "learning_rate": None,
        "auth": None,
        "envelope": None,
    }
    return JournalEntry.model_validate({**plain, **changes})


def frame(index: int) -> Frame:
    return Frame(entry(index), bytes([index]) * (10 * index))


def written(path: Path, count: int) -> list[int]:
    """A closed journal of ``count`` frames; returns the file's size after each."""
    sizes = []
    with Journal.open(path) as journal:
        for index in range(count):
            journal.append(*frame(index))
            sizes.append(path.stat().st_size)  # one write per frame: it is there before ``append`` returns
    return sizes


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    written(tmp_path / "a", 5)
    with Journal.open(tmp_path / "a") as journal:
        assert len(journal) == 5
        assert [journal.read(index) for index in range(5)] == [frame(index) for index in range(5)]
        assert list(journal.frames(3)) == [frame(3), frame(4)]
        assert journal.leaves() == [entry(index).leaf() for index in range(5)]
        assert journal.root() == merkle_root(journal.leaves())


def test_an_empty_journal_has_the_empty_root(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "a") as journal:
        assert journal.root() == EMPTY_ROOT


def test_a_process_killed_at_any_byte_loses_at_most_the_frame_it_was_writing(tmp_path: Path) -> None:
    sizes = written(tmp_path / "whole", 3)
    data = (tmp_path / "whole").read_bytes()
    for length in range(len(data) + 1):
        path = tmp_path / "torn"
        path.write_bytes(data[:length])
        with Journal.open(path) as journal:
            kept = sum(size <= length for size in sizes)
            assert len(journal) == kept
            journal.append(*frame(kept))
        assert decode_frames(path.read_bytes()) == [frame(index) for index in range(kept + 1)]


def test_a_damaged_frame_ends_the_journal(tmp_path: Path) -> None:
    sizes = written(tmp_path / "a", 4)
    data = bytearray((tmp_path / "a").read_bytes())
    data[sizes[1] + 40] ^= 1
    (tmp_path / "a").write_bytes(data)
    with Journal.open(tmp_path / "a") as journal:
        assert len(journal) == 2


def test_a_missing_frame_is_corruption(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(encode_frames([frame(0), frame(2)]))
    with pytest.raises(JournalCorrupt):
        Journal.open(tmp_path / "a")


def test_a_frame_that_rots_while_the_journal_is_open_is_told(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "a") as journal:
        journal.append(*frame(4)._replace(entry=entry(0)))
        data = bytearray((tmp_path / "a").read_bytes())
        data[-1] ^= 1
        (tmp_path / "a").write_bytes(data)
        with pytest.raises(JournalCorrupt):
            journal.read(0)


@contextmanager
def file_size_limit(num_bytes: int) -> Iterator[None]:
    """No file of this process may grow beyond ``num_bytes``: writes fail as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_no_half_frame_in_the_middle(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with Journal.open(path) as journal:
        journal.append(*frame(0))
        whole = path.stat().st_size
        with file_size_limit(whole + 100), pytest.raises(OSError):  # noqa: PT011 - which errno is the disk's affair
            journal.append(*frame(1))
        assert path.stat().st_size == whole
        journal.append(*frame(1))
    assert decode_frames(path.read_bytes()) == [frame(0), frame(1)]


def test_reading_a_journal_in_use_changes_nothing(tmp_path: Path) -> None:
    written(tmp_path / "a", 2)
    with (tmp_path / "a").open("ab") as file:
        file.write(encode_frame(frame(2))[:20])
    before = (tmp_path / "a").read_bytes()
    with Journal.open_read_only(tmp_path / "a") as journal:
        assert len(journal) == 2
    assert (tmp_path / "a").read_bytes() == before


@given(st.integers(0, 2_000), st.integers(0, 255))
def test_frames_from_a_stranger_are_whole_or_refused(place: int, byte: int) -> None:
    frames = [frame(index) for index in range(3)]
    data = bytearray(encode_frames(frames))
    place %= len(data)
    is_changed = data[place] != byte
    data[place] = byte
    if is_changed:
        with pytest.raises(Malformed):
            decode_frames(bytes(data))
    else:
        assert decode_frames(bytes(data)) == frames


@pytest.mark.parametrize("change", [{"loss": 1.5}, {"input_digest": Digest("e" * 64)}, {"attempt": 1}, {"peer": None}])
def test_the_root_covers_every_field(change: dict[str, object]) -> None:
    assert entry(0, **change).leaf() != entry(0).leaf()
