"""Replay: one segment of a journal, done again with ``train.engine`` and held against what its replica committed.

Not here: fetching (``subnet.verify.auditor``), whom to audit (``subnet.verify.challenge``), punishing (``incentives``).
Exact: outputs and states are known by digest only, so they must be equal to the bit, as they are on one device class
with one computing thread. ``AuditResult.reason`` is stable and machine-readable: the constants here and in
``continuity``, and the reasons of ``train.redo.replay_frame``.
Invariants: nothing in the evidence can cause anything but a result; an honest segment passes; evidence that isn't what
was committed fails before anything is computed.
Source: design.md section 7.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from subnet.codec.tensors import DTYPES, TensorSpec, pack, unpack
from subnet.config import RunConfig
from subnet.data.batches import tokens, wire_tokens
from subnet.data.corpus import Corpus
from subnet.errors import Diverged, Malformed, Refused
from subnet.hashing import merkle_root
from subnet.model.flops import depth_that_fits
from subnet.net.messages import ENVELOPE_FIELD, Envelope
from subnet.records import AuthStamp, Commitment, RoundDocument, decode
from subnet.swarm import router
from subnet.train import merge
from subnet.train.device import CPU
from subnet.train.engine import StageEngine
from subnet.train.journal import EntryKind, Frame, JournalEntry
from subnet.train.optim import Moments
from subnet.train.plan import step_plan
from subnet.train.recorder import Progress, progress_note
from subnet.train.redo import replay_frame
from subnet.train.state import StageState
from subnet.train.wire import WireFormat
from subnet.types import Digest, Hotkey, Outcome, StageId
from subnet.verify.continuity import SEGMENTS, broken_link

PASSED = "passed"
JOURNAL_ROOT = "journal-root"  # the entries don't have the committed root
JOURNAL_LEAF = "journal-leaf"  # a frame's entry isn't the one in the journal
STATE_SHAPE = "state-shape"  # a state that this stage cannot have
STATE_ROOT = "state-root"  # not the state that the segment, or the round, starts from
NOT_IN_ROUND = "not-in-round"  # a microbatch outside the round, or outside a first-stage replica's share
WRONG_TOKENS = "wrong-tokens"  # tokens that the microbatch's id doesn't give
INPUT_UNSIGNED = "input-unsigned"  # no neighbour can be shown to have sent the input
STEP_SCHEDULE = "step-schedule"  # an inner step too early, too late or left out
END_ROOT = "end-root"  # the work leads to another state
APPLIED = "applied"  # the list of applied microbatches isn't the journal's
NUM_STEPS = "num-steps"  # inner steps that weren't taken
SHARD_DIGEST = "shard-digest"  # the pseudo-gradient isn't start minus end
NORM = "norm"  # a declared norm that the shard doesn't have
BODY = "body"  # an input that doesn't fit the stage
DIVERGED = "diverged"

UNKNOWN_ERROR = 1.0  # relative L2 error reported where the original isn't in the evidence: as far off as zeros would be

StampCheck = Callable[[Hotkey, AuthStamp, bytes], bool]  # (sender, stamp, body): ``net.auth.verify_stamp``


@dataclass(frozen=True)
class Claim:
    """What the ledger holds about one segment. ``optim_roots``: inner optimisers that the round may start from."""

    hotkey: Hotkey
    document: RoundDocument
    commitment: Commitment
    segment: int
    optim_roots: Collection[Digest]

    @property
    def stage(self) -> StageId:
        """The replica's stage."""
        return self.commitment.stage

    @property
    def is_last(self) -> bool:
        """Whether the segment ends the round."""
        return self.segment == len(self.commitment.segments) - 1


@dataclass(frozen=True, eq=False)
class Evidence:
    """What a miner handed out: the whole journal's entries, the segment's frames, its start state and the round's."""

    entries: Sequence[JournalEntry]
    frames: Sequence[Frame]
    state: StageState
    start: StageState


@dataclass(frozen=True)
class AuditResult:
    """What an audit found. ``error``: relative L2 error, 0 is bit-exact; ``cost_s``: computing time."""

    outcome: Outcome
    reason: str
    error: float
    num_microbatches: int
    cost_s: float


