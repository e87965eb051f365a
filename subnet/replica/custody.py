"""Custody: which microbatches this replica holds in a round, who gave them, who has them next, and what is late.

Pure bookkeeping (design.md section 3, points 3-5): no tensors are computed and no socket is opened here. The shell
around it is ``subnet.replica.pipeline``.
Invariants:
- a microbatch is held from its acceptance until its gradient was acknowledged upstream, so that a neighbour's status
  lists it all that time;
- a gradient that was returned is kept until the round ends and served again: a second attempt changes nothing;
- an attempt number only grows; a busy answer never raises it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from torch import Tensor

from subnet.records import AuthStamp
from subnet.types import Hotkey, MicrobatchId


class Life(Enum):
    """Where a held microbatch stands."""

    QUEUED = auto()  # accepted, its forward not computed yet
    LEAVING = auto()  # forward computed, no next holder has accepted it yet
    AWAY = auto()  # the next holder has it
    RETURNING = auto()  # its gradient came back, backward not computed yet
    ANSWERED = auto()  # backward computed, upstream has not acknowledged the gradient yet


@dataclass
class Held:
    """One microbatch in custody. Tensors are in the boundary's wire form."""

    microbatch: MicrobatchId
    attempt: int
    upstream: Hotkey | None  # None at the first stage
    path: tuple[Hotkey, ...]  # who computed it before, first stage first
    tokens: Tensor
    inputs: Mapping[str, Tensor] | None
    auth: AuthStamp | None
    envelope: str | None = None
    life: Life = Life.QUEUED
    outputs: Mapping[str, Tensor] | None = None
    version: int = 0
    out_attempt: int = 0
    downstream: Hotkey | None = None
    left_at_s: float | None = None  # when its forward was done here; None after a restart
    sent_at_s: float = 0.0
    grads: Mapping[str, Tensor] | None = None
    grads_from: Hotkey | None = None
    grads_auth: AuthStamp | None = None
    grads_envelope: str | None = None


@dataclass
class Neighbour:
    """What is known of one replica of the next or previous stage."""

    heard_at_s: float
    asked_at_s: float = 0.0  # when the last answered status was asked for
    missed: int = 0
    held: frozenset[MicrobatchId] = frozenset()
    queue: int = 0


