"""Scores: what each hotkey's work is worth, computed from a prefix of the ledger and nothing else.

Not here: on-chain weights (``incentives.weights``), the miner's view (``incentives.statement``), whether the ledger's
hash chain and authors hold (``subnet.swarm.ledger``; verify first, then fold).
How: a (stage, microbatch) is paid once, to the earliest ledger entry among the members that applied it. A round's work,
in FLOPs, is cut into one equal pool per stage, so that assignment doesn't decide income; a pool is shared by tokens.
Work decays by age and leaves after ``pay.window_rounds``. A confirmed failed audit voids the whole window; what the
hotkey would have earned burns, and its claims no longer stand before anybody else's.
Invariants: all arithmetic is on integers (FLOPs, and decays in parts of ``DECAY_ONE`` from correctly rounded decimals),
so neither order of summing nor the machine's libm can move a bit; folding in pieces equals folding at once; keyed by
hotkey, never by uid; forgetting a round that left the window changes nothing.
Source: design.md section 7 and invariant 10.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_EVEN, Context, Decimal

from subnet.config import RunConfig
from subnet.records import (
    Commitment,
    LedgerEntry,
    LedgerKind,
    PeerRegistered,
    RoundClosed,
    RoundDocument,
    SetClosed,
    Verdict,
    body_of,
)
from subnet.types import Hotkey, MicrobatchId, Outcome, Role, RoundId, StageId

DECAY_ONE = 10**12  # parts; finer than any weight that the chain can hold (u16)
CONFIRMATIONS = 2  # design.md section 7: another validator re-verifies before anybody is punished

NOT_COMMITTED = "round-not-committed"
NOT_IN_SET = "not-in-closed-set"
NOT_THIS_STAGE = "not-in-roster-of-stage"
NOT_IN_ROUND = "not-in-round"
DUPLICATE = "duplicate"
ALREADY_PAID = "already-paid"
AUDIT_FAILED = "audit-failed"


@dataclass(frozen=True)
class Failure:
    """A confirmed failed audit."""

    round: RoundId
    segment: int
    reason: str


@dataclass(frozen=True)
class ScoreRow:
    """One replica's round. ``flops`` is its share of the stage's pool, ``points`` that share after decay and voiding.

    num_paid and num_tokens count what is paid; ``unpaid`` lists (reason, microbatches) of the rest; ``burned`` are the
    points that a failed audit took.
    """

    hotkey: Hotkey
    round: RoundId
    stage: StageId
    num_paid: int
    num_tokens: int
    unpaid: tuple[tuple[str, int], ...]
    flops: int
    decay: int
    points: int
    burned: int


@dataclass(frozen=True)
class Scores:
    """The scores at one ledger prefix. ``points`` are exact; ``unclaimed`` are pools of stages where nobody is paid."""

    round: RoundId
    points: dict[Hotkey, int]
    rows: tuple[ScoreRow, ...]
    voided: dict[Hotkey, Failure]
    unclaimed: int

    @property
    def by_hotkey(self) -> dict[Hotkey, float]:
        """Scores as floats, rounded once from the exact sums."""
        return {hotkey: float(points) for hotkey, points in self.points.items()}

    @property
    def burned(self) -> float:
        """What was worked for but is paid to nobody."""
        return float(sum(row.burned for row in self.rows) + self.unclaimed)


@dataclass
class _Claim:
    seq: int
    stage: StageId
    applied: tuple[MicrobatchId, ...]


@dataclass
class _Round:
    document: RoundDocument
    claims: dict[Hotkey, _Claim] = field(default_factory=dict)
    members: frozenset[Hotkey] = frozenset()
    is_closed: bool = False
    is_committed: bool = False


class ScoreBook:
    """The fold's state; ``add`` entries in ledger order, ask for ``scores`` at any time."""

    def __init__(self, run: RunConfig, flops_per_token: Sequence[float]) -> None:
        self._run = run
        self._flops = [round(value) for value in flops_per_token]
        self._rounds: dict[RoundId, _Round] = {}
        self._latest = RoundId(-1)
        self._validators: set[Hotkey] = set()
        self._votes: dict[tuple[RoundId, Hotkey, int], set[Hotkey]] = defaultdict(set)
        self._failures: dict[tuple[RoundId, Hotkey, int], Failure] = {}

    def add(self, entry: LedgerEntry) -> None:
        """Takes in the next entry; raises ``Malformed`` where a body isn't what its kind says."""
        if entry.kind not in _COUNTED:
            return
        body = body_of(entry)
        if isinstance(body, PeerRegistered) and body.role is Role.VALIDATOR:
            self._validators.add(entry.author)
        elif isinstance(body, RoundDocument):
            self._rounds[body.round] = _Round(body)
        elif isinstance(body, Commitment) and body.round in self._rounds:
            claim = _Claim(entry.seq, body.stage, tuple(sorted(set(body.applied))))
            self._rounds[body.round].claims.setdefault(entry.author, claim)
        elif isinstance(body, SetClosed) and body.round in self._rounds:
            self._rounds[body.round].members = frozenset(body.members)
        elif isinstance(body, RoundClosed) and body.round in self._rounds:
            self._close(body)
        elif isinstance(body, Verdict) and body.outcome is Outcome.FAILED and entry.author in self._validators:
            self._vote(entry.author, body)

    def scores(self) -> Scores:
        """The scores after the entries so far."""
        voided = self._voided()
        rows: list[ScoreRow] = []
        paid: set[tuple[StageId, MicrobatchId]] = set()
        unclaimed = 0
        for number in sorted(self._rounds):
            if self._rounds[number].is_closed and self._is_in_window(number):
                settled, left = self._settle(number, voided, paid)
                rows += settled
                unclaimed += left
        points: Counter[Hotkey] = Counter()
        for row in rows:
            points[row.hotkey] += row.points
        ordered = {hotkey: points[hotkey] for hotkey in sorted(points)}
        return Scores(self._latest, ordered, tuple(rows), voided, unclaimed)

    def _is_in_window(self, number: RoundId) -> bool:
        return self._latest - number < self._run.pay.window_rounds

    def _close(self, body: RoundClosed) -> None:
        closed = self._rounds[body.round]
        closed.is_closed, closed.is_committed = True, body.committed
        self._latest = max(self._latest, body.round)
        self._rounds = {number: kept for number, kept in self._rounds.items() if self._is_in_window(number)}
        self._failures = {key: kept for key, kept in self._failures.items() if self._is_in_window(key[0])}
        self._votes = defaultdict(set, {key: kept for key, kept in self._votes.items() if self._is_in_window(key[0])})

    def _vote(self, validator: Hotkey, verdict: Verdict) -> None:
        """Confirmed by two validators, or by the only one there has been until now; it then stays confirmed."""
        key = (verdict.round, verdict.hotkey, verdict.segment)
        if not self._is_in_window(verdict.round):
            return
        self._votes[key].add(validator)
        if len(self._votes[key]) >= min(CONFIRMATIONS, len(self._validators)):
            self._failures.setdefault(key, Failure(verdict.round, verdict.segment, verdict.reason))

    def _voided(self) -> dict[Hotkey, Failure]:
        """The latest confirmed failure of each hotkey that has one in the window."""
        found: dict[Hotkey, Failure] = {}
        for (_, hotkey, _), failure in sorted(self._failures.items()):
            found[hotkey] = failure
        return found

    def _settle(
        self, number: RoundId, voided: dict[Hotkey, Failure], paid: set[tuple[StageId, MicrobatchId]]
    ) -> tuple[list[ScoreRow], int]:
        """Rows of one round, and the points of pools that nobody earns; adds to ``paid``."""
        done = self._rounds[number]
        earlier = frozenset(paid)
        accepted: dict[Hotkey, int] = {}
        unpaid: dict[Hotkey, Counter[str]] = {}
        for hotkey, claim in sorted(done.claims.items(), key=lambda item: (item[0] in voided, item[1].seq)):
            refusal = _refusal(done, hotkey, claim)
            accepted[hotkey], unpaid[hotkey] = 0, Counter()
            allowed = frozenset(done.document.microbatches())
            for microbatch in claim.applied:
                key = (claim.stage, microbatch)
                reason = refusal or _reason(key, allowed, earlier, paid)
                if reason is not None:
                    unpaid[hotkey][reason] += 1
                else:
                    accepted[hotkey] += 1
                    paid.add(key)
        return self._share(number, accepted, unpaid, voided)

    def _share(
        self,
        number: RoundId,
        accepted: dict[Hotkey, int],
        unpaid: dict[Hotkey, Counter[str]],
        voided: dict[Hotkey, Failure],
    ) -> tuple[list[ScoreRow], int]:
        """Cuts the round's work into equal pools and each pool by tokens."""
        claims = self._rounds[number].claims
        decay = decay_parts(self._latest - number, self._run.pay.half_life_rounds)
        in_stage: Counter[StageId] = Counter()
        for hotkey, count in accepted.items():
            in_stage[claims[hotkey].stage] += count
        tokens = self._run.microbatch_tokens
        work = sum(count * tokens * self._flops[stage] for stage, count in in_stage.items() if count)
        pool = work // len(self._flops)
        rows = []
        for hotkey in sorted(accepted):
            stage, count = claims[hotkey].stage, accepted[hotkey]
            flops = pool * count // in_stage[stage] if count else 0
            earned = flops * decay // DECAY_ONE
            reasons, is_voided = Counter(unpaid[hotkey]), hotkey in voided
            if is_voided and count:
                reasons[AUDIT_FAILED] += count
            rows.append(
                ScoreRow(
                    hotkey=hotkey,
                    round=number,
                    stage=stage,
                    num_paid=0 if is_voided else count,
                    num_tokens=0 if is_voided else count * tokens,
                    unpaid=tuple(sorted(reasons.items())),
                    flops=flops,
                    decay=decay,
                    points=0 if is_voided else earned,
                    burned=earned if is_voided else 0,
                )
            )
        empty = sum(1 for stage in range(len(self._flops)) if not in_stage[StageId(stage)])
        return rows, empty * pool * decay // DECAY_ONE


