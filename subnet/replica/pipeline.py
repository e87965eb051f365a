"""One replica's part in TRAINING: take microbatches, compute, pass them on, take gradients back.

The shell around ``subnet.replica.custody`` (bookkeeping), ``subnet.replica.courier`` (departures) and
``subnet.train.recorder`` (tensors and journal). One loop computes, forward and backward in turn (1F1B).
Invariants: nothing leaves before its journal entry is written; busy is not failure; in-flight depth is bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from subnet.clock import Stopwatch
from subnet.data.batches import tokens as microbatch_tokens
from subnet.data.batches import wire_tokens
from subnet.errors import Diverged, OutOfTurn, Refused
from subnet.log import Event, event
from subnet.model.flops import depth_that_fits
from subnet.net.base import Request, Response, reply
from subnet.net.messages import BackwardReply, Envelope, ForwardReply, NeighbourStatus, unpack_body
from subnet.records import PROTOCOL, LossItem, LossReport, RoundDocument, RoundEffort, decode
from subnet.replica.courier import Courier, Traffic
from subnet.replica.custody import Custody, Held, Life
from subnet.replica.site import Site
from subnet.swarm import router
from subnet.swarm.depth import Mean
from subnet.train.engine import BackwardResult, ForwardResult
from subnet.train.recorder import RecordedStage
from subnet.train.wire import WireFormat
from subnet.types import Hotkey

T = TypeVar("T")

# A replica of a later stage accepts this many times its even share of 1F1B's depth before it answers "busy"; one of the
# first stage never has more in flight, however long its links are.
PENDING_FACTOR = 4
MEMORY_SHARE = 0.5  # of the machine's memory for microbatches in flight; the rest is the system's and the merge's
# How long answers may still be acknowledged after TRAINING has ended.
GRACE_S = 1.0


class RoundPipeline:
    """TRAINING of one round at one replica."""

    def __init__(
        self, site: Site, document: RoundDocument, recorded: RecordedStage, traffic: Traffic, memory_bytes: int
    ) -> None:
        self.document = document
        self.traffic = traffic
        self._site = site
        self._recorded = recorded
        recorded.computing = Stopwatch(site.timer)
        self._mine = next(entry for entry in document.roster if entry.hotkey == site.hotkey)
        self._stage = self._mine.stage
        self._wire = WireFormat(site.run, self._stage)
        memory_bytes = int(MEMORY_SHARE * memory_bytes)
        self._most, recorded.engine.max_graphs = depth_that_fits(site.run, self._stage, memory_bytes, self._wanted())
        traffic.paths.begin_round()
        self._round_ids = frozenset(document.microbatches())
        self.custody = Custody(site.run.custody.missed_statuses, site.clock.now_s())
        self._courier = Courier(site, document, self._mine, self.custody, traffic)
        self._courier.when_answered(self._notice_answer)
        self.custody.watch(entry.hotkey for entry in self._courier.next_stage())
        share = router.shares(document).get(site.hotkey, ()) if self._stage == 0 else ()
        done = set(recorded.applied) | set(recorded.engine.pending)
        self._todo = [microbatch for microbatch in share if microbatch not in done]
        self._num_forwards = len(done)
        self._losses: list[LossItem] = []
        self._is_forwards_turn = False
        self._on_drained: Callable[[], None] = lambda: None
        self._work = asyncio.Event()
        self._closing = asyncio.Event()
        self._answered = asyncio.Event()
        self._diverged: Diverged | None = None

    # --- life of a round

    async def run(self) -> None:
        """Train until ``close``; raises ``Diverged`` when the loss or a gradient is not finite."""
        await self._restore()
        computing, watching = asyncio.create_task(self._compute_loop()), asyncio.create_task(self._courier.watch())
        try:
            await self._closing.wait()
            await self._grace()
        finally:
            self.close()
            watching.cancel()
            await self._courier.close()
            await asyncio.gather(watching, return_exceptions=True)
            await computing
        if self._diverged is not None:
            raise self._diverged

    def when_drained(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once a first-stage replica has finished its share."""
        self._on_drained = callback

    def close(self) -> None:
        """TRAINING is over: accept nothing more."""
        self._closing.set()
        self._work.set()

    @property
    def is_open(self) -> bool:
        """Whether microbatches are still taken."""
        return not self._closing.is_set()

    @property
    def is_drained(self) -> bool:
        """Whether a first-stage replica has nothing left to do."""
        return self._stage == 0 and not self._todo and not self.custody.num_pending()

    def losses(self) -> LossReport | None:
        """Losses computed and not yet forgotten."""
        return LossReport(round=self.document.round, items=tuple(self._losses)) if self._losses else None

    def forget_losses(self, report: LossReport) -> None:
        """``report`` has arrived."""
        self._losses = self._losses[len(report.items) :]

    def effort(self) -> RoundEffort:
        """What the round has taken so far."""
        return RoundEffort(
            round=self.document.round, busy_s=self._recorded.computing.total_s, num_forwards=self._num_forwards
        )

    async def _restore(self) -> None:
        """After a restart: what the journal left in flight is held again, and sent on unless a neighbour has it."""
        waiting: list[Held] = []
        for pending in self._recorded.pending():
            head = pending.head
            held = Held(head.microbatch, head.attempt, head.peer, (), pending.tokens, None, None)
            held.version, held.outputs = head.version, pending.outputs
            self.custody.accept(held)
            if pending.outputs is None:
                held.life = Life.RETURNING
            else:
                held.life = Life.LEAVING
                waiting.append(held)
        if waiting:
            await self._courier.find_holders(waiting)
        self._work.set()

    def _notice_answer(self) -> None:
        self._answered.set()
        self._work.set()

    async def _grace(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                while self.custody.unacknowledged():
                    self._answered.clear()
                    await self._answered.wait()

    # --- computing

    async def _compute_loop(self) -> None:
        while self.is_open:
            held = self._next()
            if held is None:
                self._work.clear()
                await self._work.wait()
                continue
            self._is_forwards_turn = held.life is Life.RETURNING
            try:
                if held.life is Life.RETURNING:
                    await self._backward(held)
                else:
                    await self._forward(held)
            except Diverged as error:
                event(Event.DIVERGED, round=self.document.round, stage=self._stage, microbatch=held.microbatch)
                self._diverged = error
                self.close()

    def _next(self) -> Held | None:
        """One backward, one forward, while both wait; else what there is, older before newer.

        A run of backwards after a disturbance would starve the stages behind, and the gap would come round again.
        """
        returning = self._oldest(Life.RETURNING)
        if returning is None or self._is_forwards_turn:
            queued = self._oldest(Life.QUEUED) or self._own()
            returning = queued or returning
        return returning

    def _oldest(self, life: Life) -> Held | None:
        return next((held for held in self.custody.held.values() if held.life is life), None)

    def _own(self) -> Held | None:
        """A new microbatch of this replica's share, within the depth."""
        if not self._todo or self.custody.num_pending() >= self._depth():
            return None
        microbatch = self._todo.pop(0)
        tokens = wire_tokens(
            microbatch_tokens(self._site.run, self._site.corpus, microbatch), self._site.run.model.vocab_size
        )
        own = Held(microbatch, 0, None, (), tokens, None, None)
        self.custody.accept(own)
        return own

    def _depth(self) -> int:
        """Microbatches in flight: as the run wants, or as few as cover the way to the last stage and back."""
        paths, num_stages = self.traffic.paths, self._site.run.stages.num_stages
        return min(self._site.run.round.in_flight or paths.depth(num_stages - 1, self._most), self._most)

    def _wanted(self) -> int:
        """More in flight than this is of no use, however long the links are and however much memory there is."""
        first = sum(entry.stage == 0 for entry in self.document.roster)
        here = sum(entry.stage == self._stage for entry in self.document.roster)
        depth = self._site.run.round.in_flight or self._site.run.stages.num_stages
        return PENDING_FACTOR * depth * -(-first // here)

    async def _forward(self, held: Held) -> None:
        recorded = self._recorded

        def work() -> tuple[ForwardResult, BackwardResult | None]:
            result = recorded.forward(
                held.microbatch,
                held.tokens,
                held.inputs,
                attempt=held.attempt,
                peer=held.upstream,
                auth=held.auth,
                envelope=held.envelope,
            )
            if result.outputs is not None:
                return result, None
            back = recorded.backward(held.microbatch, None)
            recorded.step_if_due()
            return result, back

        result, back = await self._timed(work, self.traffic.paths.forward)
        self._num_forwards += 1
        held.version, held.left_at_s = result.version, self._site.clock.now_s()
        if back is None:
            held.life, held.outputs = Life.LEAVING, result.outputs
            self._courier.send_on(held)
            return
        if result.loss is not None:
            self.traffic.last_loss = result.loss
            path = (*held.path, self._site.hotkey)
            self._losses.append(LossItem(microbatch=held.microbatch, loss=result.loss, path=path))
        self._answer(held, back)

    async def _backward(self, held: Held) -> None:
        recorded = self._recorded
        grads, peer, auth, envelope = held.grads, held.grads_from, held.grads_auth, held.grads_envelope

        def work() -> BackwardResult:
            result = recorded.backward(held.microbatch, grads, peer=peer, auth=auth, envelope=envelope)
            recorded.step_if_due()
            return result

        self._answer(held, await self._timed(work, self.traffic.paths.backward))

    async def _timed(self, work: Callable[[], T], mean: Mean) -> T:
        began_s = self._site.clock.now_s()
        result = await self._site.compute(work)
        mean.add(self._site.clock.now_s() - began_s)
        return result

    def _answer(self, held: Held, back: BackwardResult) -> None:
        self.traffic.applied += 1
        self.traffic.staleness_max = max(self.traffic.staleness_max, back.staleness)
        self.custody.answered(held.microbatch, back.grads, back.version)
        if self.is_drained:
            self._on_drained()
        if held.upstream is not None:
            self._courier.send_back(held)

    # --- arrivals

    async def on_forward(self, request: Request) -> Response:
        """``POST /v1/forward``: accepted, or busy with the queue's length."""
        envelope, tensors = unpack_body(request.body, self._wire.forward, max_bytes=self._wire.max_bytes)
        self._check(envelope, request.sender, from_stage=self._stage - 1)
        share = self._site.run.round.single_candidate_share
        allowed = router.candidates(
            self.document.seed, envelope.microbatch, self._stage, envelope.attempt, self.document.roster, share
        )
        if self._site.hotkey not in allowed:
            raise Refused("This replica is no candidate for that attempt.", remedy="Rank the roster as the seed says.")
        microbatch, custody = envelope.microbatch, self.custody
        is_known = microbatch in custody.held or microbatch in custody.returned
        if not is_known and custody.num_pending() >= self._most:
            return reply(ForwardReply(accepted=False, queue=custody.num_pending()))
        tokens = tensors.pop("tokens")
        held = Held(microbatch, envelope.attempt, request.sender, envelope.path, tokens, tensors, request.auth)
        held.envelope = envelope.encoded().decode()
        if microbatch in custody.returned:  # a second attempt is served the gradient that the first one earned
            held.life, held.inputs = Life.ANSWERED, None
        is_new = custody.accept(held)
        present = custody.held[microbatch]
        if present.life is Life.ANSWERED and (is_new or present.upstream == request.sender):
            self._courier.send_back(present)
        self._work.set()
        return reply(ForwardReply(accepted=True, queue=custody.num_pending()))

    async def on_backward(self, request: Request) -> Response:
        """``POST /v1/backward``: the gradient of a microbatch that this replica sent on."""
        envelope, tensors = unpack_body(request.body, self._wire.backward, max_bytes=self._wire.max_bytes)
        self._check(envelope, request.sender, from_stage=self._stage + 1)
        reason = self.custody.receive_grads(
            envelope.microbatch, tensors, request.sender, request.auth, envelope.encoded().decode()
        )
        held = self.custody.held.get(envelope.microbatch)
        if not reason and held is not None and held.left_at_s is not None and not held.out_attempt:
            self.traffic.paths.returned(self._site.clock.now_s() - held.left_at_s)
        self._work.set()
        return reply(BackwardReply(applied=not reason, reason=reason))

    async def on_status(self, request: Request) -> Response:
        """``POST /v1/status``: neighbours tell each other what they hold."""
        status = decode(NeighbourStatus, request.body)
        if status.round == self.document.round and self._serves(request.sender):
            self.custody.heard(request.sender, status.held, status.queue, self._site.clock.now_s())
        return reply(self._courier.status())

    def _check(self, envelope: Envelope, sender: Hotkey, *, from_stage: int) -> None:
        if envelope.protocol != PROTOCOL or envelope.run_hash != self.document.run_hash:
            raise Refused("Another run or protocol version.", remedy="Update, and join this run's orchestrator.")
        if envelope.round != self.document.round or not self.is_open:
            raise OutOfTurn(f"Round {self.document.round} is in progress here and {self._state()}.")
        if envelope.stage != self._stage or envelope.microbatch not in self._round_ids:
            raise Refused("Wrong stage, or a microbatch outside the round.")
        if not self._serves(sender, from_stage):
            raise Refused("The sender does not serve the neighbouring stage in this round.")

    def _serves(self, hotkey: Hotkey, stage: int | None = None) -> bool:
        return any(entry.hotkey == hotkey and stage in (None, entry.stage) for entry in self.document.roster)

    def _state(self) -> str:
        return "takes microbatches" if self.is_open else "takes no more microbatches"
