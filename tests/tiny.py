"""A tiny run on real text: what unit tests, laws and whole runs in one process share."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

from subnet.config import RunConfig, parse_run_config
from subnet.data.corpus import Corpus, load_corpus

TINY: dict[str, Any] = {
    "name": "tiny",
    "model": {
        "width": 16,
        "num_blocks": 3,
        "num_heads": 2,
        "num_kv_heads": 1,
        "ffn_width": 32,
        "seq_len": 16,
        "vocab_size": 256,
    },
    "stages": {"num_stages": 3},
    "boundary": {"kind": "none"},
    "data": {"sequences": 2},
    "inner": {"warmup_tokens": 0},
    "outer": {"num_shards": 4},
    "round": {"microbatches": 16, "inner_steps": 4, "snapshot_steps": 2, "min_replicas": 2},
}


def tiny_run(corpus: Corpus, **changes: Any) -> RunConfig:
    """The tiny RunConfig with dotted settings replaced."""
    run = parse_run_config(TINY).with_values(**{"data.corpus_hash": corpus.digest})
    return run.with_values(**changes) if changes else run


def text_corpus() -> Corpus:
    """A small corpus of real text: one package of the standard library."""
    return load_corpus(f"file:{Path(sysconfig.get_path('stdlib')) / 'asyncio'}", 0.2)
