"""A recorded stage: what is in the journal, what a round amounts to, and restarts in awkward places."""

from __future__ import annotations

from collections.abc import Mapping
from errno import ENOSPC
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from subnet.clock import Stopwatch
from subnet.config import RunConfig
from subnet.data.batches import tokens, wire_tokens
from subnet.data.corpus import Corpus
from subnet.errors import JournalCorrupt
from subnet.records import RosterEntry, RoundDocument
from subnet.train import checkpoint, merge
from subnet.train.checkpoint import load_state
from subnet.train.engine import StageEngine, StepPlan
from subnet.train.journal import EntryKind, Journal, encode_frames
from subnet.train.recorder import JOURNAL, RecordedStage, state_path
from subnet.train.redo import replay_frame
from subnet.train.state import StageState
from subnet.train.wire import WireFormat
from subnet.types import Digest, Hotkey, MicrobatchId, RoundId, StageId
from tests.tiny import text_corpus, tiny_run

DOCUMENT = Digest("d" * 64)


@pytest.fixture(scope="module")
def run() -> RunConfig:
    return tiny_run(text_corpus(), **{"boundary.kind": "int8", "round.snapshot_steps": 1})


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return text_corpus()


def plan_of(run: RunConfig) -> StepPlan:
    return StepPlan(0, 2 * run.microbatch_tokens, 2 * run.microbatch_tokens)


def packed(engine: StageEngine, number: int) -> dict[str, Tensor]:
    run = engine.run
    shape = (run.data.sequences, run.model.seq_len, run.model.width)
    return engine.boundary.pack(torch.randn(shape, generator=torch.Generator().manual_seed(number)))


def begun(run: RunConfig, folder: Path) -> RecordedStage:
    engine = StageEngine(run, StageId(1))
    return RecordedStage.begin(engine, folder, engine.initial_state(), DOCUMENT, plan_of(run))


def forward(recorded: RecordedStage, corpus: Corpus, number: int) -> None:
    run = recorded.engine.run
    token_ids = wire_tokens(tokens(run, corpus, MicrobatchId(number)), run.model.vocab_size)
    recorded.forward(MicrobatchId(number), token_ids, packed(recorded.engine, number), peer=Hotkey("up"))


def backward(recorded: RecordedStage, number: int) -> None:
    recorded.backward(MicrobatchId(number), packed(recorded.engine, 500 + number), peer=Hotkey("down"))
    recorded.step_if_due()


def test_every_operation_is_in_the_file_before_its_result_leaves(
    run: RunConfig, corpus: Corpus, tmp_path: Path
) -> None:
    recorded = begun(run, tmp_path)
    kinds = []
    for number in range(2):
        forward(recorded, corpus, number)
        backward(recorded, number)
        with Journal.open_read_only(tmp_path / JOURNAL) as journal:
            kinds = [frame.entry.kind for frame in journal.frames()]
        assert len(kinds) == [2, 5][number]
    assert kinds == [EntryKind.FORWARD, EntryKind.BACKWARD] * 2 + [EntryKind.STEP]


def test_nothing_leaves_before_the_state_at_the_start_is_on_disk(
    run: RunConfig, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, state: StageState, meta: Mapping[str, str]) -> None:
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_state", full)
    recorded = begun(run, tmp_path)
    with pytest.raises(OSError, match="No space"):
        forward(recorded, corpus, 0)
    with Journal.open_read_only(tmp_path / JOURNAL) as journal:
        assert not list(journal.frames())
    recorded.close()


def test_a_round_adds_up(run: RunConfig, corpus: Corpus, tmp_path: Path) -> None:
    recorded = begun(run, tmp_path)
    start = recorded.engine.params()
    for number in (4, 3, 9):
        forward(recorded, corpus, number)
    forward(recorded, corpus, 11)  # never comes back
    for number in (4, 9, 3):
        backward(recorded, number)
    finished = recorded.finish()
    assert finished.applied == (3, 4, 9)
    assert finished.num_tokens == 3 * run.microbatch_tokens
    assert np.array_equal(finished.pseudo_grad, start - recorded.engine.params())
    assert [item.first_entry for item in finished.segments[1:]] == [item.end_entry for item in finished.segments[:-1]]
    assert [item.start_root for item in finished.segments[1:]] == [item.end_root for item in finished.segments[:-1]]
    assert finished.segments[0].start_root == finished.start.root
    assert finished.segments[-1].end_root == finished.end.root
    assert finished.segments[-1].end_entry == finished.num_entries
    assert finished.end.pending == ()


def test_the_stopwatch_runs_in_forward_backward_and_step_and_nowhere_else(
    run: RunConfig, corpus: Corpus, tmp_path: Path
) -> None:
    recorded, ticks = begun(run, tmp_path), count()
    recorded.computing = Stopwatch(lambda: float(next(ticks)))
    for number in range(3):
        forward(recorded, corpus, number)
        backward(recorded, number)
    assert recorded.computing.total_s == 3 + 3 + 1  # a step is due every two microbatches
    recorded.finish()
    assert recorded.computing.total_s == 3 + 3 + 2


