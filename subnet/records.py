"""Records: everything that is signed, published, stored in the ledger or sent as JSON between peers.

Frozen, strict (an unknown field or a wrong type is refused), and serialised as canonical JSON, so that a record's bytes
are the same on every machine. Not here: the decisions made from them (``subnet.swarm``), HTTP replies that nobody
stores (``subnet.net.messages``).
Invariants: ``decode(T, record.encoded()) == record``; a change of a field is a change of ``PROTOCOL``.
"""

from __future__ import annotations

import json
import re
from enum import StrEnum
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from subnet.errors import Malformed
from subnet.hashing import canonical_json, digest_of
from subnet.types import Digest, Hotkey, MicrobatchId, Outcome, PeerState, Phase, Role, RoundId, StageId

PROTOCOL = 2  # version of every message and record; peers of another version are refused

HEAD_PREFIX = f"liquid/{PROTOCOL}:"
HEAD_FORM = re.compile(re.escape(HEAD_PREFIX) + r"([0-9]{1,12}):([0-9a-f]{64})")

R = TypeVar("R", bound="Record")


class Record(BaseModel):
    """Base of all records."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def plain(self) -> dict[str, Any]:
        """The record as plain JSON types."""
        return self.model_dump(mode="json")

    def encoded(self) -> bytes:
        """Canonical JSON."""
        return canonical_json(self.plain())

    def record_digest(self) -> Digest:
        """Digest of the canonical JSON."""
        return digest_of(self.plain())

    @classmethod
    def from_plain(cls, value: dict[str, Any]) -> Self:
        """The record again, from ``plain()``; raises ``Malformed``."""
        return decode(cls, canonical_json(value))


def _place(item: ErrorDetails) -> str:
    """Where a value is wrong, in our own words: a stranger's field names are never echoed."""
    if item["type"] == "extra_forbidden":
        return "unknown field"
    return ".".join(str(part) for part in item["loc"]) or "body"


def decode(kind: type[R], body: bytes) -> R:
    """A record from a peer's bytes; raises ``Malformed`` naming the fields that are wrong, not their values."""
    try:
        return kind.model_validate_json(body, strict=True)
    except ValidationError as error:
        fields = sorted({_place(item) for item in error.errors()})
        reasons = sorted({item["type"] for item in error.errors()})
        raise Malformed(f"{kind.__name__} is not valid at {', '.join(fields)[:200]} ({', '.join(reasons)}).") from None


class LedgerKind(StrEnum):
    """What a ledger entry says; the record type of its body stands beside it."""

    RUN_OPENED = "run.opened"  # RunOpened
    PEER_REGISTERED = "peer.registered"  # PeerRegistered, by the peer
    PEER_CHANGED = "peer.changed"  # PeerChanged
    ROUND_OPENED = "round.opened"  # RoundDocument
    PHASE_CHANGED = "phase.changed"  # PhaseChanged
    REPORTED = "losses.reported"  # LossReport, by a last-stage replica
    COMMITTED = "round.committed"  # Commitment, by a replica
    SET_CLOSED = "set.closed"  # SetClosed
    SHARD_PUBLISHED = "shard.published"  # ShardPublished, by a shard's owner
    SHARD_FINAL = "shard.final"  # ShardFinal
    READY = "replica.ready"  # ReplicaReady, by a replica
    ROUND_CLOSED = "round.closed"  # RoundClosed
    VERDICT = "audit.verdict"  # Verdict, by a validator
    EPOCH_HEAD = "epoch.head"  # EpochHead
    RUN_STOPPED = "run.stopped"  # RunStopped


class AuthStamp(Record):
    """What of a signed request must be kept to prove later who sent it."""

    nonce: str
    signature: str
    method: str
    path: str
    receiver: Hotkey


class LedgerEntry(Record):
    """One link of the ledger. ``hash`` covers all other fields, ``prev`` is the hash before."""

    seq: int
    time_s: float
    kind: LedgerKind
    author: Hotkey
    body: dict[str, Any]
    auth: AuthStamp | None
    prev: Digest
    hash: Digest


