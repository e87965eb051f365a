"""How many microbatches a first-stage replica keeps in flight, so that links are covered and nothing more.

1F1B keeps one microbatch per stage in flight, which covers compute only: with links, every stage waits for the round
trip over its hop once per microbatch. The depth here is the smallest of the form that hides it,
``1 + stages_after * ceil(1 + link time / compute time)``, the first microbatch being the one that is computed here.
Not here: sending (``subnet.replica.courier``), memory (``subnet.model.flops``).
Invariants: without a link's time the depth is that of 1F1B; more in flight never makes the measured link longer by
itself, because a round's first microbatches travel through an empty pipeline and the shortest round trip counts.
Source: design.md section 3, point 6; algorithms.md section 8.6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

# Share of a microbatch's compute that a hop may take unhidden: even 2 % cost eight stages a tenth (the simulation in
# tests/unit/test_swarm_depth.py).
FREE_LINK_SHARE = 0.01


def in_flight_depth(stages_after: int, link_s: float, compute_s: float, most: int) -> int:
    """Microbatches in flight per first-stage replica, between 1 and ``most``.

    link_s: what one hop takes there and back. compute_s: forward and backward of one microbatch at one stage, 0 when
    that is unknown.
    """
    link_share = link_s / compute_s if compute_s > 0 else 0.0
    factor = 1 + math.ceil(max(0.0, link_share - FREE_LINK_SHARE))
    return max(1, min(1 + stages_after * factor, most))


@dataclass
class Mean:
    """Of a quantity that was seen ``count`` times."""

    total: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        """One more."""
        self.total, self.count = self.total + value, self.count + 1

    def value(self) -> float:
        """The mean; 0 before the first."""
        return self.total / self.count if self.count else 0.0


@dataclass
class PathGauge:
    """What one first-stage replica has seen of compute here and of round trips; it outlives a round.

    The shortest round trip is that of this round and the one before, so that a link that became slower is noticed.
    """

    forward: Mean = field(default_factory=Mean)
    backward: Mean = field(default_factory=Mean)
    shortest_s: float = math.inf
    shortest_before_s: float = math.inf

    def begin_round(self) -> None:
        """Older round trips count no more."""
        self.shortest_before_s, self.shortest_s = self.shortest_s, math.inf

    def returned(self, seconds: float) -> None:
        """A gradient came back ``seconds`` after its microbatch had left."""
        self.shortest_s = min(self.shortest_s, seconds)

    def compute_s(self) -> float:
        """Forward and backward of one microbatch here, on average; 0 before the first of both."""
        return self.forward.value() + self.backward.value() if self.backward.count else 0.0

    def link_s(self, stages_after: int) -> float:
        """What one hop takes there and back, if the stages after this one compute as fast as this one."""
        shortest_s = min(self.shortest_s, self.shortest_before_s)
        if stages_after == 0 or math.isinf(shortest_s):
            return 0.0
        return max(0.0, shortest_s / stages_after - self.compute_s())

    def depth(self, stages_after: int, most: int) -> int:
        """Microbatches to keep in flight."""
        return in_flight_depth(stages_after, self.link_s(stages_after), self.compute_s(), most)
