"""Statements: what a miner is paid for, what it isn't paid for, and why.

Not here: any rule. A statement shows the rows of ``incentives.scores``; it decides nothing.
Invariants: the points of the rows add up to the hotkey's score exactly; every microbatch that a replica claimed in the
window is counted once, as paid or under one reason.
Source: design.md section 7.
"""

from __future__ import annotations

from dataclasses import dataclass

from incentives.scores import DECAY_ONE, Failure, ScoreRow, Scores
from subnet.types import Hotkey


@dataclass(frozen=True)
class Statement:
    """One hotkey's account, oldest round first. ``share`` is of all points, burned ones too: 0 to 1."""

    hotkey: Hotkey
    rows: tuple[ScoreRow, ...]
    points: int
    share: float
    failure: Failure | None

    def lines(self) -> tuple[str, ...]:
        """The statement for people, one round a line, the sum last."""
        found = [_line(row) for row in self.rows]
        if self.failure is not None:
            found.append(
                f"audit of round {self.failure.round}, segment {self.failure.segment} failed: {self.failure.reason}"
            )
        return (*found, f"score {self.points} = {100 * self.share:.2f} % of all work")


def statement(scores: Scores, hotkey: Hotkey) -> Statement:
    """The account of ``hotkey``; empty for one that did nothing in the window."""
    total = sum(row.points + row.burned for row in scores.rows) + scores.unclaimed
    points = scores.points.get(hotkey, 0)
    return Statement(
        hotkey=hotkey,
        rows=tuple(row for row in scores.rows if row.hotkey == hotkey),
        points=points,
        share=points / total if total else 0.0,
        failure=scores.voided.get(hotkey),
    )


def _line(row: ScoreRow) -> str:
    missed = "".join(f", {count} not paid ({reason})" for reason, count in row.unpaid)
    return (
        f"round {row.round} stage {row.stage}: {row.num_paid} microbatches, {row.num_tokens} tokens paid{missed}; "
        f"{row.flops} FLOPs x {row.decay / DECAY_ONE:.4f} = {row.points}"
    )
