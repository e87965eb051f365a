"""RecordedStage: an engine whose every operation is in the journal before its result leaves.

The folder of a round holds ``journal.bin`` and ``state-K.safetensors``, the state at the start of segment K. From
them a killed miner is rebuilt bit for bit, and a validator replays any segment (``subnet.train.redo``).
Not here: sending anything. Invariants: snapshot + journal replay == uninterrupted state; a result is returned only
after its entry and the state at the round's start are written; segments follow one another without a gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
from torch import Tensor

from subnet.clock import Stopwatch
from subnet.codec.tensors import pack, tensors_digest
from subnet.errors import JournalCorrupt, LiquidError
from subnet.records import AuthStamp, Commitment, RoundDocument, SegmentRoots
from subnet.train import merge
from subnet.train.checkpoint import SnapshotWriter, load_state
from subnet.train.engine import BackwardResult, ForwardResult, StageEngine, StepPlan, StepResult
from subnet.train.journal import EntryKind, Journal, JournalEntry
from subnet.train.redo import replay_frame
from subnet.train.state import PendingHead, StageState
from subnet.train.wire import WireFormat
from subnet.types import Digest, Hotkey, MicrobatchId, StageId

JOURNAL = "journal.bin"
DOCUMENT, FIRST_ENTRY, APPLIED_TOKENS = "document", "first_entry", "applied_tokens"


def state_path(folder: Path, segment: int) -> Path:
    """The snapshot with which a segment starts."""
    return folder / f"state-{segment}.safetensors"


@dataclass(frozen=True, eq=False)
class FinishedRound:
    """What a replica has to show for a round. ``start`` and ``end`` carry nothing in flight."""

    start: StageState
    end: StageState
    pseudo_grad: npt.NDArray[np.float32]
    applied: tuple[MicrobatchId, ...]
    num_tokens: int
    segments: tuple[SegmentRoots, ...]
    journal_root: Digest
    num_entries: int

    def commitment(self, document: RoundDocument, stage: StageId, unacknowledged: Iterable[MicrobatchId]) -> Commitment:
        """The record that the replica publishes."""
        slices = merge.shard_slices(len(self.pseudo_grad), self.start.num_shards)
        shards = [self.pseudo_grad[place] for place in slices]
        return Commitment(
            round=document.round,
            stage=stage,
            document=document.record_digest(),
            journal_root=self.journal_root,
            num_entries=self.num_entries,
            segments=self.segments,
            start_params_root=self.start.params_root,
            start_optim_root=self.start.optim_root,
            end_params_root=self.end.params_root,
            end_optim_root=self.end.optim_root,
            shard_digests=tuple(merge.shard_digest(shard) for shard in shards),
            shard_norms=tuple(merge.norm(shard) for shard in shards),
            num_tokens=self.num_tokens,
            num_steps=self.end.moments.step - self.start.moments.step,
            applied=self.applied,
            unacknowledged=tuple(sorted(unacknowledged)),
        )


@dataclass
class Progress:
    """What the journal so far amounts to. ``heads``: microbatches in flight."""

    applied: list[MicrobatchId] = field(default_factory=list)
    tokens: int = 0
    heads: dict[MicrobatchId, PendingHead] = field(default_factory=dict)
    edges: list[tuple[int, Future[Digest]]] = field(default_factory=list)  # first entry and start root of each segment


@dataclass(frozen=True, eq=False)
class PendingSend:
    """After a restart: a microbatch in flight whose outputs (None at the last stage) are to be sent again."""

    head: PendingHead
    tokens: Tensor
    outputs: dict[str, Tensor] | None


class RecordedStage:
    """One replica's engine in one round. ``computing``: time spent in its operations themselves, journal and replay of
    a crash apart."""

    def __init__(
        self, engine: StageEngine, folder: Path, journal: Journal, document: Digest, start: StageState
    ) -> None:
        self.engine = engine
        self.computing = Stopwatch()
        self._folder = folder
        self._journal = journal
        self._document = document
        self._start = start
        self._progress = Progress()
        self._snapshots = SnapshotWriter()

    @classmethod
    def begin(cls, engine: StageEngine, folder: Path, state: StageState, document: Digest, plan: StepPlan) -> Self:
        """Start a round from ``state``."""
        engine.begin(state, plan)
        folder.mkdir(parents=True, exist_ok=True)
        for stale in (folder / JOURNAL, *folder.glob("state-*")):
            stale.unlink(missing_ok=True)
        recorded = cls(engine, folder, Journal.open(folder / JOURNAL), document, state)
        recorded._snapshot(state, 0)
        return recorded

    @classmethod
    def recover(cls, engine: StageEngine, folder: Path, document: Digest, plan: StepPlan) -> Self:
        """The round as it was when the process died: last good snapshot, then the journal; ``JournalCorrupt``."""
        engine.max_graphs = 0  # until somebody says what memory holds: all in flight are forwarded again below
        start, meta = load_state(state_path(folder, 0))
        if meta.get(DOCUMENT) != document:
            raise JournalCorrupt("The folder belongs to another round document.")
        journal = Journal.open(folder / JOURNAL)
        recorded = cls(engine, folder, journal, document, start)
        try:
            recorded._replay(plan)
        except LiquidError:
            recorded.close()
            raise
        return recorded

    def _replay(self, plan: StepPlan) -> None:
        engine, journal, progress = self.engine, self._journal, self._progress
        engine.begin(self._last_snapshot(len(journal)), plan)
        first, wire = progress.edges[-1][0], WireFormat(engine.run, engine.stage)
        for frame in journal.frames():
            entry = frame.entry
            if entry.index < first:
                progress_note(progress, entry)
                continue
            if entry.index == first:
                engine.resume_tokens(progress.tokens)
            mismatch = replay_frame(engine, frame, wire)
            if mismatch:
                raise JournalCorrupt(f"Entry {entry.index} does not replay: {mismatch}.")
            progress_note(progress, entry)
            if entry.kind is EntryKind.STEP:
                self._snapshot_if_due(entry.index + 1)
        if len(journal) <= first:
            engine.resume_tokens(progress.tokens)
        self.step_if_due()

    def _last_snapshot(self, num_entries: int) -> StageState:
        """Read the snapshots in order; later damage costs only the work since the last good one."""
        state, segment = self._start, 0
        while state_path(self._folder, segment).exists():
            try:
                found, meta = load_state(state_path(self._folder, segment))
            except JournalCorrupt:
                break
            if int(meta[FIRST_ENTRY]) > num_entries:
                break
            state = found
            root: Future[Digest] = Future()
            root.set_result(found.root)
            self._progress.edges.append((int(meta[FIRST_ENTRY]), root))
            segment += 1
        return state

    # --- operations

    @property
    def applied(self) -> tuple[MicrobatchId, ...]:
        """Microbatches whose gradient is in, ascending."""
        return tuple(sorted(self._progress.applied))

    def pending(self) -> list[PendingSend]:
        """Microbatches in flight, oldest first."""
        engine, heads = self.engine, self._progress.heads
        return [
            PendingSend(heads[number], engine.tokens_of(number), engine.outputs_of(number)) for number in engine.pending
        ]

    def forward(
        self,
        microbatch: MicrobatchId,
        tokens: Tensor,
        inputs: Mapping[str, Tensor] | None,
        *,
        attempt: int = 0,
        peer: Hotkey | None = None,
        auth: AuthStamp | None = None,
        envelope: str | None = None,
    ) -> ForwardResult:
        """``StageEngine.forward``, journalled."""
        with self.computing.running():
            result = self.engine.forward(microbatch, tokens, inputs)
        body = {**(inputs or {}), "tokens": tokens}
        entry = JournalEntry(
            index=len(self._journal),
            kind=EntryKind.FORWARD,
            microbatch=microbatch,
            attempt=attempt,
            peer=peer,
            version=result.version,
            input_digest=tensors_digest(body),
            output_digest=None if result.outputs is None else tensors_digest(result.outputs),
            loss=result.loss,
            num_tokens=tokens[:, 1:].numel(),
            learning_rate=None,
            auth=auth,
            envelope=envelope,
        )
        self._write(entry, pack(body))
        return result

    def backward(
        self,
        microbatch: MicrobatchId,
        grads: Mapping[str, Tensor] | None,
        *,
        peer: Hotkey | None = None,
        auth: AuthStamp | None = None,
        envelope: str | None = None,
    ) -> BackwardResult:
        """``StageEngine.backward``, journalled."""
        with self.computing.running():
            result = self.engine.backward(microbatch, grads)
        entry = JournalEntry(
            index=len(self._journal),
            kind=EntryKind.BACKWARD,
            microbatch=microbatch,
            attempt=self._progress.heads[microbatch].attempt,
            peer=peer,
            version=result.version,
            input_digest=None if grads is None else tensors_digest(grads),
            output_digest=None if result.grads is None else tensors_digest(result.grads),
            loss=None,
            num_tokens=self.engine.run.microbatch_tokens,
            learning_rate=None,
            auth=auth,
            envelope=envelope,
        )
        self._write(entry, b"" if grads is None else pack(grads))
        return result

    def step_if_due(self) -> StepResult | None:
        """Take an inner step when this replica's share of tokens is reached."""
        if not self.engine.should_step():
            return None
        result = self._step()
        self._snapshot_if_due(len(self._journal))
        return result

    def _step(self) -> StepResult:
        with self.computing.running():
            result = self.engine.step()
        entry = JournalEntry(
            index=len(self._journal),
            kind=EntryKind.STEP,
            microbatch=None,
            attempt=0,
            peer=None,
            version=result.version,
            input_digest=None,
            output_digest=None,
            loss=None,
            num_tokens=result.num_tokens,
            learning_rate=result.learning_rate,
            auth=None,
            envelope=None,
        )
        self._write(entry, b"")
        return result

    def _write(self, entry: JournalEntry, body: bytes) -> None:
        if not entry.index:
            self._snapshots.wait()
        self._journal.append(entry, body)
        progress_note(self._progress, entry)

    def _snapshot_if_due(self, num_entries: int) -> None:
        is_due = self.engine.version % self.engine.run.round.snapshot_steps == 0
        if is_due and all(first != num_entries for first, _ in self._progress.edges):
            self._snapshot(self.engine.snapshot(self._progress.heads), num_entries)

    def _snapshot(self, state: StageState, num_entries: int) -> None:
        meta = {DOCUMENT: self._document, FIRST_ENTRY: str(num_entries), APPLIED_TOKENS: str(self._progress.tokens)}
        if num_entries:
            self._journal.sync()
        path = state_path(self._folder, len(self._progress.edges))
        self._progress.edges.append((num_entries, self._snapshots.save(path, state, meta)))

    def finish(self) -> FinishedRound:
        """Close the round: step on what is left, drop what is in flight."""
        if self.engine.has_gradient:
            self._step()
        self.engine.forget_pending()
        self._progress.heads.clear()
        end = self.engine.snapshot({})
        self._journal.sync()
        edges, last = self._progress.edges, len(self._journal)
        starts = [edge for edge in edges if edge[0] < last] or edges[:1]
        roots = [*(root.result() for _, root in starts), end.root]
        segments = tuple(
            SegmentRoots(first_entry=first, end_entry=stop, start_root=roots[place], end_root=roots[place + 1])
            for place, (first, stop) in enumerate(pairwise([*(first for first, _ in starts), last]))
        )
        return FinishedRound(
            start=self._start,
            end=end,
            pseudo_grad=merge.pseudo_grad(self._start.params, end.params),
            applied=self.applied,
            num_tokens=self._progress.tokens,
            segments=segments,
            journal_root=self._journal.root(),
            num_entries=last,
        )

    def close(self) -> None:
        """Write what is begun and close the files."""
        self._snapshots.close()
        self._journal.close()


def progress_note(progress: Progress, entry: JournalEntry) -> None:
    """Count one entry."""
    microbatch = entry.microbatch
    if entry.kind is EntryKind.FORWARD and microbatch is not None:
        progress.heads[microbatch] = PendingHead(
            microbatch=microbatch, version=entry.version, attempt=entry.attempt, peer=entry.peer
        )
    elif entry.kind is EntryKind.BACKWARD and microbatch is not None:
        progress.heads.pop(microbatch, None)
        progress.applied.append(microbatch)
        progress.tokens += entry.num_tokens
