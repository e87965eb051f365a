"""Challenges: which segments of which replicas one validator replays after a round.

Not here: fetching and replaying them (``subnet.verify.replay``), whom to suspect (``subnet.verify.screen``).
Invariants: pure; nothing can be computed before the beacon is known, and the beacon is named in advance but drawn after
the commitment set has closed; a replica that commits in every round is challenged at least once in any
``window_rounds`` rounds by every validator, whoever else audits it; no round is safe for a cheater: the chance is never
below ``1 / window_rounds``, whenever the last challenge was; suspects are challenged in every round.
How: an urn per replica. With ``age`` rounds since its last challenge the chance is 1 / (window - age + 1), so the wait
between two challenges is uniform over 1..window and the load stays even without any slot that could be foreseen.
Source: design.md section 7.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from subnet.hashing import draw
from subnet.types import Digest, Hotkey, RoundId


@dataclass(frozen=True)
class Challenge:
    """One segment of one replica's journal of a round."""

    hotkey: Hotkey
    segment: int


def challenges(
    beacon: Digest,
    validator: Hotkey,
    round_: RoundId,
    members: Sequence[tuple[Hotkey, int]],
    window_rounds: int,
    last_audited: Mapping[Hotkey, RoundId],
    suspects: Collection[Hotkey] = (),
) -> tuple[Challenge, ...]:
    """What ``validator`` audits of ``round_``; suspects first, then those that wait longest.

    members: (hotkey, number of segments committed); a member without segments has nothing to replay and is left out.
    last_audited: round of this validator's last *challenge* of a replica (drawn, whether or not it is replayed yet).
    """
    doubted = frozenset(suspects)
    chosen: list[tuple[bool, int, Challenge]] = []
    for hotkey, num_segments in members:
        if num_segments < 1:
            continue
        age = _age(round_, window_rounds, last_audited.get(hotkey))
        urn = max(window_rounds - age + 1, 1)
        if hotkey in doubted or draw(beacon, "audit", validator, round_, hotkey) % urn == 0:
            segment = draw(beacon, "segment", validator, round_, hotkey) % num_segments
            chosen.append((hotkey not in doubted, -age, Challenge(hotkey, segment)))
    return tuple(item[2] for item in sorted(chosen, key=lambda item: (item[0], item[1], item[2].hotkey)))


def _age(round_: RoundId, window_rounds: int, last: RoundId | None) -> int:
    """Rounds waited, from 1.

    A replica that was never challenged counts as challenged before the present block of ``window_rounds`` rounds: so a
    joiner waits less than a window, and the first rounds of a run aren't crowded.
    """
    if last is None:
        return round_ % window_rounds + 1
    return max(round_ - last, 1)
