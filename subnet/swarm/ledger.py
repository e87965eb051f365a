"""The ledger: a hash chain of events, and the one function that says what a prefix of it means.

``append`` makes the next link, ``verify_link`` checks one, ``fold`` checks and applies many. Everybody who reads the
ledger uses this fold, so that all see the same state.
Not here: storage (``subnet.orchestrate.ledger_store``), whether a peer's record deserves to be appended
(``subnet.orchestrate.submissions``), signatures of peers (``subnet.net.auth.verify_stamp``).
Invariants: fold(prefix) then fold(rest) equals fold(all); a changed byte anywhere raises ``LedgerCorrupt``; kinds that
only the owner may write are refused from anybody else.
"""

from __future__ import annotations

from collections.abc import Iterable

from subnet.config import parse_run_config
from subnet.errors import ConfigError, LedgerCorrupt, Malformed
from subnet.hashing import digest_of, sha256
from subnet.records import (
    AuthStamp,
    Commitment,
    EpochHead,
    LedgerEntry,
    LedgerKind,
    LossReport,
    PeerChanged,
    PeerRegistered,
    PhaseChanged,
    Record,
    ReplicaReady,
    RoundClosed,
    RoundDocument,
    RunOpened,
    RunStopped,
    SetClosed,
    ShardFinal,
    ShardPublished,
    Verdict,
    body_of,
)
from subnet.swarm.view import (
    AGREED,
    NOBODY,
    RETAINED_DURATIONS,
    RETAINED_ROUNDS,
    SINGLE,
    PeerView,
    RoundView,
    RunView,
    VerdictView,
)
from subnet.types import Digest, Hotkey, MicrobatchId, PeerState, Phase, Role, RoundId

GENESIS_PREV: Digest = sha256(b"liquid ledger")

# Written by peers about themselves; every other kind is the owner's alone, but PEER_CHANGED, which may be a good-bye.
PEER_KINDS = frozenset(
    {
        LedgerKind.PEER_REGISTERED,
        LedgerKind.REPORTED,
        LedgerKind.COMMITTED,
        LedgerKind.SHARD_PUBLISHED,
        LedgerKind.READY,
        LedgerKind.VERDICT,
    }
)


def _entry_hash(entry: LedgerEntry) -> Digest:
    return digest_of({name: value for name, value in entry.plain().items() if name != "hash"})


def append(
    prev: LedgerEntry | None, kind: LedgerKind, author: Hotkey, body: Record, auth: AuthStamp | None, time_s: float
) -> LedgerEntry:
    """The link after ``prev`` (None: the first). Its time is never before that of ``prev``."""
    unsealed = LedgerEntry(
        seq=0 if prev is None else prev.seq + 1,
        time_s=time_s if prev is None else max(time_s, prev.time_s),
        kind=kind,
        author=author,
        body=body.plain(),
        auth=auth,
        prev=GENESIS_PREV if prev is None else prev.hash,
        hash=GENESIS_PREV,
    )
    return unsealed.model_copy(update={"hash": _entry_hash(unsealed)})


def verify_link(prev: LedgerEntry | None, entry: LedgerEntry) -> None:
    """Raises ``LedgerCorrupt`` unless ``entry`` is whole and follows ``prev`` (None: is the first)."""
    if prev is None:
        _verify_after(-1, GENESIS_PREV, entry.time_s, entry)
    else:
        _verify_after(prev.seq, prev.hash, prev.time_s, entry)


def _verify_after(seq: int, head: Digest, time_s: float, entry: LedgerEntry) -> None:
    if entry.seq != seq + 1 or entry.prev != head:
        raise LedgerCorrupt(f"Entry {seq + 1} of the ledger does not follow the one before.")
    try:
        computed = _entry_hash(entry)
    except ValueError:  # a number that canonical JSON cannot hold
        raise LedgerCorrupt(f"Entry {entry.seq} of the ledger is not canonical.") from None
    if entry.hash != computed:
        raise LedgerCorrupt(f"Entry {entry.seq} of the ledger does not match its hash.")
    if entry.time_s < time_s:
        raise LedgerCorrupt(f"Entry {entry.seq} of the ledger is older than the one before.")


