"""The corpus and the microbatches drawn from it: equal on every machine, split by file, and what they claim to be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from subnet.data.batches import held_out_batches, tokens, wire_tokens
from subnet.data.corpus import bigram_entropy, load_corpus
from subnet.errors import ConfigError
from subnet.types import MicrobatchId
from tests.tiny import text_corpus, tiny_run


def folder_of(path: Path, num_files: int) -> str:
    path.mkdir()
    for number in range(num_files):
        (path / f"{number:03}.txt").write_bytes(f"text of file {number}; ".encode() * 500)
    (path / "site-packages").mkdir()
    (path / "site-packages" / "skipped.txt").write_text("installed")
    return f"file:{path}"


def test_equal_files_give_an_equal_corpus_and_one_changed_byte_another(tmp_path: Path) -> None:
    first = load_corpus(folder_of(tmp_path / "a", 60), 0.2)
    second = load_corpus(folder_of(tmp_path / "b", 60), 0.2)
    assert first.digest == second.digest
    assert np.array_equal(first.training, second.training)
    assert b"installed" not in first.training.tobytes() + first.held_out.tobytes()
    (tmp_path / "b" / "007.txt").write_bytes(b"x" * 100)
    assert load_corpus(f"file:{tmp_path / 'b'}", 0.2).digest != first.digest


def test_no_file_is_in_both_halves(tmp_path: Path) -> None:
    corpus = load_corpus(folder_of(tmp_path / "a", 60), 0.3)
    halves = corpus.training.tobytes(), corpus.held_out.tobytes()
    for number in range(60):
        assert sum(f"text of file {number};".encode() in half for half in halves) == 1


@pytest.mark.parametrize("source", ["file:/nowhere", "hub:fineweb", "file:"])
def test_a_source_that_is_not_there_is_named(source: str) -> None:
    with pytest.raises(ConfigError):
        load_corpus(source, 0.1)


def test_the_standard_library_has_the_entropy_that_the_summary_compares_with() -> None:
    corpus = load_corpus("stdlib", 0.05)
    assert len(corpus.training) > 5_000_000
    assert 2.2 < bigram_entropy(corpus.training) < 2.6


def test_bigram_entropy_of_known_texts() -> None:
    assert bigram_entropy(np.frombuffer(b"ab" * 1000, dtype=np.uint8)) == pytest.approx(0.0, abs=1e-9)
    fair = np.random.default_rng(1).integers(0, 2, 200_000).astype(np.uint8)
    assert bigram_entropy(fair) == pytest.approx(np.log(2), abs=1e-3)


def test_an_id_fixes_its_tokens_and_other_ids_and_seeds_have_others() -> None:
    corpus = text_corpus()
    run = tiny_run(corpus)
    first = tokens(run, corpus, MicrobatchId(5))
    assert first.shape == (run.data.sequences, run.model.seq_len + 1)
    assert np.array_equal(first, tokens(run, corpus, MicrobatchId(5)))
    assert not np.array_equal(first, tokens(run, corpus, MicrobatchId(6)))
    assert not np.array_equal(first, tokens(run.with_values(seed=2), corpus, MicrobatchId(5)))
    assert first[0].astype(np.uint8).tobytes() in corpus.training.tobytes()
    assert wire_tokens(first, 256).element_size() == 1
    assert wire_tokens(first, 50_000).element_size() == 4


def test_held_out_batches_are_fixed_and_from_the_held_out_half() -> None:
    corpus = text_corpus()
    run = tiny_run(corpus)
    batches = held_out_batches(run, corpus, 3)
    assert len(batches) == 3
    assert all(row.astype(np.uint8).tobytes() in corpus.held_out.tobytes() for batch in batches for row in batch)
