"""The corpus: real text as bytes, split by file into training and held-out, with a hash that peers agree on.

``stdlib`` is the Python standard library's own sources, which every machine has; ``file:PATH`` is a file, or a folder
of text files. Not here: microbatches (``subnet.data.batches``).
Invariants: equal files give equal bytes, splits and digests on every machine; no file is in both halves.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from subnet.errors import ConfigError
from subnet.hashing import draw
from subnet.types import Digest

Bytes = npt.NDArray[np.uint8]

SKIPPED = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "ensurepip", "__pycache__"}
)
SUFFIXES = (".py", ".txt", ".md", ".rst")
PIECE_BYTES = 64 * 1024  # a single file is split into pieces of this size instead of into files
LEAST_BYTES = 16 * 1024  # each half must hold some windows of any preset's length


@dataclass(frozen=True, eq=False)
class Corpus:
    """Training and held-out bytes; ``digest`` covers both and their split."""

    training: Bytes
    held_out: Bytes
    digest: Digest


def load_corpus(source: str, held_out_share: float) -> Corpus:
    """Read a corpus; raises ``ConfigError`` when there is nothing to train on."""
    if source == "stdlib":
        root = Path(sysconfig.get_path("stdlib"))
        parts = [(name, path.read_bytes()) for name, path in _files(root, (".py",))]
    elif source.startswith("file:") and source != "file:":
        parts = _read_path(Path(source.removeprefix("file:")).expanduser())
    else:
        raise ConfigError(f"data.source {source!r} is neither 'stdlib' nor 'file:PATH'.")
    return _split(parts, held_out_share)


def _files(root: Path, suffixes: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in SKIPPED]  # never walk into installed packages
        found += [Path(folder, name) for name in names if name.endswith(suffixes)]
    named = sorted((path.relative_to(root).as_posix(), path) for path in found)
    yield from ((name, path) for name, path in named if path.is_file())


def _read_path(path: Path) -> list[tuple[str, bytes]]:
    if path.is_dir():
        return [(name, file.read_bytes()) for name, file in _files(path, SUFFIXES)]
    if not path.is_file():
        raise ConfigError(f"There is no file or folder {path}.")
    data = path.read_bytes()
    return [(str(start), data[start : start + PIECE_BYTES]) for start in range(0, len(data), PIECE_BYTES)]


def _split(parts: list[tuple[str, bytes]], held_out_share: float) -> Corpus:
    hasher = hashlib.sha256(str(held_out_share).encode())
    halves: tuple[list[bytes], list[bytes]] = ([], [])
    for name, data in parts:
        is_held_out = draw("held out", name) < held_out_share * 2**64
        halves[is_held_out].append(data)
        hasher.update(f"{name}\0{len(data)}\0".encode())
        hasher.update(data)
    training, held_out = (np.frombuffer(b"".join(half), dtype=np.uint8) for half in halves)
    if min(len(training), len(held_out)) < LEAST_BYTES:
        raise ConfigError(f"The corpus needs at least {LEAST_BYTES} bytes in each of its two halves.")
    return Corpus(training, held_out, Digest(hasher.hexdigest()))


def bigram_entropy(data: Bytes) -> float:
    """Entropy of the next byte given the one before, in nats: what a table of bigrams could reach on this text."""
    pairs = np.bincount(data[:-1].astype(np.int64) * 256 + data[1:], minlength=65536).reshape(256, 256)
    joint = pairs / pairs.sum()
    first = joint.sum(axis=1, keepdims=True)
    conditional = np.divide(joint, first, out=np.ones_like(joint), where=first > 0)
    logs = np.log(conditional, out=np.zeros_like(joint), where=conditional > 0)
    return float(-(joint * logs).sum())
