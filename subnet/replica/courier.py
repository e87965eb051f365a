"""Departures and statuses of one replica in one round: what goes to neighbours, and whether they still live.

Each departure and each answer is a task of its own, so that a slow peer holds up nobody else. Not here: bookkeeping
(``subnet.replica.custody``), computing and arrivals (``subnet.replica.pipeline``).
Invariants: busy is not failure: same candidates, a pause, no new attempt; a new attempt is made only when the holder is
gone or no longer lists the microbatch (design.md section 3, point 4); everything ends with the round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from subnet.codec.tensors import tensors_digest
from subnet.errors import OutOfTurn, Refused, Unavailable
from subnet.log import Event, event
from subnet.net.messages import Envelope, ForwardReply, NeighbourStatus, pack_body
from subnet.records import PROTOCOL, RosterEntry, RoundDocument, RoundEffort, decode
from subnet.replica.custody import Custody, Held, Life
from subnet.replica.site import Site
from subnet.swarm import router
from subnet.swarm.depth import PathGauge
from subnet.types import Hotkey, StageId

# First and longest pause before a busy or silent candidate is tried again.
FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 0.5
# A status must be answered within so many intervals; a busy machine is late by one now and then.
STATUS_TIMEOUT_INTERVALS = 2.0


@dataclass
class Traffic:
    """What one replica did since its program started. ``wire_bytes`` are bodies sent over boundaries, both ways.

    ``effort`` is that of the last round whose TRAINING has ended.
    """

    wire_bytes: int = 0
    wire_tokens: int = 0
    applied: int = 0
    resent: int = 0
    staleness_max: int = 0
    last_loss: float | None = None
    effort: RoundEffort | None = None
    paths: PathGauge = field(default_factory=PathGauge)


class Courier:
    """Sends for one replica in one round."""

    def __init__(
        self, site: Site, document: RoundDocument, mine: RosterEntry, custody: Custody, traffic: Traffic
    ) -> None:
        self._site = site
        self._document = document
        self._mine = mine
        self._custody = custody
        self._traffic = traffic
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_open = True
        self._on_answered: Callable[[], None] = lambda: None

    def when_answered(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` whenever upstream acknowledged a gradient."""
        self._on_answered = callback

    async def close(self) -> None:
        """Stop everything that is under way."""
        self._is_open = False
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def send_on(self, held: Held) -> None:
        """Bring a microbatch to the next stage."""
        self._spawn(self._deliver(held))

    def send_back(self, held: Held) -> None:
        """Bring a gradient to whoever sent the microbatch last."""
        self._spawn(self._give_back(held))

    def next_stage(self) -> list[RosterEntry]:
        """Replicas of the next stage."""
        return [entry for entry in self._document.roster if entry.stage == self._mine.stage + 1]

    def _envelope(self, held: Held, stage: int, attempt: int, tensors: Mapping[str, Tensor]) -> bytes:
        envelope = Envelope(
            protocol=PROTOCOL,
            run_hash=self._document.run_hash,
            round=self._document.round,
            microbatch=held.microbatch,
            attempt=attempt,
            stage=StageId(stage),
            version=held.version,
            path=(*held.path, self._site.hotkey),
            digest=tensors_digest(tensors),
        )
        return pack_body(envelope, tensors)

    async def _deliver(self, held: Held) -> None:
        """Send a microbatch to the next stage, attempt after attempt, until somebody accepts it."""
        assert held.outputs is not None
        pauses = _pauses()
        while self._is_open and held.life is Life.LEAVING:
            attempt, following = held.out_attempt, StageId(self._mine.stage + 1)
            share = self._site.run.round.single_candidate_share
            to = self._custody.choose(
                router.candidates(
                    self._document.seed, held.microbatch, following, attempt, self._document.roster, share
                )
            )
            body = self._envelope(held, following, attempt, {**held.outputs, "tokens": held.tokens})
            try:
                answer = await self._post(to, "/v1/forward", body)
            except Unavailable:
                self._custody.refused(to)
                held.out_attempt += 1
                self._traffic.resent += 1
            except OutOfTurn:
                pass  # the peer has not read the ledger up to this round yet; same candidates, no new attempt
            except Refused as error:
                event(Event.REQUEST_REFUSED, peer=to, code=error.code, microbatch=held.microbatch)
                held.out_attempt += 1
            else:
                verdict = decode(ForwardReply, answer)
                if verdict.accepted:
                    self._traffic.wire_bytes += len(body)
                    self._traffic.wire_tokens += self._site.run.microbatch_tokens
                    self._custody.sent(held.microbatch, to, verdict.queue, self._site.clock.now_s())
                    return
            await asyncio.sleep(next(pauses))

    async def _give_back(self, held: Held) -> None:
        """Return a gradient to whoever sent the microbatch last, until it is acknowledged or the round ends."""
        pauses = _pauses()
        grads, version = self._custody.returned[held.microbatch]
        assert grads is not None
        while held.life is Life.ANSWERED and held.microbatch in self._custody.held and held.upstream is not None:
            held.version = version
            body = self._envelope(held, self._mine.stage - 1, held.attempt, grads)
            try:
                await self._post(held.upstream, "/v1/backward", body)
            except Unavailable:
                await asyncio.sleep(next(pauses))
                continue
            except Refused as error:
                event(Event.REQUEST_REFUSED, peer=held.upstream, code=error.code, microbatch=held.microbatch)
            self._traffic.wire_bytes += len(body)
            self._custody.acknowledged(held.microbatch)
            self._on_answered()

    async def _post(self, to: Hotkey, path: str, body: bytes) -> bytes:
        timeout_s = self._site.run.custody.request_timeout_s
        return await self._site.peers.request(self._site.address_of(to), "POST", path, body, timeout_s=timeout_s)

    def status(self) -> NeighbourStatus:
        """What this replica holds."""
        return NeighbourStatus(
            round=self._document.round, held=self._custody.listed(), queue=self._custody.num_pending()
        )

    async def find_holders(self, waiting: list[Held]) -> None:
        """After a restart: whoever lists a microbatch has it already; only the others are sent on again."""
        await asyncio.gather(*(self._ask(entry.hotkey) for entry in self.next_stage()))
        for held in waiting:
            holder = next(
                (peer for peer, known in self._custody.neighbours.items() if held.microbatch in known.held), None
            )
            if holder is None:
                self.send_on(held)
            else:
                self._custody.sent(
                    held.microbatch, holder, self._custody.neighbours[holder].queue, self._site.clock.now_s()
                )

    async def watch(self) -> None:
        """Exchange statuses with the next stage and send on what was lost there, until cancelled."""
        interval_s = self._site.run.custody.status_interval_s
        while self._is_open:
            await asyncio.gather(*(self._ask(entry.hotkey) for entry in self.next_stage()))
            for held in self._custody.orphans():
                event(Event.MICROBATCH_RESENT, microbatch=held.microbatch, holder=held.downstream)
                self._traffic.resent += 1
                self._custody.resend(held)
                self.send_on(held)
            await asyncio.sleep(interval_s)

    async def _ask(self, peer: Hotkey) -> None:
        asked_at_s = self._site.clock.now_s()
        try:
            timeout_s = self._site.run.custody.status_interval_s * STATUS_TIMEOUT_INTERVALS
            answer = await self._site.peers.request(
                self._site.address_of(peer), "POST", "/v1/status", self.status().encoded(), timeout_s=timeout_s
            )
            status = decode(NeighbourStatus, answer)
        except (Unavailable, Refused):
            self._custody.missed(peer)
            return
        if status.round == self._document.round:
            self._custody.heard(peer, status.held, status.queue, self._site.clock.now_s(), asked_at_s)


def _pauses() -> Iterator[float]:
    """Pauses between tries, doubling from the first to the longest."""
    pause_s = FIRST_PAUSE_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
