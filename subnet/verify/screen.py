"""The screen: cheap statistics over what replicas declared choose whom to audit in every round.

Not here: any punishment. A suspect is only challenged more often (``subnet.verify.challenge``); an honest outlier loses
nothing by it.
Invariants: pure; a stage is screened only among its own replicas, and only where there are enough of them for a median
absolute deviation to mean something.
Source: design.md section 7; median/MAD as in Hampel 1974, 1.4826 makes it a standard deviation.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from subnet.records import Commitment, LossItem
from subnet.swarm.view import RoundView
from subnet.types import Hotkey, StageId

MIN_REPLICAS = 4  # with three, the MAD is the distance between two of them and anybody can be the outlier
NUM_DEVIATIONS = 5.0  # a normal value is beyond it once in 1.7 million; spare audits are the only cost of being wrong
NORMAL_SCALE = 1.4826
MIN_RELATIVE_DEVIATION = 0.02  # honest replicas that agree to a hair don't make a suspect of one that is 1 % off


@dataclass(frozen=True)
class Suspect:
    """Who stands out, in which statistic, by how many deviations."""

    hotkey: Hotkey
    statistic: str
    deviations: float


def suspects(audited: RoundView) -> tuple[Hotkey, ...]:
    """Whom to challenge in a round whatever the draw says: the outliers of its closed set."""
    members = {hotkey: audited.commitments[hotkey] for hotkey in audited.members}
    return tuple(sorted({found.hotkey for found in outliers(members, audited.losses.values())}))


def outliers(commitments: Mapping[Hotkey, Commitment], losses: Iterable[LossItem] = ()) -> tuple[Suspect, ...]:
    """Outliers of one round, by hotkey.

    Statistics: L2 norm of the pseudo-gradient, inner steps, and the mean loss over the microbatches that passed through
    a replica; a value that isn't finite stands out at once.
    """
    found: list[Suspect] = []
    means = _mean_losses(losses)
    by_stage: dict[StageId, dict[Hotkey, Commitment]] = defaultdict(dict)
    for hotkey, commitment in commitments.items():
        by_stage[commitment.stage][hotkey] = commitment
    for stage in sorted(by_stage):
        peers = by_stage[stage]
        found += _outliers("norm", {hotkey: math.hypot(*item.shard_norms) for hotkey, item in peers.items()})
        found += _outliers("steps", {hotkey: float(item.num_steps) for hotkey, item in peers.items()})
        found += _outliers("loss", {hotkey: means[hotkey] for hotkey in peers if hotkey in means})
    return tuple(sorted(found, key=lambda item: (item.hotkey, item.statistic)))


def _mean_losses(losses: Iterable[LossItem]) -> dict[Hotkey, float]:
    values: dict[Hotkey, list[float]] = defaultdict(list)
    for item in losses:
        for hotkey in set(item.path):
            values[hotkey].append(item.loss)
    return {hotkey: math.fsum(found) / len(found) for hotkey, found in values.items()}


def _outliers(statistic: str, values: Mapping[Hotkey, float]) -> list[Suspect]:
    broken = [Suspect(hotkey, statistic, math.inf) for hotkey, value in values.items() if not math.isfinite(value)]
    finite = {hotkey: value for hotkey, value in values.items() if math.isfinite(value)}
    if len(finite) < MIN_REPLICAS:
        return broken
    centre = median(finite.values())
    spread = NORMAL_SCALE * median(abs(value - centre) for value in finite.values())
    scale = max(spread, MIN_RELATIVE_DEVIATION * abs(centre))
    if scale == 0.0:
        return broken + [Suspect(hotkey, statistic, math.inf) for hotkey, value in finite.items() if value != centre]
    away = {hotkey: abs(value - centre) / scale for hotkey, value in finite.items()}
    return broken + [Suspect(hotkey, statistic, far) for hotkey, far in away.items() if far > NUM_DEVIATIONS]