def audit_segment(
    run: RunConfig,
    corpus: Corpus,
    claim: Claim,
    evidence: Evidence,
    verify_stamp: StampCheck,
    device: torch.device = CPU,
    memory_bytes: float = math.inf,
) -> AuditResult:
    """Audit one segment of a member of a round's closed set, on a device of the run's kind with so much memory."""
    began_s = time.thread_time()
    error, num_microbatches = UNKNOWN_ERROR, 0
    reason = broken_link(claim.commitment, claim.document, claim.hotkey, claim.optim_roots)
    if not reason and not 0 <= claim.segment < len(claim.commitment.segments):
        reason = SEGMENTS
    if not reason:
        engine = StageEngine(run, claim.stage, device)
        # How much a miner had in flight must not decide how much memory its auditor takes.
        most = len(claim.document.microbatches())
        _, engine.max_graphs = depth_that_fits(run, claim.stage, memory_bytes, most)
        audit = _Audit(engine, corpus, claim, evidence, verify_stamp)
        reason = audit.caught()
        error, num_microbatches = audit.error, audit.num_microbatches
    outcome = Outcome.FAILED if reason else Outcome.PASSED
    cost_s = time.thread_time() - began_s
    return AuditResult(outcome, reason or PASSED, error if reason else 0.0, num_microbatches, cost_s)


def fresh_optim_root(run: RunConfig, num_parameters: int) -> Digest:
    """Root of an inner optimiser that has taken no step."""
    nothing = np.zeros(num_parameters, dtype=np.float32)
    return StageState(nothing, Moments.zeros(num_parameters), run.outer.num_shards).optim_root


