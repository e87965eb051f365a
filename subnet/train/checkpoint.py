"""Snapshots of a stage on disk: written atomically, checked on reading.

Not here: what a state is (``subnet.train.state``). Invariants: a file under its final name is complete, or its root
does not match and it is refused; a ``SnapshotWriter`` holds at most one state that is not on disk yet.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load

from subnet.codec.tensors import pack, peek_metadata
from subnet.errors import JournalCorrupt, Malformed
from subnet.train.state import StageState
from subnet.types import Digest

ROOT = "root"


def encode_state(state: StageState, meta: Mapping[str, str]) -> bytes:
    """A state as one safetensors body; ``meta`` is kept beside it and must not use the state's own names."""
    tensors, text = state.to_tensors()
    return pack(tensors, {**meta, **text, ROOT: state.root})


def decode_state(body: bytes) -> tuple[StageState, dict[str, str]]:
    """A state and its metadata; raises ``Malformed`` if it is incomplete or is not what its root says."""
    text = peek_metadata(body)
    try:
        tensors = load(body)
    except (SafetensorError, ValueError, KeyError):
        raise Malformed("A stage's state cannot be read.") from None
    state = StageState.from_tensors(tensors, text)
    if state.root != text.get(ROOT):
        raise Malformed("A stage's state is not what its root says.")
    return state, text


def save_state(path: Path, state: StageState, meta: Mapping[str, str]) -> None:
    """Write ``path`` so that it is there completely or not at all, also after a loss of power."""
    path.parent.mkdir(parents=True, exist_ok=True)
    waiting = path.with_suffix(".part")
    with waiting.open("wb") as file:
        file.write(encode_state(state, meta))
        file.flush()
        os.fsync(file.fileno())
    waiting.replace(path)


class SnapshotWriter:
    """Writes states in a thread of its own: a large stage need not wait for its hashes and its disk."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "snapshots")
        self._last: Future[Digest] | None = None

    def save(self, path: Path, state: StageState, meta: Mapping[str, str]) -> Future[Digest]:
        """``save_state``, begun once the state before is written, whose error it raises; the result is the root."""

        def work() -> Digest:
            save_state(path, state, meta)
            return state.root

        self.wait()
        self._last = self._thread.submit(work)
        return self._last

    def wait(self) -> None:
        """Until everything is on disk; raises what the last one raised (``OSError``)."""
        if self._last is not None:
            self._last.result()

    def close(self) -> None:
        """Write what was begun and end the thread."""
        self._thread.shutdown()


def load_state(path: Path) -> tuple[StageState, dict[str, str]]:
    """Read a snapshot; raises ``JournalCorrupt``, also where there is none."""
    try:
        return decode_state(path.read_bytes())
    except FileNotFoundError:
        raise JournalCorrupt(f"Snapshot {path.name} is missing.") from None
    except Malformed as error:
        raise JournalCorrupt(f"Snapshot {path.name}: {error.message}") from None
