"""A ledger written by hand: what the tests of scores, weights and statements share. Hash links aren't filled in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from subnet.config import RunConfig, parse_run_config
from subnet.hashing import EMPTY_ROOT
from subnet.records import (
    PROTOCOL,
    Commitment,
    LedgerEntry,
    LedgerKind,
    PeerRegistered,
    Record,
    RosterEntry,
    RoundClosed,
    RoundDocument,
    SetClosed,
    Verdict,
)
from subnet.types import Hotkey, MicrobatchId, Outcome, Role, RoundId, StageId

OWNER = Hotkey("owner")
FLOPS = (1000.0, 3000.0)  # per token of stage 0 and 1


def small_run(window_rounds: int = 4, half_life_rounds: float = 2.0) -> RunConfig:
    """Two stages, microbatches of 100 tokens."""
    return parse_run_config(
        {
            "model": {"seq_len": 50},
            "data": {"sequences": 2},
            "stages": {"num_stages": 2},
            "pay": {"window_rounds": window_rounds, "half_life_rounds": half_life_rounds},
        }
    )


def key(name: str) -> Hotkey:
    """A hotkey."""
    return Hotkey(name)


@dataclass
class Book:
    """Appends entries as an orchestrator would."""

    entries: list[LedgerEntry] = field(default_factory=list)

    def append(self, kind: LedgerKind, author: Hotkey, body: Record) -> None:
        """One entry."""
        seq = len(self.entries)
        self.entries.append(
            LedgerEntry(
                seq=seq,
                time_s=float(seq),
                kind=kind,
                author=author,
                body=body.plain(),
                auth=None,
                prev=EMPTY_ROOT,
                hash=EMPTY_ROOT,
            )
        )

    def register(self, name: str, role: Role) -> None:
        """A peer introduces itself."""
        body = PeerRegistered(
            run_hash=EMPTY_ROOT,
            role=role,
            url="http://peer.test:1",
            tokens_per_s=1.0,
            peak_flops_per_s=1.0,
            memory_bytes=1,
            device="cpu",
            corpus_hash=EMPTY_ROOT,
        )
        self.append(LedgerKind.PEER_REGISTERED, key(name), body)

    def open(self, number: int, stages: dict[str, int], first: int, count: int, released: Sequence[int] = ()) -> None:
        """A round opens with ``stages`` as its roster."""
        roster = [
            RosterEntry(hotkey=key(name), url="", stage=StageId(stage), capacity=1.0)
            for name, stage in sorted(stages.items())
        ]
        body = RoundDocument(
            protocol=PROTOCOL,
            run_hash=EMPTY_ROOT,
            round=RoundId(number),
            first_microbatch=MicrobatchId(first),
            num_microbatches=count,
            released=tuple(MicrobatchId(item) for item in released),
            roster=tuple(roster),
            seed=EMPTY_ROOT,
            params_roots=(EMPTY_ROOT, EMPTY_ROOT),
            training_deadline_s=0.0,
            signature="",
        )
        self.append(LedgerKind.ROUND_OPENED, OWNER, body)

    def commit(self, name: str, number: int, stage: int, applied: Sequence[int]) -> None:
        """A replica commits."""
        body = Commitment(
            round=RoundId(number),
            stage=StageId(stage),
            document=EMPTY_ROOT,
            journal_root=EMPTY_ROOT,
            num_entries=0,
            segments=(),
            start_params_root=EMPTY_ROOT,
            start_optim_root=EMPTY_ROOT,
            end_params_root=EMPTY_ROOT,
            end_optim_root=EMPTY_ROOT,
            shard_digests=(),
            shard_norms=(),
            num_tokens=0,
            num_steps=0,
            applied=tuple(MicrobatchId(item) for item in applied),
            unacknowledged=(),
        )
        self.append(LedgerKind.COMMITTED, key(name), body)

    def close(self, number: int, members: Sequence[str], *, committed: bool = True) -> None:
        """The set closes with ``members``, and the round."""
        names = tuple(key(name) for name in members)
        self.append(LedgerKind.SET_CLOSED, OWNER, SetClosed(round=RoundId(number), members=names, beacon_block=-1))
        body = RoundClosed(
            round=RoundId(number),
            committed=committed,
            reason="all-final",
            num_complete=0,
            partial=(),
            duplicate=(),
            released=(),
            params_roots=(),
            mean_loss=None,
        )
        self.append(LedgerKind.ROUND_CLOSED, OWNER, body)

    def verdict(self, author: str, number: int, name: str, *, passed: bool = False, segment: int = 0) -> None:
        """A validator's verdict."""
        body = Verdict(
            round=RoundId(number),
            hotkey=key(name),
            segment=segment,
            outcome=Outcome.PASSED if passed else Outcome.FAILED,
            reason="passed" if passed else "output-mismatch",
            error=0.0 if passed else 1.0,
            num_microbatches=1,
            cost_s=0.0,
            beacon=EMPTY_ROOT,
        )
        self.append(LedgerKind.VERDICT, key(author), body)

    def plain_round(self, number: int, stages: dict[str, int], applied: dict[str, Sequence[int]], count: int) -> None:
        """A whole round in which everybody in ``applied`` commits, in that order, and is merged."""
        self.open(number, stages, number * count, count)
        for name, ids in applied.items():
            self.commit(name, number, stages[name], ids)
        self.close(number, list(applied))