class RunOpened(Record):
    """The run's configuration as agreed; later entries refer to ``run_hash``."""

    run: dict[str, Any]
    run_hash: Digest
    owner: Hotkey


class PeerRegistered(Record):
    """A peer introduces itself. ``tokens_per_s`` is its own measurement of a whole-model microbatch,
    ``peak_flops_per_s`` that of its fastest matrix product in the precision of training (validators: 0)."""

    run_hash: Digest
    role: Role
    url: str
    tokens_per_s: float
    peak_flops_per_s: float
    memory_bytes: int
    device: str
    corpus_hash: Digest


class PeerChanged(Record):
    """A miner's state or stage changes."""

    hotkey: Hotkey
    stage: StageId | None
    state: PeerState
    reason: str


class RosterEntry(Record):
    """One replica in a round. ``capacity`` is in tokens per second."""

    hotkey: Hotkey
    url: str
    stage: StageId
    capacity: float


class RoundDocument(Record):
    """Everything both ends must compute alike in one round. ``released`` ids are leased a second time.

    ``params_roots`` holds the agreed start parameters' root of every stage. ``signature`` is the owner's, over
    ``signed_bytes()``.
    """

    protocol: int
    run_hash: Digest
    round: RoundId
    first_microbatch: MicrobatchId
    num_microbatches: int
    released: tuple[MicrobatchId, ...]
    roster: tuple[RosterEntry, ...]
    seed: Digest
    params_roots: tuple[Digest, ...]
    training_deadline_s: float
    signature: str

    def microbatches(self) -> tuple[MicrobatchId, ...]:
        """All ids of the round: the re-leased ones first, then the new range."""
        new = range(self.first_microbatch, self.first_microbatch + self.num_microbatches)
        return (*self.released, *(MicrobatchId(number) for number in new))

    def signed_bytes(self) -> bytes:
        """The canonical JSON that the owner signs: the document without its signature."""
        return canonical_json({name: value for name, value in self.plain().items() if name != "signature"})


class PhaseChanged(Record):
    """The round enters ``phase``; ``deadline_s`` (Unix seconds) is when it ends at the latest."""

    round: RoundId
    phase: Phase
    reason: str
    deadline_s: float


class LossItem(Record):
    """Loss of one microbatch (mean nats per token) and who computed it, first stage first."""

    microbatch: MicrobatchId
    loss: float
    path: tuple[Hotkey, ...]


class LossReport(Record):
    """Losses that a last-stage replica computed since its last report."""

    round: RoundId
    items: tuple[LossItem, ...]


class RoundEffort(Record):
    """What a round took a replica, by its own account; goes with its heartbeats, never into the ledger.

    ``busy_s``: seconds of its tensor thread in forward, backward and step. ``num_forwards``: microbatches that it
    computed forward, whatever became of them. Work of a program that died is in neither, nor is its replay.
    """

    round: RoundId
    busy_s: float
    num_forwards: int


class SegmentRoots(Record):
    """A segment of a journal: entries ``[first_entry, end_entry)`` between two state roots."""

    first_entry: int
    end_entry: int
    start_root: Digest
    end_root: Digest


class Commitment(Record):
    """What a replica did in a round, before anybody may look at it.

    ``applied`` are the microbatches in its pseudo-gradient (ascending), ``unacknowledged`` those whose gradient its
    upstream never acknowledged. ``start_params_root``/``start_optim_root`` and their end twins are the parts of the
    state roots at the round's edges. ``shard_digests`` are Merkle roots over 64 KiB leaves of fp32 little-endian
    pseudo-gradient shards, ``shard_norms`` their L2 norms.
    """

    round: RoundId
    stage: StageId
    document: Digest
    journal_root: Digest
    num_entries: int
    segments: tuple[SegmentRoots, ...]
    start_params_root: Digest
    start_optim_root: Digest
    end_params_root: Digest
    end_optim_root: Digest
    shard_digests: tuple[Digest, ...]
    shard_norms: tuple[float, ...]
    num_tokens: int
    num_steps: int
    applied: tuple[MicrobatchId, ...]
    unacknowledged: tuple[MicrobatchId, ...]


