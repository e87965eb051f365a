"""The state machine of rounds: FORMING -> TRAINING -> COMMITTING -> MERGING -> FORMING.

``tick`` says what the orchestrator appends next, given the ledger's meaning, who is alive, and the time. Called again
until it returns nothing. Not here: storage, signatures, sockets (``subnet.orchestrate.service``).
Invariants: pure; a phase ends by quorum of live replicas or by its deadline, whichever is first; a replica that dies
holds nobody up for longer than the liveness window; a shard is final once.
Source: design.md section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from subnet.config import RunConfig
from subnet.hashing import EMPTY_ROOT, digest_of, merkle_root
from subnet.records import (
    PROTOCOL,
    Commitment,
    LedgerKind,
    PeerChanged,
    PhaseChanged,
    Record,
    RosterEntry,
    RoundClosed,
    RoundDocument,
    SetClosed,
    ShardFinal,
    ShardPublished,
)
from subnet.swarm.account import account
from subnet.swarm.deadlines import Durations
from subnet.swarm.roster import (
    LiveReport,
    agreed_root,
    alive,
    is_formed,
    is_miner,
    is_ready,
    liveness_window_s,
    make_roster,
    shard_owners,
)
from subnet.swarm.view import AGREED, DISPUTED, KEPT, SINGLE, RoundView, RunView
from subnet.types import Digest, Hotkey, MicrobatchId, PeerState, Phase, RoundId, StageId

BEACON_DELAY_BLOCKS = 3  # the beacon block must not be known yet when it is named; finality lags a block or two
FLOOR_S = 5.0  # no learnt deadline is shorter: a restart of a miner takes about that long
CAP_FACTOR = 4.0  # no learnt deadline is longer than so many times the configured first one

Entries = list[tuple[LedgerKind, Record]]


@dataclass(frozen=True)
class Moment:
    """What a decision depends on beside the ledger. ``block``: newest known block of the chain, -1 without one.

    ``started_s``: when this orchestrator was started. A deadline that passed while it was away comes a liveness window
    later, so that peers can hand in what they could not.
    """

    now_s: float
    live: Mapping[Hotkey, LiveReport]
    block: int
    sign: Callable[[bytes], str]
    started_s: float = 0.0

    def is_over(self, current: RoundView, run: RunConfig) -> bool:
        """Whether the deadline of the round's phase has come."""
        return self.now_s >= max(current.deadline_s, self.started_s + liveness_window_s(run))


def tick(view: RunView, moment: Moment) -> Entries:
    """Entries to append now; empty when there is nothing to do but wait."""
    if not view.is_opened or view.stopped is not None:
        return []
    living = alive(moment.live, view.run, moment.now_s)
    changes = _peer_changes(view, living)
    if changes:
        return changes
    current = view.round
    if current is None:
        return _form(view, moment, living)
    match current.phase:
        case Phase.TRAINING:
            return _end_training(view, current, moment, living)
        case Phase.COMMITTING:
            return _close_set(view, current, moment, living)
        case Phase.MERGING:
            return _merge(view, current, moment, living)
        case Phase.FORMING:
            return []


def _peer_changes(view: RunView, living: frozenset[Hotkey]) -> Entries:
    changes: Entries = []
    for hotkey, peer in view.peers.items():
        if not is_miner(view, hotkey) or peer.stage is None:
            continue
        if hotkey not in living:
            wanted, reason = PeerState.LOST, "silent"
        elif is_ready(view, hotkey) or peer.state is PeerState.ACTIVE:
            wanted, reason = PeerState.ACTIVE, "ready"
        else:
            wanted, reason = PeerState.SYNCING, "heard"
        if wanted is not peer.state:
            record = PeerChanged(hotkey=hotkey, stage=peer.stage, state=wanted, reason=reason)
            changes.append((LedgerKind.PEER_CHANGED, record))
    return changes