@dataclass
class Custody:
    """All microbatches and neighbours of one replica in one round."""

    missed_statuses: int
    now_s: float
    neighbours: dict[Hotkey, Neighbour] = field(default_factory=dict)
    held: dict[MicrobatchId, Held] = field(default_factory=dict)
    returned: dict[MicrobatchId, tuple[Mapping[str, Tensor] | None, int]] = field(default_factory=dict)

    def watch(self, peers: Iterable[Hotkey]) -> None:
        """Begin to follow ``peers`` as neighbours; they count as heard at this moment."""
        for peer in peers:
            self.neighbours.setdefault(peer, Neighbour(heard_at_s=self.now_s))

    def accept(self, held: Held) -> bool:
        """Take ``held`` into custody; false when it is here already, then only the way back changes."""
        present = self.held.get(held.microbatch)
        if present is None:
            self.held[held.microbatch] = held
            return True
        if held.attempt >= present.attempt:
            present.attempt, present.upstream = held.attempt, held.upstream
        return False

    def heard(
        self, peer: Hotkey, held: Collection[MicrobatchId], queue: int, now_s: float, asked_at_s: float | None = None
    ) -> None:
        """A status of ``peer`` arrived. ``asked_at_s``: nothing in it is older than this instant."""
        known = self.neighbours.setdefault(peer, Neighbour(heard_at_s=now_s))
        known.heard_at_s, known.missed, known.queue = now_s, 0, queue
        known.held = frozenset(held)
        known.asked_at_s = asked_at_s if asked_at_s is not None else now_s

    def missed(self, peer: Hotkey) -> None:
        """``peer`` did not answer a status."""
        self.neighbours[peer].missed += 1

    def refused(self, peer: Hotkey) -> None:
        """``peer`` refuses connections: it counts as gone until it is heard again."""
        if peer in self.neighbours:
            self.neighbours[peer].missed = self.missed_statuses

    def is_gone(self, peer: Hotkey) -> bool:
        """Whether ``peer`` missed so many statuses that others take over."""
        known = self.neighbours.get(peer)
        return known is not None and known.missed >= self.missed_statuses

    def choose(self, candidates: Collection[Hotkey]) -> Hotkey:
        """The candidate to try: one that answers before one that does not, then the shorter queue."""
        order = {peer: place for place, peer in enumerate(candidates)}

        def load(peer: Hotkey) -> tuple[bool, int, int]:
            known = self.neighbours.get(peer)
            return (self.is_gone(peer), known.queue if known else 0, order[peer])

        return min(candidates, key=load)

    def sent(self, microbatch: MicrobatchId, to: Hotkey, queue: int, now_s: float) -> None:
        """``to`` accepted the microbatch."""
        held = self.held.get(microbatch)
        if held is not None and held.life in (Life.LEAVING, Life.AWAY):
            held.life, held.downstream, held.sent_at_s = Life.AWAY, to, now_s
        if to in self.neighbours:
            self.neighbours[to].queue = queue

    def orphans(self) -> list[Held]:
        """Microbatches that went on to a holder that is gone, or that no longer lists them: to be sent again."""
        lost = []
        for held in self.held.values():
            if held.life is not Life.AWAY or held.downstream is None:
                continue
            holder = self.neighbours[held.downstream]
            forgot = holder.asked_at_s > held.sent_at_s and held.microbatch not in holder.held
            if forgot or self.is_gone(held.downstream):
                lost.append(held)
        return lost

    def resend(self, held: Held) -> None:
        """Prepare ``held`` for its next attempt."""
        held.life, held.downstream, held.out_attempt = Life.LEAVING, None, held.out_attempt + 1

    def receive_grads(
        self,
        microbatch: MicrobatchId,
        grads: Mapping[str, Tensor],
        sender: Hotkey,
        auth: AuthStamp | None,
        envelope: str,
    ) -> str:
        """A gradient arrived; returns "" when it is to be applied, else why it is not."""
        held = self.held.get(microbatch)
        if held is None:
            return "duplicate" if microbatch in self.returned else "unknown"
        if held.life in (Life.RETURNING, Life.ANSWERED):
            return "duplicate"
        if held.life is Life.QUEUED:
            return "unknown"
        held.life, held.grads = Life.RETURNING, grads
        held.grads_from, held.grads_auth, held.grads_envelope = sender, auth, envelope
        return ""

    def answered(self, microbatch: MicrobatchId, grads: Mapping[str, Tensor] | None, version: int) -> None:
        """Backward was computed; ``grads`` are what upstream is owed (None at the first stage)."""
        held = self.held[microbatch]
        self.returned[microbatch] = (grads, version)
        held.life = Life.ANSWERED
        held.grads = held.outputs = held.inputs = None
        if held.upstream is None:
            del self.held[microbatch]

    def acknowledged(self, microbatch: MicrobatchId) -> None:
        """Upstream has the gradient: custody ends."""
        held = self.held.get(microbatch)
        if held is not None and held.life is Life.ANSWERED:
            del self.held[microbatch]

    def unacknowledged(self) -> tuple[MicrobatchId, ...]:
        """Microbatches applied here whose gradient upstream never acknowledged."""
        return tuple(sorted(mb for mb, held in self.held.items() if held.life is Life.ANSWERED))

    def listed(self) -> tuple[MicrobatchId, ...]:
        """What this replica tells its neighbours that it holds."""
        return tuple(sorted(self.held))

    def num_pending(self) -> int:
        """Microbatches that hold memory here: everything not yet answered."""
        return sum(held.life is not Life.ANSWERED for held in self.held.values())
