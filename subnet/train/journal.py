"""The journal: the ordered record of what one replica did in one round, with the inputs that it did it on.

An append-only file of frames: header length and body length (u32 each), CRC-32 of both, header (canonical JSON of a
``JournalEntry``), body (packed tensors). A frame is one ``write``, so a killed process leaves at most a torn tail,
which is cut off at the next start. Not here: what the operations do (``subnet.train.engine``).
Invariants: entries are numbered from 0 without gaps; the Merkle root over the entries' canonical JSON is what a replica
commits to; bodies are covered through the entries' ``input_digest``.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from subnet.errors import JournalCorrupt, Malformed
from subnet.hashing import leaf_digest, merkle_root
from subnet.records import AuthStamp, Record, decode
from subnet.types import Digest, Hotkey, MicrobatchId

HEAD = struct.Struct("<III")
MAX_HEADER_BYTES = 16 * 1024
MAX_BODY_BYTES = 1 << 31


class EntryKind(StrEnum):
    """Operations of an engine."""

    FORWARD = "forward"
    BACKWARD = "backward"
    STEP = "step"


class JournalEntry(Record):
    """One operation. ``version``: the engine's parameter version; for a backward that of its forward.

    ``input_digest`` covers the body (token ids and inputs, or gradients), ``output_digest`` what the operation
    produced; either is None where there is none. ``auth`` and ``envelope`` (canonical JSON) prove who sent the input:
    with the body they give back the request that was signed.
    """

    index: int
    kind: EntryKind
    microbatch: MicrobatchId | None
    attempt: int
    peer: Hotkey | None
    version: int
    input_digest: Digest | None
    output_digest: Digest | None
    loss: float | None
    num_tokens: int
    learning_rate: float | None
    auth: AuthStamp | None
    envelope: str | None

    def leaf(self) -> Digest:
        """The entry's leaf in the journal's Merkle tree."""
        return leaf_digest(self.encoded())


class Frame(NamedTuple):
    """An entry with its body."""

    entry: JournalEntry
    body: bytes


def encode_frame(frame: Frame) -> bytes:
    """One frame as it lies in the file."""
    header = frame.entry.encoded()
    check = zlib.crc32(frame.body, zlib.crc32(header))
    return HEAD.pack(len(header), len(frame.body), check) + header + frame.body


def encode_frames(frames: Iterable[Frame]) -> bytes:
    """Frames one after the other."""
    return b"".join(encode_frame(frame) for frame in frames)


def decode_frames(data: bytes) -> list[Frame]:
    """Frames from a stranger's bytes; raises ``Malformed`` unless every byte belongs to a good frame."""
    frames = list(_frames(data))
    if sum(HEAD.size + len(frame.entry.encoded()) + len(frame.body) for frame in frames) != len(data):
        raise Malformed("The journal's frames cannot be read.")
    return frames


def _frames(data: bytes) -> Iterator[Frame]:
    """Good frames from the start; stops at the first that is torn or damaged."""
    offset = 0
    while offset + HEAD.size <= len(data):
        header_size, body_size, check = HEAD.unpack_from(data, offset)
        begin = offset + HEAD.size
        end = begin + header_size + body_size
        if header_size > MAX_HEADER_BYTES or body_size > MAX_BODY_BYTES or end > len(data):
            return
        header, body = data[begin : begin + header_size], data[begin + header_size : end]
        if zlib.crc32(body, zlib.crc32(header)) != check:
            return
        try:
            entry = decode(JournalEntry, header)
        except Malformed:
            return
        yield Frame(entry, body)
        offset = end


class Journal:
    """One round's journal file."""

    def __init__(self, path: Path, descriptor: int, size: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._size = size
        self._places: list[tuple[int, int]] = []
        self._leaves: list[Digest] = []

    @classmethod
    def open(cls, path: Path) -> Self:
        """Create the file, or read it and cut a torn tail off; raises ``JournalCorrupt`` on a gap in the numbering."""
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        journal = cls(path, descriptor, 0)
        try:
            journal._scan(path.read_bytes())
        except JournalCorrupt:
            journal.close()
            raise
        journal._cut()
        return journal

    def _cut(self) -> None:
        """Cut off what stands behind the last good frame."""
        os.ftruncate(self._descriptor, self._size)
        os.lseek(self._descriptor, self._size, os.SEEK_SET)

    @classmethod
    def open_read_only(cls, path: Path) -> Self:
        """Read a journal that may be in use."""
        journal = cls(path, os.open(path, os.O_RDONLY), 0)
        journal._scan(path.read_bytes())
        return journal

    def _scan(self, data: bytes) -> None:
        for frame in _frames(data):
            if frame.entry.index != len(self._leaves):
                raise JournalCorrupt(f"Entry {len(self._leaves)} of {self._path.name} is missing.")
            self._note(frame.entry, len(encode_frame(frame)))

    def _note(self, entry: JournalEntry, size: int) -> None:
        self._places.append((self._size, size))
        self._leaves.append(entry.leaf())
        self._size += size

    def append(self, entry: JournalEntry, body: bytes) -> None:
        """Write one frame; it survives the death of this process. ``OSError`` (a full disk): nothing was written."""
        assert entry.index == len(self._leaves)
        data = encode_frame(Frame(entry, body))
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            self._cut()
            raise
        self._note(entry, len(data))

    def read(self, index: int) -> Frame:
        """One frame; raises ``JournalCorrupt`` when the disk gives back something else."""
        offset, size = self._places[index]
        for frame in _frames(os.pread(self._descriptor, size, offset)):
            return frame
        raise JournalCorrupt(f"Entry {index} of {self._path.name} cannot be read.")

    def frames(self, first: int = 0) -> Iterator[Frame]:
        """All frames from ``first`` on."""
        for index in range(first, len(self._leaves)):
            yield self.read(index)

    def __len__(self) -> int:
        return len(self._leaves)

    def leaves(self) -> list[Digest]:
        """Leaves of the Merkle tree, in order."""
        return list(self._leaves)

    def root(self) -> Digest:
        """Merkle root over all entries."""
        return merkle_root(self._leaves)

    def sync(self) -> None:
        """Make everything written so far survive a loss of power."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
