"""RunView: what a prefix of the ledger means, as plain mutable data.

Orchestrator, miners, validators and the table each hold one and keep it up to date with ``subnet.swarm.ledger.fold``.
Not here: how entries change it (``ledger``), what should happen next (``rounds``), liveness (heartbeats are not in the
ledger).
Invariants: two views folded from equal entries compare equal; nothing here comes from anywhere but the ledger.
Between ``round.closed`` and the next ``round.opened`` there is no current round: that is FORMING.
Source: design.md sections 4 and 5.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from subnet.config import RunConfig
from subnet.errors import OutOfTurn
from subnet.hashing import EMPTY_ROOT
from subnet.records import (
    Commitment,
    EpochHead,
    LossItem,
    PeerRegistered,
    ReplicaReady,
    RosterEntry,
    RoundClosed,
    RoundDocument,
    RunStopped,
    ShardFinal,
    ShardPublished,
    Verdict,
)
from subnet.types import Digest, Hotkey, MicrobatchId, PeerState, Phase, RoundId, StageId

# Ways in which a shard became final that brought new parameters; in all others the old shard stays.
AGREED, SINGLE, KEPT, DISPUTED = "agreed", "single", "kept", "disputed"

# Closed rounds kept in full: twice the pay window of the presets, so that every score can be recomputed from a view.
RETAINED_ROUNDS = 32
# Durations kept per phase; enough for a stable median, few enough to follow a change of fleet.
RETAINED_DURATIONS = 16
NO_ROUND = RoundId(-1)  # "before round 0", as in ReplicaReady.round

NOBODY = Hotkey("")
FIRST_MICROBATCH = MicrobatchId(0)

ShardKey = tuple[StageId, int]


@dataclass
class PeerView:
    """One peer that ever registered. ``stage`` is None for validators and for miners not yet assigned."""

    registration: PeerRegistered
    stage: StageId | None
    state: PeerState
    registered_s: float


@dataclass(frozen=True)
class VerdictView:
    """A verdict with its author and place in the ledger."""

    author: Hotkey
    verdict: Verdict
    seq: int


@dataclass
class RoundView:
    """One round, open or closed. ``members`` and ``set_hash`` are set once the commitment set is closed.

    ``held``: miners that were here at any time while the round was open, on its roster or not.
    """

    document: RoundDocument
    seq: int
    opened_s: float
    phase: Phase
    reason: str
    phase_since_s: float
    deadline_s: float
    commitments: dict[Hotkey, Commitment] = field(default_factory=dict)
    commitment_seqs: dict[Hotkey, int] = field(default_factory=dict)
    members: tuple[Hotkey, ...] = ()
    set_hash: Digest | None = None
    beacon_block: int = -1
    losses: dict[MicrobatchId, LossItem] = field(default_factory=dict)  # the first report of each microbatch
    published: dict[ShardKey, dict[Hotkey, ShardPublished]] = field(default_factory=dict)
    finals: dict[ShardKey, ShardFinal] = field(default_factory=dict)
    closed: RoundClosed | None = None
    closed_s: float = 0.0  # when it was closed
    training_s: float = 0.0  # how long its TRAINING took
    held: set[Hotkey] = field(default_factory=set)

    @property
    def round(self) -> RoundId:
        """Number of the round."""
        return self.document.round

    def entry_of(self, hotkey: Hotkey) -> RosterEntry | None:
        """The roster's line of ``hotkey``, or None."""
        return next((entry for entry in self.document.roster if entry.hotkey == hotkey), None)

    def stage_roster(self, stage: StageId) -> tuple[Hotkey, ...]:
        """Hotkeys of the roster that serve ``stage``, in roster order."""
        return tuple(entry.hotkey for entry in self.document.roster if entry.stage == stage)

    def stage_members(self, stage: StageId) -> tuple[Hotkey, ...]:
        """Members of the closed commitment set that serve ``stage``, in roster order."""
        inside = set(self.members)
        return tuple(hotkey for hotkey in self.stage_roster(stage) if hotkey in inside)


@dataclass
class RunView:
    """The fold of a ledger prefix. Empty (``is_opened`` false) before ``run.opened``."""

    config: RunConfig | None = None
    run_hash: Digest = EMPTY_ROOT
    owner: Hotkey = NOBODY
    peers: dict[Hotkey, PeerView] = field(default_factory=dict)
    round: RoundView | None = None
    rounds: dict[RoundId, RoundView] = field(default_factory=dict)
    ready: dict[Hotkey, ReplicaReady] = field(default_factory=dict)  # for the last closed round only
    ready_s: dict[Hotkey, float] = field(default_factory=dict)
    closed: list[RoundClosed] = field(default_factory=list)
    released: tuple[MicrobatchId, ...] = ()
    next_microbatch: MicrobatchId = FIRST_MICROBATCH
    params_roots: tuple[Digest, ...] = ()  # agreed per stage; empty before the first round document
    last_finals: dict[ShardKey, ShardFinal] = field(default_factory=dict)  # the last that brought new parameters
    verdicts: list[VerdictView] = field(default_factory=list)
    epoch_heads: list[EpochHead] = field(default_factory=list)
    phase_durations_s: dict[Phase, list[float]] = field(default_factory=dict)
    forming_reason: str = ""
    forming_since_s: float = 0.0
    forming_deadline_s: float = 0.0
    stopped: RunStopped | None = None
    seq: int = -1
    head: Digest = EMPTY_ROOT
    time_s: float = 0.0

    @property
    def is_opened(self) -> bool:
        """Whether the ledger has opened a run."""
        return self.config is not None

    @property
    def run(self) -> RunConfig:
        """The run's configuration; raises ``OutOfTurn`` before ``run.opened``."""
        if self.config is None:
            raise OutOfTurn("The ledger has not opened a run yet.")
        return self.config

    @property
    def phase(self) -> Phase:
        """The present phase; FORMING between rounds."""
        return Phase.FORMING if self.round is None else self.round.phase

    @property
    def phase_reason(self) -> str:
        """Why the present phase was entered."""
        return self.forming_reason if self.round is None else self.round.reason

    @property
    def deadline_s(self) -> float:
        """When the present phase ends at the latest; nominal in FORMING, which also needs a replica per stage."""
        return self.forming_deadline_s if self.round is None else self.round.deadline_s

    @property
    def last_round(self) -> RoundId:
        """The round closed last; ``NO_ROUND`` before the first."""
        return self.closed[-1].round if self.closed else NO_ROUND

    def finals_of(self, stage: StageId) -> dict[int, ShardFinal]:
        """The last final event of each shard of ``stage`` that brought new parameters, by shard."""
        return {shard: final for (owner, shard), final in self.last_finals.items() if owner == stage}

    def round_view(self, round_id: RoundId) -> RoundView | None:
        """The current or a retained closed round."""
        if self.round is not None and self.round.round == round_id:
            return self.round
        return self.rounds.get(round_id)

    def committed_optim_root(self, hotkey: Hotkey) -> Digest | None:
        """Root of the inner optimiser that ``hotkey`` committed to in the last round that it was merged in."""
        for number in sorted(self.rounds, reverse=True):
            ended = self.rounds[number]
            if ended.closed is not None and ended.closed.committed and hotkey in ended.members:
                return ended.commitments[hotkey].end_optim_root
        return None