class _Audit:
    """One audit in progress. Each check returns why it failed, or ""."""

    def __init__(
        self, engine: StageEngine, corpus: Corpus, claim: Claim, evidence: Evidence, verify_stamp: StampCheck
    ) -> None:
        run = engine.run
        self._run, self._corpus, self._claim = run, corpus, claim
        self._evidence, self._verify_stamp = evidence, verify_stamp
        self._part = claim.commitment.segments[claim.segment]
        self._engine, self._wire = engine, WireFormat(run, claim.stage)
        shares = router.shares(claim.document).get(claim.hotkey, ())
        self._allowed = frozenset(shares if claim.stage == 0 else claim.document.microbatches())
        self._stage_of = {entry.hotkey: entry.stage for entry in claim.document.roster}
        self._progress = Progress()
        self.error = UNKNOWN_ERROR
        self.num_microbatches = 0

    def caught(self) -> str:
        """The first lie found."""
        return (
            self._check_journal()
            or self._check_state(self._evidence.state, self._part.start_root)
            or self._check_state(self._evidence.start, self._claim.commitment.segments[0].start_root)
            or self._replay()
            or self._check_end()
        )

    # --- evidence against commitment

    def _check_journal(self) -> str:
        entries, commitment, part = self._evidence.entries, self._claim.commitment, self._part
        if len(entries) != commitment.num_entries or [entry.index for entry in entries] != list(range(len(entries))):
            return JOURNAL_ROOT
        if merkle_root([entry.leaf() for entry in entries]) != commitment.journal_root:
            return JOURNAL_ROOT
        if [frame.entry for frame in self._evidence.frames] != list(entries[part.first_entry : part.end_entry]):
            return JOURNAL_LEAF
        done = [entry.microbatch for entry in entries if entry.kind is EntryKind.BACKWARD]
        if len(set(done)) != len(done) or set(done) != set(commitment.applied):
            return APPLIED
        is_counted = len(done) == len(commitment.applied)
        return "" if is_counted and commitment.num_tokens == len(done) * self._run.microbatch_tokens else APPLIED

    def _check_state(self, state: StageState, root: Digest) -> str:
        """Whether the engine can take the state over at all, and whether it is the committed one."""
        size, stash = self._engine.num_parameters, state.stash or {}
        vectors = [state.params, *stash.values()]
        moments = (state.moments.first, state.moments.second)
        is_sound = (
            all(vector.shape == (size,) and vector.dtype == np.float32 for vector in vectors)
            and all(tuple(moment.shape) == (size,) and moment.dtype == torch.float32 for moment in moments)
            and state.num_shards == self._run.outer.num_shards
            and all(_fits(item.tensors(), self._wire.forward) for item in state.pending)
            and all(item.head.version == state.version or item.head.version in stash for item in state.pending)
        )
        if not is_sound:
            return STATE_SHAPE
        return "" if state.root == root else STATE_ROOT

    # --- the work

    def _replay(self) -> str:
        engine, state = self._engine, self._evidence.state
        before = self._evidence.entries[: self._part.first_entry]
        for entry in before:
            progress_note(self._progress, entry)
        # The root of a state with nothing in flight doesn't cover its version; the journal does.
        if state.version != sum(entry.kind is EntryKind.STEP for entry in before):
            return STATE_ROOT
        if {item.head.microbatch: item.head for item in state.pending} != self._progress.heads:
            return STATE_ROOT
        try:
            engine.begin(state, step_plan(self._claim.document, self._run, self._claim.hotkey))
        except Diverged:
            return DIVERGED
        engine.resume_tokens(self._progress.tokens)
        for position, frame in enumerate(self._evidence.frames, 1):
            is_final = self._claim.is_last and position == len(self._evidence.frames)
            reason = self._check_turn(frame.entry, is_final) or self._check_input(frame)
            reason = reason or replay_frame(engine, frame, self._wire)
            if reason:
                return reason
            progress_note(self._progress, frame.entry)
            self.num_microbatches += frame.entry.kind is EntryKind.BACKWARD
        return self._check_end_root()

    def _check_turn(self, entry: JournalEntry, is_final: bool) -> str:
        """A step is taken when it is due and at no other time, but for the rest of the gradient at the round's end."""
        is_due, is_step = self._engine.should_step(), entry.kind is EntryKind.STEP
        return "" if is_step == is_due or (is_step and is_final) else STEP_SCHEDULE

    def _check_input(self, frame: Frame) -> str:
        entry = frame.entry
        if entry.kind is EntryKind.STEP:
            return ""
        if entry.microbatch not in self._allowed:
            return NOT_IN_ROUND
        is_forward = entry.kind is EntryKind.FORWARD
        specs = self._wire.forward if is_forward else self._wire.backward
        if not specs:  # the last stage starts the way back itself
            return ""
        try:
            sent, _ = unpack(frame.body, specs, max_bytes=self._wire.max_bytes)
        except Refused:
            return BODY
        if is_forward:
            right = wire_tokens(tokens(self._run, self._corpus, entry.microbatch), self._run.model.vocab_size)
            if not torch.equal(sent["tokens"], right):
                return WRONG_TOKENS
            if self._claim.stage == 0:  # the first stage makes its input itself
                return ""
        signed = self._signed_by_neighbour(entry, StageId(self._claim.stage + (-1 if is_forward else 1)))
        if signed is None or not self._verify_stamp(*signed, pack(sent, {ENVELOPE_FIELD: entry.envelope or ""})):
            return INPUT_UNSIGNED
        return ""

    def _signed_by_neighbour(self, entry: JournalEntry, stage: StageId) -> tuple[Hotkey, AuthStamp] | None:
        """Sender and stamp, if they are of a replica of ``stage`` and speak of this very input to this replica."""
        peer, stamp, text = entry.peer, entry.auth, entry.envelope
        if peer is None or stamp is None or text is None or self._stage_of.get(peer) != stage:
            return None
        try:
            envelope = decode(Envelope, text.encode())
        except Malformed:
            return None
        document, path = self._claim.document, "/v1/forward" if entry.kind is EntryKind.FORWARD else "/v1/backward"
        told = (envelope.run_hash, envelope.round, envelope.microbatch, envelope.stage, envelope.digest)
        meant = (document.run_hash, document.round, entry.microbatch, self._claim.stage, entry.input_digest)
        is_ours = (stamp.receiver, stamp.method, stamp.path) == (self._claim.hotkey, "POST", path)
        return (peer, stamp) if told == meant and is_ours else None

    # --- where it led

    def _check_end_root(self) -> str:
        engine, due_version = self._engine, (self._claim.segment + 1) * self._run.round.snapshot_steps
        if engine.has_gradient:
            return STEP_SCHEDULE  # a segment ends with a step, and no gradient is left over at the round's end
        if self._claim.is_last:
            engine.forget_pending()
            self._progress.heads.clear()
        if engine.version > due_version or (not self._claim.is_last and engine.version != due_version):
            return SEGMENTS
        self._end = engine.snapshot(self._progress.heads)
        return "" if self._end.root == self._part.end_root else END_ROOT

    def _check_end(self) -> str:
        """The last segment: what the replica gave to the merge is what its work amounts to."""
        if not self._claim.is_last:
            return ""
        start, commitment = self._evidence.start, self._claim.commitment
        if self._end.moments.step - start.moments.step != commitment.num_steps:
            return NUM_STEPS
        pseudo_grad = merge.pseudo_grad(start.params, self._end.params)
        shards = [pseudo_grad[place] for place in merge.shard_slices(len(pseudo_grad), self._run.outer.num_shards)]
        if tuple(merge.shard_digest(shard) for shard in shards) != commitment.shard_digests:
            return SHARD_DIGEST
        if len(commitment.shard_norms) != len(shards):
            return NORM
        for shard, declared in zip(shards, commitment.shard_norms, strict=True):
            if not merge.norm_agrees(shard, declared):
                actual = merge.norm(shard)
                self.error = abs(actual - declared) / max(actual, abs(declared))
                return NORM
        return ""


def _fits(tensors: Mapping[str, Tensor], specs: Mapping[str, TensorSpec]) -> bool:
    """Whether tensors have exactly the names, shapes and dtypes that a stage receives."""
    return set(tensors) == set(specs) and all(
        tuple(tensor.shape) == specs[name].shape and tensor.dtype == DTYPES[specs[name].dtype]
        for name, tensor in tensors.items()
    )