def fold(entries: Iterable[LedgerEntry], view: RunView | None = None) -> RunView:
    """Apply ``entries`` to ``view`` (a new one by default) in place and return it; raises ``LedgerCorrupt``.

    On an error the view has taken in everything before the bad entry, and nothing of it.
    """
    if view is None:
        view = RunView()
    for entry in entries:
        head = view.head if view.seq >= 0 else GENESIS_PREV
        _verify_after(view.seq, head, view.time_s, entry)
        try:
            body = body_of(entry)
        except Malformed as error:
            raise LedgerCorrupt(f"Entry {entry.seq} of the ledger is malformed: {error.message}") from None
        _check_author(view, entry, body)
        _apply(view, entry, body)
        view.seq, view.head, view.time_s = entry.seq, entry.hash, entry.time_s
    return view


def _check_author(view: RunView, entry: LedgerEntry, body: Record) -> None:
    if not view.is_opened and not isinstance(body, RunOpened):
        raise LedgerCorrupt(f"Entry {entry.seq} of the ledger comes before the run is opened.")
    if not _may_write(view, entry, body):
        raise LedgerCorrupt(f"Entry {entry.seq} of the ledger ({entry.kind}) has an author who may not write it.")


def _may_write(view: RunView, entry: LedgerEntry, body: Record) -> bool:
    if isinstance(body, RunOpened):
        return entry.author == body.owner and view.owner in (NOBODY, body.owner)
    if entry.author == view.owner or entry.kind in PEER_KINDS:
        return True
    is_goodbye = isinstance(body, PeerChanged) and body.state is PeerState.RETIRED
    return is_goodbye and entry.author == entry.body["hotkey"]


def _apply(view: RunView, entry: LedgerEntry, body: Record) -> None:
    match body:
        case RunOpened():
            _run_opened(view, entry, body)
        case PeerRegistered():
            _peer_registered(view, entry, body)
        case PeerChanged():
            _peer_changed(view, entry, body)
        case RoundDocument():
            _round_opened(view, entry, body)
        case PhaseChanged():
            _phase_changed(view, entry, body)
        case LossReport():
            for item in body.items:
                _current(view, entry, body.round).losses.setdefault(item.microbatch, item)
        case Commitment():
            current = _current(view, entry, body.round)
            current.commitments[entry.author] = body
            current.commitment_seqs[entry.author] = entry.seq
        case SetClosed():
            current = _current(view, entry, body.round)
            current.members, current.set_hash, current.beacon_block = body.members, entry.hash, body.beacon_block
        case ShardPublished():
            shard = _current(view, entry, body.round).published.setdefault((body.stage, body.shard), {})
            shard[entry.author] = body
        case ShardFinal():
            _current(view, entry, body.round).finals[(body.stage, body.shard)] = body
        case ReplicaReady():
            view.ready[entry.author], view.ready_s[entry.author] = body, entry.time_s
        case RoundClosed():
            _round_closed(view, entry, body)
        case Verdict():
            view.verdicts.append(VerdictView(entry.author, body, entry.seq))
        case EpochHead():
            view.epoch_heads.append(body)
        case RunStopped():
            view.stopped = body
        case _:
            raise LedgerCorrupt(f"Entry {entry.seq} of the ledger has no meaning here.")


def _current(view: RunView, entry: LedgerEntry, round_id: RoundId) -> RoundView:
    if view.round is None or view.round.round != round_id:
        raise LedgerCorrupt(f"Entry {entry.seq} of the ledger ({entry.kind}) is about a round that is not open.")
    return view.round


def _run_opened(view: RunView, entry: LedgerEntry, body: RunOpened) -> None:
    try:
        run = parse_run_config(body.run)
    except ConfigError as error:
        raise LedgerCorrupt(f"Entry {entry.seq} of the ledger opens no valid run: {error.message}") from None
    if run.hash() != body.run_hash or (view.is_opened and view.run_hash != body.run_hash):
        raise LedgerCorrupt(f"Entry {entry.seq} of the ledger opens a run under a wrong hash.")
    view.config, view.run_hash, view.owner, view.stopped = run, body.run_hash, body.owner, None
    if view.round is None:
        _forming(view, "run-opened", entry.time_s, entry.time_s + run.round.forming_timeout_s)