def phase_timeout_s(view: RunView, phase: Phase) -> float:
    """How long a phase may take: configured at first, then learnt from how long it took."""
    first_s = view.run.round.training_timeout_s if phase is Phase.TRAINING else view.run.round.merging_timeout_s
    samples = view.phase_durations_s.get(phase, [])
    return Durations(first_s, floor_s=FLOOR_S, cap_s=CAP_FACTOR * first_s, samples_s=samples).timeout_s()


# ------------------------------------------------------------------------------------------------------------- FORMING


def _form(view: RunView, moment: Moment, living: frozenset[Hotkey]) -> Entries:
    roster = make_roster(view, living)
    if not is_formed(view, view.run, roster, living, moment.now_s):
        return []
    return [(LedgerKind.ROUND_OPENED, open_round(view, roster, moment))]


def open_round(view: RunView, roster: tuple[RosterEntry, ...], moment: Moment) -> RoundDocument:
    """The next round's document, signed. Re-leased ids take the place of new ones: no round outgrows another."""
    run = view.run
    roots = [agreed_root(view, StageId(stage)) for stage in range(run.stages.num_stages)]
    unsigned = RoundDocument(
        protocol=PROTOCOL,
        run_hash=view.run_hash,
        round=RoundId(view.last_round + 1),
        first_microbatch=view.next_microbatch,
        num_microbatches=max(run.round.microbatches - len(view.released), 0),
        released=view.released,
        roster=roster,
        seed=digest_of([view.run_hash, view.head]),
        params_roots=tuple(root or EMPTY_ROOT for root in roots),
        training_deadline_s=moment.now_s + phase_timeout_s(view, Phase.TRAINING),
        signature="",
    )
    return unsigned.model_copy(update={"signature": moment.sign(unsigned.signed_bytes())})


# ------------------------------------------------------------------------------------------------------------ TRAINING


def _end_training(view: RunView, current: RoundView, moment: Moment, living: frozenset[Hotkey]) -> Entries:
    first = [hotkey for hotkey in current.stage_roster(StageId(0)) if hotkey in living]
    if moment.is_over(current, view.run):
        reason = "deadline"
    elif not first:
        reason = "first-stage-lost"
    elif all(_is_drained(moment.live[hotkey], current.round) for hotkey in first):
        reason = "drained"
    else:
        return []
    return [_phase(view, current, Phase.COMMITTING, reason, moment)]


def _is_drained(report: LiveReport, number: RoundId) -> bool:
    return report.round == number and report.is_drained


def _phase(
    view: RunView, current: RoundView, phase: Phase, reason: str, moment: Moment
) -> tuple[LedgerKind, PhaseChanged]:
    deadline_s = moment.now_s + phase_timeout_s(view, phase)
    return LedgerKind.PHASE_CHANGED, PhaseChanged(
        round=current.round, phase=phase, reason=reason, deadline_s=deadline_s
    )


# ---------------------------------------------------------------------------------------------------------- COMMITTING


def _close_set(view: RunView, current: RoundView, moment: Moment, living: frozenset[Hotkey]) -> Entries:
    waiting = [
        entry.hotkey
        for entry in current.document.roster
        if entry.hotkey in living and entry.hotkey not in current.commitments
    ]
    if waiting and not moment.is_over(current, view.run):
        return []
    members = tuple(sorted(current.commitments))
    served = {current.commitments[hotkey].stage for hotkey in members}
    if len(served) < view.run.stages.num_stages:
        return [(LedgerKind.ROUND_CLOSED, _uncommitted(view, current, "stage-without-commitment"))]
    beacon_block = moment.block + BEACON_DELAY_BLOCKS if moment.block >= 0 else -1
    closed = SetClosed(round=current.round, members=members, beacon_block=beacon_block)
    reason = "deadline" if waiting else "quorum"
    return [(LedgerKind.SET_CLOSED, closed), _phase(view, current, Phase.MERGING, reason, moment)]


def _uncommitted(view: RunView, current: RoundView, reason: str) -> RoundClosed:
    """The round leaves no trace in the model: parameters stand, every id is leased again."""
    return RoundClosed(
        round=current.round,
        committed=False,
        reason=reason,
        num_complete=0,
        partial=(),
        duplicate=(),
        released=current.document.microbatches(),
        params_roots=view.params_roots,
        mean_loss=_mean_loss(current),
    )


