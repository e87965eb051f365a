"""A miner's life: join, synchronise, train round after round, commit, merge, serve what others may ask for.

The ledger drives it: every transition is a condition on the folded view, never a message that could be missed
(design.md sections 4 and 5). Not here: wiring of keys, chain and sockets (``neurons.miner``).
Invariants: a restart within a round resumes from snapshot and journal; a replica enters a round only with parameters
whose root the ledger names and with an inner-optimiser state that it committed itself, or a fresh one.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from subnet.errors import Diverged, Forbidden, JournalCorrupt, LiquidError, Missing, OutOfTurn, Refused, Unavailable
from subnet.log import Event, event
from subnet.net.auth import verify_signature
from subnet.net.base import Request, Response
from subnet.net.follower import LedgerFollower
from subnet.net.messages import Heartbeat
from subnet.records import PeerRegistered, Record, ReplicaReady, RoundDocument
from subnet.replica.courier import Traffic
from subnet.replica.merging import Merger
from subnet.replica.pipeline import RoundPipeline
from subnet.replica.serving import Shelf
from subnet.replica.site import Site
from subnet.swarm.view import RoundView, RunView
from subnet.train.checkpoint import load_state, save_state
from subnet.train.engine import StageEngine
from subnet.train.plan import step_plan
from subnet.train.recorder import FinishedRound, RecordedStage
from subnet.train.state import StageState
from subnet.types import MicrobatchId, Phase, RoundId, StageId

GOODBYE_S = 1.5  # an orchestrator that stops at the same time must not hold a miner up
RETRY_S = 0.5  # pause before a request to an orchestrator that is away is made again
EDGE = "edge.safetensors"  # state at the last round edge, inside the data folder


@dataclass(frozen=True)
class Seat:
    """The stage that a miner was assigned, and what it takes to serve it."""

    stage: StageId
    engine: StageEngine
    merger: Merger


class Replica:
    """One miner in one run. The classes that it is made of can be replaced (``subnet.simulate.cheats``)."""

    engine_class: ClassVar[type[StageEngine]] = StageEngine
    recorded_class: ClassVar[type[RecordedStage]] = RecordedStage
    merger_class: ClassVar[type[Merger]] = Merger

    def __init__(self, site: Site, registration: PeerRegistered, follower: LedgerFollower) -> None:
        self.follower = follower
        self.traffic = Traffic()
        self.shelf = Shelf(site, follower)
        self._site = site
        self._registration = registration
        self._taken: Seat | None = None
        self._edge: StageState | None = None  # state at the last round edge; parameters as merged
        self._pipeline: RoundPipeline | None = None
        self._drained = asyncio.Event()  # the share of a round has just been finished
        self._round_done = RoundId(-1)  # last round that was played or given up
        self._unacknowledged: tuple[MicrobatchId, ...] = ()
        self._phase = Phase.FORMING

    # --- running

    async def run(self) -> None:
        """Serve the run until it stops; raises ``LedgerCorrupt`` on a fork. Cancel to leave."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.follower.run())]
            await self._join()
            tasks.append(group.create_task(self._heartbeats()))
            await self._play()
            for task in tasks:
                task.cancel()
        await self.beat()  # what no heartbeat has told yet of the last round

    async def goodbye(self) -> None:
        """Tell the orchestrator that this miner leaves, if it can be reached."""
        try:
            async with asyncio.timeout(GOODBYE_S):
                await self._post_once("/v1/goodbye", b"")
        except (LiquidError, TimeoutError) as error:
            event(Event.REQUEST_FAILED, path="/v1/goodbye", reason=str(error))

    async def handle(self, request: Request) -> Response:
        """All routes of a miner."""
        pipeline = self._pipeline
        match request.method, request.path:
            case "POST", "/v1/forward" | "/v1/backward" | "/v1/status":
                if pipeline is None:
                    raise OutOfTurn("No round is in progress here.")
                if request.path == "/v1/forward":
                    return await pipeline.on_forward(request)
                if request.path == "/v1/backward":
                    return await pipeline.on_backward(request)
                return await pipeline.on_status(request)
            case _:
                return await self.shelf.handle(request, self._phase)

    async def _join(self) -> None:
        """Register until a stage is assigned."""
        await self._post("/v1/register", self._registration)
        hotkey = self._site.hotkey
        while not await self.follower.until(
            lambda view: hotkey in view.peers and view.peers[hotkey].stage is not None, timeout_s=10.0
        ):
            await self._post("/v1/register", self._registration)
        stage = self.follower.view.peers[hotkey].stage
        assert stage is not None
        engine = await self._site.compute(lambda: self.engine_class(self._site.run, stage, self._site.device))
        if self._site.run.compiled:
            await self._site.compute(engine.warm_up)  # half a minute that no round should wait for
        self._taken = Seat(stage, engine, self.merger_class(self._site, stage, engine.num_parameters))
        event(Event.STARTED, hotkey=hotkey, stage=stage)

    @property
    def _seat(self) -> Seat:
        assert self._taken is not None  # ``_join`` comes first
        return self._taken

    async def _play(self) -> None:
        while not self.follower.view.stopped:
            view = self.follower.view
            round_view = view.round
            is_mine = round_view is not None and self._plays(round_view.document)
            if is_mine and round_view is not None and round_view.document.round > self._round_done:
                await self._round(round_view.document)
            elif self._needs_sync(view):
                await self._sync(view)
            else:
                self._phase = Phase.FORMING
                await self.follower.changed_since(view.seq)

    def _plays(self, document: RoundDocument) -> bool:
        return any(entry.hotkey == self._site.hotkey for entry in document.roster)

    # --- synchronising

    def _needs_sync(self, view: RunView) -> bool:
        """Whether this replica still has to prove its state at the present round edge."""
        return view.is_opened and view.round is None and self._site.hotkey not in view.ready

    async def _sync(self, view: RunView) -> None:
        """Rebuild the state at the present round edge and prove it: parameters from the network checkpoint, the inner
        optimiser from the local edge if the ledger vouches for it, else fresh."""
        stage, at = self._seat.stage, view.last_round
        initial = await self._site.compute(self._seat.engine.initial_state)
        state = self._edge or self._load_edge() or initial
        if state.optim_root not in {initial.optim_root, view.committed_optim_root(self._site.hotkey)}:
            state = initial
        try:
            merged = await self._seat.merger.load(view.run_hash, initial.params, view.finals_of(stage))
        except (Missing, Unavailable) as error:
            event(Event.REQUEST_FAILED, what="network checkpoint", code=error.code)
            await asyncio.sleep(RETRY_S)
            return
        self._edge = state.with_params(merged)
        event(Event.STATE_SYNCED, round=at, stage=stage)
        await self._prove(at)

    async def _prove(self, at: RoundId) -> None:
        """Announce the state with which this replica is ready for the round after ``at``."""
        assert self._edge is not None
        edge, path = self._edge, self._site.data_dir / EDGE
        params, optim = await self._site.compute(lambda: (edge.params_root, edge.optim_root))
        await self._site.compute(lambda: save_state(path, edge, {}))
        await self._post(
            "/v1/ready", ReplicaReady(round=at, stage=self._seat.stage, params_root=params, optim_root=optim)
        )
        hotkey = self._site.hotkey
        await self.follower.until(
            lambda view: hotkey in view.ready or view.last_round != at or view.round is not None, timeout_s=RETRY_S * 10
        )

    def _load_edge(self) -> StageState | None:
        path = self._site.data_dir / EDGE
        if not path.exists():
            return None
        try:
            return load_state(path)[0]
        except JournalCorrupt as error:
            event(Event.STATE_RESTORED, level=logging.WARNING, reason=error.code)
            return None

    # --- a round

    async def _round(self, document: RoundDocument) -> None:
        """Play one round to its end, from wherever a restart left it."""
        if not verify_signature(self._site.owner, document.signed_bytes(), document.signature):
            raise Forbidden("A round document is not signed by the subnet's owner.", remedy="Do not join this run.")
        recorded = await self._open(document)
        if recorded is None:
            self._round_done = document.round
            return
        try:
            finished = await self._train(document, recorded)
            if finished is not None:
                await self._commit_and_merge(document, finished)
        finally:
            self._pipeline = None
            self._round_done = document.round
            recorded.close()

    def _folder(self, round_: RoundId) -> Path:
        return self._site.data_dir / "rounds" / str(round_)

    async def _open(self, document: RoundDocument) -> RecordedStage | None:
        """The recorded stage of this round: resumed from its folder if there is one, else begun from the edge.

        None when this replica does not hold the round's start state; it synchronises at the next edge.
        """
        engine, folder, plan = (
            self._seat.engine,
            self._folder(document.round),
            step_plan(document, self._site.run, self._site.hotkey),
        )
        digest = document.record_digest()
        if folder.exists():
            try:
                recorded = await self._site.compute(lambda: self.recorded_class.recover(engine, folder, digest, plan))
            except JournalCorrupt as error:
                event(Event.STATE_RESTORED, level=logging.WARNING, round=document.round, reason=str(error))
                shutil.rmtree(folder)
                return None
            event(Event.STATE_RESTORED, round=document.round, applied=len(recorded.applied), step=engine.version)
            return recorded
        edge = self._edge
        if edge is None or edge.params_root != document.params_roots[self._seat.stage]:
            return None
        return await self._site.compute(lambda: self.recorded_class.begin(engine, folder, edge, digest, plan))

    async def _train(self, document: RoundDocument, recorded: RecordedStage) -> FinishedRound | None:
        """TRAINING; returns None when the round must not be committed."""
        self._phase = Phase.TRAINING
        memory_bytes = self._registration.memory_bytes
        pipeline = self._pipeline = RoundPipeline(self._site, document, recorded, self.traffic, memory_bytes)
        pipeline.when_drained(self._drained.set)

        def is_over(view: RunView) -> bool:
            now = view.round
            return now is None or now.document.round != document.round or now.phase is not Phase.TRAINING

        async def watch_end() -> None:
            await self.follower.until(is_over)
            pipeline.close()

        watcher = asyncio.create_task(watch_end())
        try:
            await pipeline.run()
        except Diverged:
            self.traffic.effort = pipeline.effort()
            await self.follower.until(is_over)
            return None
        finally:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)
        await self._report()
        self._unacknowledged = pipeline.custody.unacknowledged()
        finished = await self._site.compute(recorded.finish)
        self.traffic.effort = pipeline.effort()
        return finished

    async def _commit_and_merge(self, document: RoundDocument, finished: FinishedRound) -> None:
        self._phase = Phase.COMMITTING
        self.shelf.offer(document, finished)
        number, stage, unacknowledged = document.round, self._seat.stage, self._unacknowledged
        commitment = await self._site.compute(lambda: finished.commitment(document, stage, unacknowledged))
        await self._post("/v1/commitment", commitment)

        def is_settled(view: RunView) -> bool:
            now = view.round
            return now is None or now.round != number or now.set_hash is not None

        await self.follower.until(is_settled)
        self._phase = Phase.MERGING
        now = self.follower.view.round
        if now is not None and now.round == number and self._site.hotkey in now.members:
            await self._seat.merger.reduce_owned(now, finished.start.params, self.follower.view.finals_of(stage))
        await self.follower.until(lambda view: view.last_round >= number)
        if self.follower.view.last_round == number:
            await self._load_merged(self.follower.view.rounds[number], finished)

    async def _load_merged(self, ended: RoundView, finished: FinishedRound) -> None:
        """Enter the next round edge: merged parameters, own inner optimiser (the one from before, if not merged)."""
        view, closed, seat = self.follower.view, ended.closed, self._seat
        assert closed is not None
        is_merged = closed.committed and self._site.hotkey in ended.members
        optimiser = finished.end if is_merged else finished.start
        finals = {shard: final for shard, final in view.finals_of(seat.stage).items() if final.round == closed.round}
        try:
            merged = await seat.merger.load(view.run_hash, finished.start.params, finals)
        except (Missing, Unavailable) as error:
            event(Event.REQUEST_FAILED, what="merged shards", code=error.code)
            self._edge = None
            return
        self._edge = optimiser.with_params(merged)
        self._forget_old(closed.round)
        if view.last_round == closed.round and view.round is None:
            await self._prove(closed.round)

    def _forget_old(self, round_: RoundId) -> None:
        """Retention is bounded: journals and snapshots older than the preset's rounds go."""
        keep_from = round_ - self._site.run.round.retention_rounds + 1
        for folder in (self._site.data_dir / "rounds").iterdir():
            if folder.name.isdigit() and int(folder.name) < keep_from:
                shutil.rmtree(folder, ignore_errors=True)

    # --- to the orchestrator

    async def _heartbeats(self) -> None:
        """A heartbeat per interval, and one at once when this replica has just finished its share."""
        interval_s = self._site.run.custody.status_interval_s
        while True:
            self._drained.clear()
            told = self._is_drained()
            await self.beat()
            with suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await (self._drained if not told else asyncio.Event()).wait()

    async def beat(self) -> None:
        """Report losses and send one heartbeat; an orchestrator that is away is no failure."""
        try:
            await self._report_once()
            await self._post_once("/v1/heartbeat", self._heartbeat().encoded())
        except (Unavailable, Refused) as error:
            event(Event.REQUEST_FAILED, level=logging.DEBUG, path="/v1/heartbeat", code=error.code)

    def _is_drained(self) -> bool:
        return self._pipeline is not None and self._pipeline.is_drained

    def _heartbeat(self) -> Heartbeat:
        pipeline, traffic = self._pipeline, self.traffic
        return Heartbeat(
            round=pipeline.document.round if pipeline else self._round_done,
            phase=self._phase,
            is_drained=self._is_drained(),
            held=len(pipeline.custody.held) if pipeline else 0,
            applied=traffic.applied,
            queue=pipeline.custody.num_pending() if pipeline else 0,
            tokens_per_s=self._registration.tokens_per_s,
            loss=traffic.last_loss,
            wire_bytes=traffic.wire_bytes,
            wire_tokens=traffic.wire_tokens,
            staleness_max=traffic.staleness_max,
            effort=traffic.effort,
        )

    async def _report_once(self) -> None:
        pipeline = self._pipeline
        report = pipeline.losses() if pipeline else None
        if pipeline is not None and report is not None:
            await self._post_once("/v1/report", report.encoded())
            pipeline.forget_losses(report)

    async def _report(self) -> None:
        """Losses that no heartbeat has reported yet."""
        report = self._pipeline.losses() if self._pipeline else None
        if report is not None:
            await self._post("/v1/report", report)

    async def _post(self, path: str, record: Record) -> None:
        """Post until the orchestrator answers; a refusal is logged, the ledger then says what is true."""
        while True:
            try:
                await self._post_once(path, record.encoded())
            except Unavailable:
                await asyncio.sleep(RETRY_S)
            except Refused as error:
                event(Event.REQUEST_REFUSED, level=logging.WARNING, path=path, code=error.code, reason=str(error))
                return
            else:
                return

    async def _post_once(self, path: str, body: bytes) -> None:
        await self._site.peers.request(
            self._site.orchestrator, "POST", path, body, timeout_s=self._site.run.custody.request_timeout_s
        )
