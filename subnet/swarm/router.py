"""Who gets a microbatch next: computed alike at both ends of every hop.

A weighted rendezvous hash ranks the replicas of a stage for each microbatch: first place is taken in proportion to
capacity, and a replica that joins or leaves moves only the microbatches that it gains or loses.
Not here: load, liveness and retries (``subnet.replica.custody`` picks among the candidates).
Invariants: the order of the roster does not matter for a ranking; ``shares`` gives every id of the round to exactly one
first-stage replica; shares and quotas differ from exact proportion by less than one microbatch.
Source: weighted rendezvous hashing, key -ln(u)/w (Schindelhauer and Schomaker 2005, "Weighted Distributed Hash
Tables", logarithmic method); design.md section 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from subnet.config import RunConfig
from subnet.hashing import draw
from subnet.records import RosterEntry, RoundDocument
from subnet.types import Digest, Hotkey, MicrobatchId, StageId

_DRAW_RANGE = 2**64  # hashing.draw is uniform over this many integers


def ranking(
    seed: Digest, microbatch: MicrobatchId, stage: StageId, roster: Sequence[RosterEntry]
) -> tuple[Hotkey, ...]:
    """Replicas of ``stage``, best first, for ``microbatch``."""
    keyed = []
    for entry in roster:
        if entry.stage == stage:
            uniform = (draw(seed, "route", microbatch, stage, entry.hotkey) + 0.5) / _DRAW_RANGE
            keyed.append((-math.log(min(uniform, 1 - 2**-53)) / entry.capacity, entry.hotkey))
    return tuple(hotkey for _, hotkey in sorted(keyed))


def has_single_candidate(seed: Digest, microbatch: MicrobatchId, stage: StageId, single_share: float) -> bool:
    """Whether the hop into ``stage`` leaves no choice: fixed by hash for a share of all hops."""
    return draw(seed, "single", microbatch, stage) < single_share * _DRAW_RANGE


def candidates(
    seed: Digest,
    microbatch: MicrobatchId,
    stage: StageId,
    attempt: int,
    roster: Sequence[RosterEntry],
    single_share: float,
) -> tuple[Hotkey, ...]:
    """Who may take ``microbatch`` at ``stage`` in this attempt, the preferred one first; empty for an empty stage.

    Attempt a may use ranks 2a and 2a+1 (modulo the number of replicas); a hop with one candidate uses rank a, so that
    its attempts, too, come round to every replica.
    """
    ranked = ranking(seed, microbatch, stage, roster)
    if not ranked:
        return ()
    if has_single_candidate(seed, microbatch, stage, single_share):
        return (ranked[attempt % len(ranked)],)
    first, second = 2 * attempt % len(ranked), (2 * attempt + 1) % len(ranked)
    return (ranked[first],) if first == second else (ranked[first], ranked[second])


def quotas(num: int, capacities: Sequence[float]) -> list[int]:
    """``num`` cut into whole parts proportional to ``capacities``: largest remainders, ties to the earlier one."""
    total = math.fsum(capacities)
    exact = [num * capacity / total for capacity in capacities]
    whole = [math.floor(value) for value in exact]
    by_remainder = sorted(range(len(exact)), key=lambda place: (whole[place] - exact[place], place))
    for place in by_remainder[: num - sum(whole)]:
        whole[place] += 1
    return whole


def shares(document: RoundDocument) -> dict[Hotkey, tuple[MicrobatchId, ...]]:
    """Which microbatches each first-stage replica starts, in the order in which it starts them.

    Interleaved: every prefix of the round's ids is spread in proportion too, so that a round cut short stays even.
    """
    first = sorted((entry for entry in document.roster if entry.stage == 0), key=lambda entry: entry.hotkey)
    if not first:
        return {}
    microbatches = document.microbatches()
    quota = quotas(len(microbatches), [entry.capacity for entry in first])
    given: list[list[MicrobatchId]] = [[] for _ in first]
    for position, microbatch in enumerate(microbatches, 1):
        open_places = [place for place in range(len(first)) if len(given[place]) < quota[place]]
        furthest_behind = max(
            open_places, key=lambda place: (quota[place] * position - len(given[place]) * len(microbatches), -place)
        )
        given[furthest_behind].append(microbatch)
    return {entry.hotkey: tuple(ids) for entry, ids in zip(first, given, strict=True)}


def expected_tokens(document: RoundDocument, run: RunConfig, hotkey: Hotkey) -> float:
    """Predicted tokens of the round times the share of ``hotkey`` in its stage's capacity; 0 for a stranger."""
    mine = next((entry for entry in document.roster if entry.hotkey == hotkey), None)
    if mine is None:
        return 0.0
    total = math.fsum(entry.capacity for entry in document.roster if entry.stage == mine.stage)
    return len(document.microbatches()) * run.microbatch_tokens * mine.capacity / total