# ------------------------------------------------------------------------------------------------------------- MERGING


def _merge(view: RunView, current: RoundView, moment: Moment, living: frozenset[Hotkey]) -> Entries:
    finals: Entries = []
    num_missing = 0
    for stage in range(view.run.stages.num_stages):
        for shard in range(view.run.outer.num_shards):
            if (StageId(stage), shard) in current.finals:
                continue
            final = _final(view, current, StageId(stage), shard, moment, living)
            if final is None:
                num_missing += 1
            else:
                finals.append((LedgerKind.SHARD_FINAL, final))
    if finals or num_missing:
        return finals
    return [(LedgerKind.ROUND_CLOSED, close_round(view, current))]


def _final(
    view: RunView, current: RoundView, stage: StageId, shard: int, moment: Moment, living: frozenset[Hotkey]
) -> ShardFinal | None:
    owners = shard_owners(view, current.round, stage, shard)
    published = current.published.get((stage, shard), {})
    present = [hotkey for hotkey in owners if hotkey in published]
    is_over = moment.is_over(current, view.run)
    if len(present) < len(owners) and not is_over and any(hotkey in living for hotkey in set(owners) - set(present)):
        return None
    results = {(published[hotkey].params_digest, published[hotkey].momentum_digest) for hotkey in present}
    if len(results) == 1:
        basis = AGREED if len(present) > 1 else SINGLE
        return _shard_final(current, published[present[0]], tuple(present), basis)
    last = view.last_finals.get((stage, shard))
    old = ShardPublished(
        round=current.round,
        stage=stage,
        shard=shard,
        params_digest=last.params_digest if last else EMPTY_ROOT,
        momentum_digest=last.momentum_digest if last else EMPTY_ROOT,
    )
    return _shard_final(current, old, tuple(present), DISPUTED if present else KEPT)


def _shard_final(current: RoundView, result: ShardPublished, owners: tuple[Hotkey, ...], basis: str) -> ShardFinal:
    return ShardFinal(
        round=current.round,
        stage=result.stage,
        shard=result.shard,
        params_digest=result.params_digest,
        momentum_digest=result.momentum_digest,
        owners=owners,
        basis=basis,
    )


def close_round(view: RunView, current: RoundView) -> RoundClosed:
    """The account of a merged round and the parameters' roots after it."""
    num_stages = view.run.stages.num_stages
    applied: dict[StageId, dict[Hotkey, tuple[MicrobatchId, ...]]] = {}
    for hotkey in current.members:
        commitment: Commitment = current.commitments[hotkey]
        applied.setdefault(commitment.stage, {})[hotkey] = commitment.applied
    result = account(current.document.microbatches(), applied, num_stages)
    return RoundClosed(
        round=current.round,
        committed=True,
        reason="merged",
        num_complete=len(result.complete),
        partial=result.partial,
        duplicate=result.duplicate,
        released=result.released,
        params_roots=tuple(_root(view, current, StageId(stage)) for stage in range(num_stages)),
        mean_loss=_mean_loss(current),
    )


def _root(view: RunView, current: RoundView, stage: StageId) -> Digest:
    """Root of a stage's merged parameters from its shards' digests; the one before if nothing moved.

    ``EMPTY_ROOT`` where a shard never was final: then the replicas' own proofs decide.
    """
    finals = [current.finals[stage, shard] for shard in range(view.run.outer.num_shards)]
    if all(final.basis in (KEPT, DISPUTED) for final in finals):
        return view.params_roots[stage]
    digests = [final.params_digest for final in finals]
    return EMPTY_ROOT if EMPTY_ROOT in digests else merkle_root(digests)


def _mean_loss(current: RoundView) -> float | None:
    losses = [item.loss for _, item in sorted(current.losses.items())]
    return sum(losses) / len(losses) if losses else None
