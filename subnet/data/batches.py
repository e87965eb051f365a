"""Microbatch id -> tokens, the same for everybody.

Not here: who trains on which id (``subnet.swarm.router``).
Invariants: tokens depend on the run's seed, the corpus and the id only; SHAKE-256 draws the offsets, so no library's
random generator can change them; held-out batches are fixed.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from subnet.config import RunConfig
from subnet.data.corpus import Bytes, Corpus
from subnet.hashing import canonical_json
from subnet.types import MicrobatchId

Tokens = npt.NDArray[np.int64]


def _windows(data: Bytes, offsets: npt.NDArray[np.int64], length: int) -> Tokens:
    windows: Tokens = data[offsets[:, None] + np.arange(length)].astype(np.int64)
    return windows


def tokens(run: RunConfig, corpus: Corpus, microbatch: MicrobatchId) -> Tokens:
    """Token ids [sequences, seq_len + 1] of one microbatch."""
    length = run.model.seq_len + 1
    seed = canonical_json([run.seed, "microbatch", int(microbatch)])
    raw = hashlib.shake_256(seed).digest(8 * run.data.sequences)
    offsets = np.frombuffer(raw, dtype="<u8") % np.uint64(len(corpus.training) - length)
    return _windows(corpus.training, offsets.astype(np.int64), length)


def wire_token_dtype(vocab_size: int) -> str:
    """The smallest dtype that holds every token id, by safetensors' name."""
    return "U8" if vocab_size <= 256 else "I32"


def wire_tokens(token_ids: Tokens, vocab_size: int) -> Tensor:
    """Token ids as they travel."""
    return torch.from_numpy(token_ids).to(torch.uint8 if vocab_size <= 256 else torch.int32)


def held_out_batches(run: RunConfig, corpus: Corpus, num: int) -> list[Tokens]:
    """``num`` batches [sequences, seq_len + 1] evenly spread over the held-out text."""
    length, count = run.model.seq_len + 1, num * run.data.sequences
    offsets = np.linspace(0, len(corpus.held_out) - length - 1, count).astype(np.int64)
    return [_windows(corpus.held_out, part, length) for part in offsets.reshape(num, run.data.sequences)]