def test_the_commitment_is_what_the_round_was(run: RunConfig, corpus: Corpus, tmp_path: Path) -> None:
    recorded = begun(run, tmp_path)
    for number in range(3):
        forward(recorded, corpus, number)
        backward(recorded, number)
    finished = recorded.finish()
    document = RoundDocument(
        protocol=1,
        run_hash=run.hash(),
        round=RoundId(0),
        first_microbatch=MicrobatchId(0),
        num_microbatches=4,
        released=(),
        roster=(RosterEntry(hotkey=Hotkey("me"), url="http://me", stage=StageId(1), capacity=1.0),),
        seed=DOCUMENT,
        params_roots=(DOCUMENT,) * 3,
        training_deadline_s=1.0,
        signature="",
    )
    commitment = finished.commitment(document, StageId(1), [MicrobatchId(2), MicrobatchId(1)])
    places = merge.shard_slices(recorded.engine.num_parameters, run.outer.num_shards)
    assert commitment.shard_digests == tuple(merge.shard_digest(finished.pseudo_grad[place]) for place in places)
    assert all(
        merge.norm_agrees(finished.pseudo_grad[place], declared)
        for place, declared in zip(places, commitment.shard_norms, strict=True)
    )
    assert commitment.num_steps == 2  # one when it was due, one for the rest
    assert commitment.unacknowledged == (1, 2)
    assert commitment.end_params_root == merge.params_root(recorded.engine.params(), run.outer.num_shards)


def test_a_round_without_work_is_one_empty_segment(run: RunConfig, tmp_path: Path) -> None:
    finished = begun(run, tmp_path).finish()
    assert [(item.first_entry, item.end_entry) for item in finished.segments] == [(0, 0)]
    assert finished.segments[0].start_root == finished.segments[0].end_root
    assert not finished.pseudo_grad.any()


def test_after_a_restart_what_was_in_flight_can_be_sent_again(run: RunConfig, corpus: Corpus, tmp_path: Path) -> None:
    recorded = begun(run, tmp_path)
    forward(recorded, corpus, 0)
    for number in (1, 2):
        forward(recorded, corpus, number)
        backward(recorded, number)
    before = [(item.head, item.outputs) for item in recorded.pending()]
    recorded.close()
    again = RecordedStage.recover(StageEngine(run, StageId(1)), tmp_path, DOCUMENT, plan_of(run))
    after = [(item.head, item.outputs) for item in again.pending()]
    assert [head for head, _ in after] == [head for head, _ in before]
    for (_, mine), (_, theirs) in zip(after, before, strict=True):
        assert mine is not None
        assert theirs is not None
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_many_microbatches_in_flight_survive_a_restart(run: RunConfig, corpus: Corpus, tmp_path: Path) -> None:
    """A deep pipeline: far more in flight at a snapshot than a message's header could list."""
    recorded = begun(run, tmp_path)
    for number in range(120):
        forward(recorded, corpus, number)
    for number in range(2):
        backward(recorded, number)
    root = recorded.engine.snapshot({item.head.microbatch: item.head for item in recorded.pending()}).root
    recorded.close()
    assert load_state(state_path(tmp_path, 1))[0].root == root
    again = RecordedStage.recover(StageEngine(run, StageId(1)), tmp_path, DOCUMENT, plan_of(run))
    assert [item.head.microbatch for item in again.pending()] == list(range(2, 120))
    assert all(item.graph is None for item in again.engine._pending.values())  # memory need not hold so many


def test_a_process_that_dies_before_its_first_snapshot_leaves_a_folder_that_is_refused(
    run: RunConfig, tmp_path: Path
) -> None:
    (tmp_path / JOURNAL).touch()
    with pytest.raises(JournalCorrupt):
        RecordedStage.recover(StageEngine(run, StageId(1)), tmp_path, DOCUMENT, plan_of(run))


def test_beginning_again_forgets_the_snapshots_of_the_first_attempt(
    run: RunConfig, corpus: Corpus, tmp_path: Path
) -> None:
    first = begun(run, tmp_path)
    for number in range(4):
        forward(first, corpus, number)
        backward(first, number)
    first.close()
    second = begun(run, tmp_path)
    for number in range(10, 16):
        forward(second, corpus, number)
    expected = second.engine.params()
    second.close()
    again = RecordedStage.recover(StageEngine(run, StageId(1)), tmp_path, DOCUMENT, plan_of(run))
    assert np.array_equal(again.engine.params(), expected)
    assert again.engine.version == 0


LIES = {
    "loss": ({"loss": 1.0}, 0),
    "output-mismatch": ({"output_digest": Digest("e" * 64)}, 0),
    "input-digest": ({"input_digest": Digest("e" * 64)}, 1),
    "version": ({"version": 1}, 0),
    "order": ({"microbatch": MicrobatchId(77)}, 1),
    "tokens": ({"num_tokens": 1}, 4),
    "learning-rate": ({"learning_rate": 1.0}, 4),
}


@pytest.mark.parametrize("reason", LIES)
def test_replay_names_the_lie(reason: str, run: RunConfig, corpus: Corpus, tmp_path: Path) -> None:
    recorded = begun(run, tmp_path)
    for number in range(2):
        forward(recorded, corpus, number)
        backward(recorded, number)
    recorded.close()
    change, place = LIES[reason]
    with Journal.open_read_only(tmp_path / JOURNAL) as journal:
        frames = list(journal.frames())
    frames[place] = frames[place]._replace(entry=frames[place].entry.model_copy(update=change))
    engine = StageEngine(run, StageId(1))
    engine.begin(engine.initial_state(), plan_of(run))
    found = [replay_frame(engine, frame, WireFormat(run, StageId(1))) for frame in frames[: place + 1]]
    assert found == [""] * place + [reason]
    # The owner of such a journal does not go on from it either.
    (tmp_path / JOURNAL).write_bytes(encode_frames(frames))
    state_path(tmp_path, 1).unlink()
    with pytest.raises(JournalCorrupt):
        RecordedStage.recover(engine, tmp_path, DOCUMENT, plan_of(run))