class SetClosed(Record):
    """The commitment set of a round is closed. Its ledger hash draws the shard owners.

    ``beacon_block`` names the chain block whose hash draws the challenges; -1 without a chain: the ledger hash does.
    """

    round: RoundId
    members: tuple[Hotkey, ...]
    beacon_block: int


class ShardPublished(Record):
    """An owner's result for one shard: digests of the new parameters and of the outer momentum."""

    round: RoundId
    stage: StageId
    shard: int
    params_digest: Digest
    momentum_digest: Digest


class ShardFinal(Record):
    """The shard that everybody uses. ``basis``: agreed, single, kept (the old one stays) or disputed (same)."""

    round: RoundId
    stage: StageId
    shard: int
    params_digest: Digest
    momentum_digest: Digest
    owners: tuple[Hotkey, ...]
    basis: str


class ReplicaReady(Record):
    """A replica holds the merged parameters of ``round`` (-1: the initial ones) and its inner optimiser's state."""

    round: RoundId
    stage: StageId
    params_root: Digest
    optim_root: Digest


class RoundClosed(Record):
    """The account of a round. Lists hold every id that is not complete, with the stages concerned."""

    round: RoundId
    committed: bool
    reason: str
    num_complete: int
    partial: tuple[tuple[MicrobatchId, tuple[StageId, ...]], ...]
    duplicate: tuple[tuple[MicrobatchId, tuple[StageId, ...]], ...]
    released: tuple[MicrobatchId, ...]
    params_roots: tuple[Digest, ...]
    mean_loss: float | None


class Verdict(Record):
    """One audit of one segment. ``error`` is the largest relative L2 error over tensors; 0 is bit-exact."""

    round: RoundId
    hotkey: Hotkey
    segment: int
    outcome: Outcome
    reason: str
    error: float
    num_microbatches: int
    cost_s: float
    beacon: Digest


class EpochHead(Record):
    """The ledger prefix ``[0, seq]`` from which the weights of a chain epoch are computed."""

    block: int
    seq: int
    head: Digest

    def on_chain(self) -> str:
        """The text that the owner commits on chain (at most 128 bytes)."""
        return f"{HEAD_PREFIX}{self.seq}:{self.head}"


def parse_head(text: str) -> tuple[int, Digest] | None:
    """Sequence number and hash from a commitment on chain; None if it is no ledger head of ours."""
    match = HEAD_FORM.fullmatch(text)
    return (int(match[1]), Digest(match[2])) if match else None


class RunStopped(Record):
    """The run ends, or pauses for as long as nobody opens it again."""

    reason: str


BODIES: dict[LedgerKind, type[Record]] = {
    LedgerKind.RUN_OPENED: RunOpened,
    LedgerKind.PEER_REGISTERED: PeerRegistered,
    LedgerKind.PEER_CHANGED: PeerChanged,
    LedgerKind.ROUND_OPENED: RoundDocument,
    LedgerKind.PHASE_CHANGED: PhaseChanged,
    LedgerKind.REPORTED: LossReport,
    LedgerKind.COMMITTED: Commitment,
    LedgerKind.SET_CLOSED: SetClosed,
    LedgerKind.SHARD_PUBLISHED: ShardPublished,
    LedgerKind.SHARD_FINAL: ShardFinal,
    LedgerKind.READY: ReplicaReady,
    LedgerKind.ROUND_CLOSED: RoundClosed,
    LedgerKind.VERDICT: Verdict,
    LedgerKind.EPOCH_HEAD: EpochHead,
    LedgerKind.RUN_STOPPED: RunStopped,
}


def body_of(entry: LedgerEntry) -> Record:
    """The typed body of an entry; raises ``Malformed``."""
    return BODIES[entry.kind].from_plain(entry.body)


def parse_lines(data: bytes) -> list[LedgerEntry]:
    """Ledger entries from JSON lines, as ``GET /v1/ledger`` sends them; raises ``Malformed``."""
    return [decode(LedgerEntry, line) for line in data.splitlines() if line]


def to_lines(entries: list[LedgerEntry]) -> bytes:
    """Ledger entries as JSON lines."""
    return b"".join(json.dumps(entry.plain(), sort_keys=True).encode() + b"\n" for entry in entries)
