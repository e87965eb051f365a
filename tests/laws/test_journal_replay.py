"""Invariant 4: snapshot + journal replay is the uninterrupted state, bit for bit, wherever the process died."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from subnet.config import RunConfig
from subnet.data.batches import tokens, wire_tokens
from subnet.data.corpus import Corpus
from subnet.errors import JournalCorrupt
from subnet.train.engine import StageEngine, StepPlan
from subnet.train.journal import EntryKind, Journal, encode_frames
from subnet.train.recorder import JOURNAL, FinishedRound, RecordedStage, state_path
from subnet.types import Digest, MicrobatchId, StageId
from tests.tiny import text_corpus, tiny_run

DOCUMENT = Digest("d" * 64)
NUM_MICROBATCHES = 12


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return text_corpus()


@pytest.fixture
def run(corpus: Corpus) -> RunConfig:
    return tiny_run(corpus, **{"round.snapshot_steps": 1})


def plan_of(run: RunConfig) -> StepPlan:
    return StepPlan(0, 3 * run.microbatch_tokens, 3 * run.microbatch_tokens)


def schedule(seed: int) -> list[tuple[str, int]]:
    """A random order of forwards and backwards with up to four microbatches in flight."""
    chance, waiting, flying, order = random.Random(seed), list(range(NUM_MICROBATCHES)), [], []
    while waiting or flying:
        if waiting and len(flying) < 4 and (not flying or chance.random() < 0.6):
            flying.append(waiting.pop(0))
            order.append(("forward", flying[-1]))
        else:
            order.append(("backward", flying.pop(chance.randrange(len(flying)))))
    return order


def operate(recorded: RecordedStage, run: RunConfig, corpus: Corpus, order: list[tuple[str, int]]) -> None:
    for kind, number in order:
        generator = torch.Generator().manual_seed(number)
        values = torch.randn(run.data.sequences, run.model.seq_len, run.model.width, generator=generator)
        if kind == "forward":
            token_ids = wire_tokens(tokens(run, corpus, MicrobatchId(number)), run.model.vocab_size)
            recorded.forward(MicrobatchId(number), token_ids, {"values": values})
        else:
            recorded.backward(MicrobatchId(number), {"values": values * 0.01})
            recorded.step_if_due()


def same(left: FinishedRound, right: FinishedRound) -> bool:
    return (
        left.end.root == right.end.root
        and left.journal_root == right.journal_root
        and left.segments == right.segments
        and left.applied == right.applied
        and left.num_tokens == right.num_tokens
    )


@pytest.mark.parametrize("seed", range(4))
def test_a_process_that_dies_anywhere_goes_on_bit_for_bit(
    seed: int, run: RunConfig, corpus: Corpus, tmp_path: Path
) -> None:
    order = schedule(seed)
    engine = StageEngine(run, StageId(1))
    whole = RecordedStage.begin(engine, tmp_path / "whole", engine.initial_state(), DOCUMENT, plan_of(run))
    operate(whole, run, corpus, order)
    expected = whole.finish()
    assert len(expected.segments) > 2
    for cut in range(0, len(order) + 1, 5):
        folder = tmp_path / f"cut-{cut}"
        engine = StageEngine(run, StageId(1))
        first = RecordedStage.begin(engine, folder, engine.initial_state(), DOCUMENT, plan_of(run))
        operate(first, run, corpus, order[:cut])
        first.close()
        second = RecordedStage.recover(StageEngine(run, StageId(1)), folder, DOCUMENT, plan_of(run))
        assert [item.head.microbatch for item in second.pending()] == list(engine.pending)
        operate(second, run, corpus, order[cut:])
        assert same(second.finish(), expected)


@settings(max_examples=4)
@given(st.integers(0, 10_000))
def test_a_journal_cut_at_any_frame_goes_on_bit_for_bit(corpus: Corpus, seed: int) -> None:
    """The journal's file ends after any number of frames: also between a gradient and the step that it makes due."""
    run, order = tiny_run(corpus, **{"round.snapshot_steps": 1}), schedule(seed)
    with TemporaryDirectory() as place:
        folder = Path(place)
        engine = StageEngine(run, StageId(1))
        whole = RecordedStage.begin(engine, folder / "whole", engine.initial_state(), DOCUMENT, plan_of(run))
        operate(whole, run, corpus, order)
        expected = whole.finish()
        whole.close()
        with Journal.open_read_only(folder / "whole" / JOURNAL) as journal:
            frames = list(journal.frames())
        for kept in range(len(frames) + 1):
            shutil.copytree(folder / "whole", folder / "cut")
            (folder / "cut" / JOURNAL).write_bytes(encode_frames(frames[:kept]))
            again = RecordedStage.recover(StageEngine(run, StageId(1)), folder / "cut", DOCUMENT, plan_of(run))
            done = sum(frame.entry.kind is not EntryKind.STEP for frame in frames[:kept])
            operate(again, run, corpus, order[done:])
            assert same(again.finish(), expected), f"cut after {kept} of {len(frames)} frames"
            again.close()
            shutil.rmtree(folder / "cut")