def _forming(view: RunView, reason: str, since_s: float, deadline_s: float) -> None:
    view.forming_reason, view.forming_since_s, view.forming_deadline_s = reason, since_s, deadline_s


def _peer_registered(view: RunView, entry: LedgerEntry, body: PeerRegistered) -> None:
    known = view.peers.get(entry.author)
    stage = known.stage if known is not None and body.role is Role.MINER else None
    if body.role is not Role.MINER:
        state = PeerState.ACTIVE
    else:
        state = PeerState.REGISTERED if stage is None else PeerState.SYNCING
    view.peers[entry.author] = PeerView(body, stage, state, entry.time_s)
    _hold(view, entry.author)
    # Whoever starts again has to prove its parameters again.
    view.ready.pop(entry.author, None)
    view.ready_s.pop(entry.author, None)


def _peer_changed(view: RunView, entry: LedgerEntry, body: PeerChanged) -> None:
    peer = view.peers.get(body.hotkey)
    if peer is None:
        raise LedgerCorrupt(f"Entry {entry.seq} of the ledger changes a peer that never registered.")
    peer.stage, peer.state = body.stage, body.state
    _hold(view, body.hotkey)


def _hold(view: RunView, hotkey: Hotkey) -> None:
    """Note that a miner is here in the open round; who leaves it later was here all the same."""
    peer = view.peers[hotkey]
    is_here = peer.registration.role is Role.MINER and peer.state not in (PeerState.LOST, PeerState.RETIRED)
    if view.round is not None and is_here:
        view.round.held.add(hotkey)


def _round_opened(view: RunView, entry: LedgerEntry, body: RoundDocument) -> None:
    if view.round is not None or body.round != view.last_round + 1 or body.first_microbatch != view.next_microbatch:
        raise LedgerCorrupt(f"Entry {entry.seq} of the ledger opens a round out of turn.")
    view.round = RoundView(
        document=body,
        seq=entry.seq,
        opened_s=entry.time_s,
        phase=Phase.TRAINING,
        reason="opened",
        phase_since_s=entry.time_s,
        deadline_s=body.training_deadline_s,
    )
    for hotkey in view.peers:
        _hold(view, hotkey)
    view.params_roots, view.released = body.params_roots, ()
    view.next_microbatch = MicrobatchId(body.first_microbatch + body.num_microbatches)


def _phase_changed(view: RunView, entry: LedgerEntry, body: PhaseChanged) -> None:
    if body.phase is Phase.FORMING and view.round is None:
        _forming(view, body.reason, entry.time_s, body.deadline_s)
        return
    current = _current(view, entry, body.round)
    _took(view, current, entry.time_s)
    current.phase, current.reason, current.phase_since_s = body.phase, body.reason, entry.time_s
    current.deadline_s = body.deadline_s


def _took(view: RunView, current: RoundView, now_s: float) -> None:
    durations = view.phase_durations_s.setdefault(current.phase, [])
    durations.append(now_s - current.phase_since_s)
    if current.phase is Phase.TRAINING:
        current.training_s = durations[-1]
    del durations[:-RETAINED_DURATIONS]


def _round_closed(view: RunView, entry: LedgerEntry, body: RoundClosed) -> None:
    current = _current(view, entry, body.round)
    _took(view, current, entry.time_s)
    current.closed, current.closed_s = body, entry.time_s
    if body.committed:
        view.params_roots = body.params_roots
        for key, final in current.finals.items():
            if final.basis in (AGREED, SINGLE):
                view.last_finals[key] = final
    view.closed.append(body)
    view.released = body.released
    view.rounds[body.round] = current
    view.rounds.pop(RoundId(body.round - RETAINED_ROUNDS), None)
    view.round = None
    view.ready.clear()
    view.ready_s.clear()
    timeout_s = view.run.round.forming_timeout_s
    _forming(view, body.reason, entry.time_s, entry.time_s + timeout_s)
