"""Snapshots of a stage on disk: written atomically, checked on reading.

Not here: what a state is (``subnet.train.state``). Invariant: a file under its final name is complete, or its root does
not match and it is refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load

from subnet.codec.tensors import pack, peek_metadata
from subnet.errors import JournalCorrupt, Malformed
from subnet.train.state import StageState

ROOT = "root"


def encode_state(state: StageState, meta: Mapping[str, str]) -> bytes:
    """A state as one safetensors body; ``meta`` is kept beside it and must not use the state's own names."""
    tensors, text = state.to_tensors()
    return pack(tensors, {**meta, **text, ROOT: state.root()})


def decode_state(body: bytes) -> tuple[StageState, dict[str, str]]:
    """A state and its metadata; raises ``Malformed`` if it is incomplete or is not what its root says."""
    text = peek_metadata(body)
    try:
        tensors = load(body)
    except (SafetensorError, ValueError, KeyError):
        raise Malformed("A stage's state cannot be read.") from None
    state = StageState.from_tensors(tensors, text)
    if state.root() != text.get(ROOT):
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


def load_state(path: Path) -> tuple[StageState, dict[str, str]]:
    """Read a snapshot; raises ``JournalCorrupt``, also where there is none."""
    try:
        return decode_state(path.read_bytes())
    except FileNotFoundError:
        raise JournalCorrupt(f"Snapshot {path.name} is missing.") from None
    except Malformed as error:
        raise JournalCorrupt(f"Snapshot {path.name}: {error.message}") from None