def test_a_torn_tail_costs_one_operation(run: RunConfig, corpus: Corpus, tmp_path: Path) -> None:
    order = schedule(1)
    engine = StageEngine(run, StageId(1))
    recorded = RecordedStage.begin(engine, tmp_path / "a", engine.initial_state(), DOCUMENT, plan_of(run))
    operate(recorded, run, corpus, order[:7])
    recorded.close()
    path = tmp_path / "a" / JOURNAL
    whole = path.read_bytes()
    with Journal.open_read_only(path) as journal:
        num_entries = len(journal)
    for torn in (1, 9, 200):
        shutil.copytree(tmp_path / "a", tmp_path / f"torn-{torn}")
        (tmp_path / f"torn-{torn}" / JOURNAL).write_bytes(whole[:-torn])
        RecordedStage.recover(StageEngine(run, StageId(1)), tmp_path / f"torn-{torn}", DOCUMENT, plan_of(run)).close()
        with Journal.open_read_only(tmp_path / f"torn-{torn}" / JOURNAL) as journal:
            assert len(journal) == num_entries - 1


def test_a_damaged_snapshot_falls_back_to_the_one_before(run: RunConfig, corpus: Corpus, tmp_path: Path) -> None:
    order = schedule(2)
    engine = StageEngine(run, StageId(1))
    recorded = RecordedStage.begin(engine, tmp_path, engine.initial_state(), DOCUMENT, plan_of(run))
    operate(recorded, run, corpus, order)
    expected = recorded.finish()
    state = state_path(tmp_path, 2)
    state.write_bytes(state.read_bytes()[:-5] + b"wrong")
    again = RecordedStage.recover(StageEngine(run, StageId(1)), tmp_path, DOCUMENT, plan_of(run))
    assert same(again.finish(), expected)


def test_another_rounds_folder_is_refused(run: RunConfig, tmp_path: Path) -> None:
    engine = StageEngine(run, StageId(1))
    RecordedStage.begin(engine, tmp_path, engine.initial_state(), DOCUMENT, plan_of(run)).close()
    with pytest.raises(JournalCorrupt):
        RecordedStage.recover(engine, tmp_path, Digest("e" * 64), plan_of(run))


def test_a_backward_uses_the_parameters_of_its_forward(run: RunConfig, corpus: Corpus, tmp_path: Path) -> None:
    """Two engines, one of which steps between forward and backward: the gradients sent upstream are equal."""
    sent = []
    for steps_between in (False, True):
        engine = StageEngine(run, StageId(1))
        engine.begin(engine.initial_state(), plan_of(run))
        token_ids = wire_tokens(tokens(run, corpus, MicrobatchId(0)), run.model.vocab_size)
        values = torch.randn(run.data.sequences, run.model.seq_len, run.model.width, generator=torch.manual_seed(0))
        engine.forward(MicrobatchId(0), token_ids, {"values": values})
        engine.forward(MicrobatchId(1), token_ids, {"values": values})
        if steps_between:
            engine.backward(MicrobatchId(1), {"values": values})
            engine.step()
        result = engine.backward(MicrobatchId(0), {"values": values})
        assert result.staleness == int(steps_between)
        assert result.grads is not None
        sent.append(result.grads["values"])
    assert torch.equal(*sent)