_COUNTED = frozenset(
    {
        LedgerKind.PEER_REGISTERED,
        LedgerKind.ROUND_OPENED,
        LedgerKind.COMMITTED,
        LedgerKind.SET_CLOSED,
        LedgerKind.ROUND_CLOSED,
        LedgerKind.VERDICT,
    }
)


def fold_scores(entries: Iterable[LedgerEntry], run: RunConfig, flops_per_token: Sequence[float]) -> Scores:
    """The scores after ``entries``, a whole prefix of the ledger in order.

    flops_per_token: forward and backward of one token at each stage, rounded to whole FLOPs.
    """
    book = ScoreBook(run, flops_per_token)
    for entry in entries:
        book.add(entry)
    return book.scores()


def decay_parts(age_rounds: int, half_life_rounds: float) -> int:
    """``0.5 ** (age / half_life)`` in parts of ``DECAY_ONE``.

    By decimal arithmetic, whose ``ln`` and ``exp`` are correctly rounded: a libm's ``pow`` differs by machine.
    """
    context = Context(prec=40, rounding=ROUND_HALF_EVEN)
    halvings = context.divide(Decimal(age_rounds), Decimal(half_life_rounds))
    exponent = context.multiply(context.ln(Decimal(2)), halvings)
    share = context.exp(context.minus(exponent))
    return int(context.to_integral_value(context.multiply(share, Decimal(DECAY_ONE))))


def _refusal(done: _Round, hotkey: Hotkey, claim: _Claim) -> str | None:
    """Why nothing of a claim counts."""
    if not done.is_committed:
        return NOT_COMMITTED
    if hotkey not in done.members:
        return NOT_IN_SET
    if not any(entry.hotkey == hotkey and entry.stage == claim.stage for entry in done.document.roster):
        return NOT_THIS_STAGE
    return None


def _reason(
    key: tuple[StageId, MicrobatchId],
    allowed: frozenset[MicrobatchId],
    earlier: frozenset[tuple[StageId, MicrobatchId]],
    paid: set[tuple[StageId, MicrobatchId]],
) -> str | None:
    """Why one microbatch of an otherwise good claim doesn't count."""
    if key[1] not in allowed:
        return NOT_IN_ROUND
    if key in earlier:
        return ALREADY_PAID
    return DUPLICATE if key in paid else None
