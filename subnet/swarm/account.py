"""The account of a round: every microbatch ends in exactly one class.

Not here: pay (``incentives``), what a commitment must look like (``subnet.orchestrate.submissions``).
Invariants: the four classes are disjoint and cover the round's ids; an id is released only if no merged journal
contains it, so nothing is leased again after it was merged anywhere; ids outside the round are ignored.
Source: design.md section 3, point 5, and invariant 6.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from subnet.types import Hotkey, MicrobatchClass, MicrobatchId, StageId

Listed = tuple[tuple[MicrobatchId, tuple[StageId, ...]], ...]


@dataclass(frozen=True)
class Account:
    """Ids by class, in the order of the round's ids; partial lists the missing stages, duplicate the doubled ones."""

    complete: tuple[MicrobatchId, ...]
    partial: Listed
    duplicate: Listed
    released: tuple[MicrobatchId, ...]

    def class_of(self, microbatch: MicrobatchId) -> MicrobatchClass | None:
        """The class of an id; None for one outside the round."""
        if microbatch in self.complete:
            return MicrobatchClass.COMPLETE
        if microbatch in self.released:
            return MicrobatchClass.RELEASED
        if any(microbatch == listed for listed, _ in self.partial):
            return MicrobatchClass.PARTIAL
        if any(microbatch == listed for listed, _ in self.duplicate):
            return MicrobatchClass.DUPLICATE
        return None


def account(
    microbatches: Sequence[MicrobatchId],
    stage_members_applied: Mapping[StageId, Mapping[Hotkey, Collection[MicrobatchId]]],
    num_stages: int,
) -> Account:
    """Class every id from what each merged journal applied; one that lacks a stage is partial whatever else."""
    stages = [StageId(stage) for stage in range(num_stages)]
    counts: dict[StageId, Counter[MicrobatchId]] = {stage: Counter() for stage in stages}
    for stage in stages:
        for applied in stage_members_applied.get(stage, {}).values():
            counts[stage].update(set(applied))
    complete: list[MicrobatchId] = []
    partial: list[tuple[MicrobatchId, tuple[StageId, ...]]] = []
    duplicate: list[tuple[MicrobatchId, tuple[StageId, ...]]] = []
    released: list[MicrobatchId] = []
    for microbatch in microbatches:
        missing = tuple(stage for stage in stages if counts[stage][microbatch] == 0)
        doubled = tuple(stage for stage in stages if counts[stage][microbatch] > 1)
        if len(missing) == num_stages:
            released.append(microbatch)
        elif missing:
            partial.append((microbatch, missing))
        elif doubled:
            duplicate.append((microbatch, doubled))
        else:
            complete.append(microbatch)
    return Account(tuple(complete), tuple(partial), tuple(duplicate), tuple(released))
