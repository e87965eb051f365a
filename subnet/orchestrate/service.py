"""The orchestrator: takes signed records, appends what deserves it, ticks the rounds, publishes the ledger.

The shell around ``subnet.swarm``: all that it knows is a fold over the ledger plus heartbeats, so it can be killed at
any instant and started again. Not here: sockets and keys (``neurons.orchestrator``).
Invariants: an entry is durable before anybody is told of it; appends are serialised; a peer that was known before a
restart gets a liveness window to be heard again before it counts as lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from subnet.clock import Clock
from subnet.config import RunConfig
from subnet.errors import Forbidden, LedgerCorrupt, Malformed, Missing
from subnet.hashing import canonical_json, sha256
from subnet.log import Event, event
from subnet.net.base import ANONYMOUS, Request, Response, reply
from subnet.net.blobs import PARTS, Blobs, round_prefix, shard_key
from subnet.net.messages import Appended, BlobStored, Heartbeat, HeartbeatReply, ProbeReply, ProbeRequest, RunInfo
from subnet.orchestrate.efforts import Efforts
from subnet.orchestrate.ledger_store import LedgerStore
from subnet.orchestrate.status import me, status
from subnet.orchestrate.submissions import check
from subnet.records import (
    PROTOCOL,
    AuthStamp,
    Commitment,
    EpochHead,
    LedgerEntry,
    LedgerKind,
    LossReport,
    PeerChanged,
    PeerRegistered,
    PhaseChanged,
    Record,
    ReplicaReady,
    RoundClosed,
    RunOpened,
    RunStopped,
    ShardPublished,
    Verdict,
    decode,
    to_lines,
)
from subnet.swarm.ledger import append, fold
from subnet.swarm.roster import LiveReport, assign_stage, shard_owners
from subnet.swarm.rounds import Moment, tick
from subnet.swarm.view import RunView
from subnet.types import Digest, Hotkey, PeerState, Role, RoundId, StageId

TICK_S = 0.25  # how soon a deadline or a lost peer is seen
MAX_POLL_S = 30.0
MAX_ENTRIES = 1000  # per answer to a reader of the ledger
BLOB_ROUNDS = 2  # blobs of older rounds are deleted, unless a shard's last result lies there

SUBMISSIONS: dict[str, tuple[LedgerKind, type[Record]]] = {
    "/v1/register": (LedgerKind.PEER_REGISTERED, PeerRegistered),
    "/v1/ready": (LedgerKind.READY, ReplicaReady),
    "/v1/report": (LedgerKind.REPORTED, LossReport),
    "/v1/commitment": (LedgerKind.COMMITTED, Commitment),
    "/v1/shard": (LedgerKind.SHARD_PUBLISHED, ShardPublished),
    "/v1/verdict": (LedgerKind.VERDICT, Verdict),
}


class OwnerSigner(Protocol):
    """Signs for the run's owner."""

    hotkey: Hotkey

    def sign(self, data: bytes) -> str:
        """Signature of ``data`` as hex."""
        ...


class Beacon(Protocol):
    """Where the chain stands."""

    def block(self) -> int:
        """Number of the newest known block, -1 without a chain."""
        ...


Admit = Callable[[Hotkey, Role], bool]
Probe = Callable[[Hotkey, ProbeRequest], Awaitable[ProbeReply]]


def everyone(hotkey: Hotkey, role: Role) -> bool:
    """Who may register in a run without a chain."""
    del hotkey, role
    return True


class NoBeacon:
    """A run without a chain."""

    def block(self) -> int:
        """Always -1."""
        return -1


@dataclass(frozen=True)
class OrchestratorParts:
    """What an orchestrator is put together from. ``admit``: whether a hotkey may register in a role; ``probe``: whether
    a peer answers at an address (None: nobody is probed)."""

    signer: OwnerSigner
    store: LedgerStore
    blobs: Blobs
    clock: Clock
    beacon: Beacon = field(default_factory=NoBeacon)
    admit: Admit = everyone
    probe: Probe | None = None


class Orchestrator:
    """One run's orchestrator. ``stop_after_rounds``: stop when so many rounds are closed and merged everywhere."""

    def __init__(self, run: RunConfig, parts: OrchestratorParts, *, stop_after_rounds: int | None = None) -> None:
        self.view = RunView()
        self.beats: dict[Hotkey, Heartbeat] = {}
        self.efforts = Efforts(run)
        self.relay = ""  # as ``RunInfo`` announces it
        self._run = run
        self._parts = parts
        self._stop_after_rounds = stop_after_rounds
        self._entries: list[LedgerEntry] = []
        self._live: dict[Hotkey, LiveReport] = {}
        self._started_s = 0.0
        self._lock = asyncio.Lock()
        self._grown = asyncio.Event()

    # --- running

    async def start(self) -> None:
        """Read the ledger, or open a run in an empty one; raises ``LedgerCorrupt`` if it is another run's."""
        self._entries = await self._parts.store.load()
        self.view = fold(self._entries)
        if not self.view.is_opened:
            owner = self._parts.signer.hotkey
            opened = RunOpened(run=self._run.model_dump(mode="json"), run_hash=self._run.hash(), owner=owner)
            await self._append([(LedgerKind.RUN_OPENED, opened)])
        elif self.view.run_hash != self._run.hash() or self.view.owner != self._parts.signer.hotkey:
            raise LedgerCorrupt(
                "The ledger in this folder is of another run or owner.", remedy="Use another data folder."
            )
        self._started_s = self._parts.clock.now_s()
        self._live = {hotkey: LiveReport(heard_s=self._started_s) for hotkey in self.view.peers}

    async def run_forever(self) -> None:
        """Tick until the run stops."""
        while self.view.stopped is None:
            async with self._lock:
                await self._tick()
            grown = self._grown
            try:
                async with asyncio.timeout(TICK_S):
                    await grown.wait()
            except TimeoutError:
                pass
        event(Event.STOPPED, reason=self.view.stopped.reason)

    async def _tick(self) -> None:
        """Append what is due, step by step, until there is nothing left."""
        while True:
            parts = self._parts
            now_s, block = parts.clock.now_s(), parts.beacon.block()
            moment = Moment(now_s, self._live, block, parts.signer.sign, self._started_s)
            if self._is_finished():
                due: list[tuple[LedgerKind, Record]] = [(LedgerKind.RUN_STOPPED, RunStopped(reason="rounds done"))]
            else:
                due = tick(self.view, moment)
            if not due:
                return
            await self._append(due)

    def _is_finished(self) -> bool:
        """Enough rounds, and every replica that is still here proved the last merge."""
        view = self.view
        if self._stop_after_rounds is None or len(view.closed) < self._stop_after_rounds or view.stopped is not None:
            return False
        if view.round is not None:
            return False
        last = view.rounds[view.last_round]
        active = [hotkey for hotkey in last.members if view.peers[hotkey].state is PeerState.ACTIVE]
        return all(hotkey in view.ready for hotkey in active)

    async def _append(
        self,
        bodies: list[tuple[LedgerKind, Record]],
        author: Hotkey | None = None,
        auth: AuthStamp | None = None,
    ) -> LedgerEntry:
        """Make entries, store them, fold them, wake readers."""
        new: list[LedgerEntry] = []
        prev = self._entries[-1] if self._entries else None
        for kind, body in bodies:
            prev = append(prev, kind, author or self._parts.signer.hotkey, body, auth, self._parts.clock.now_s())
            new.append(prev)
        await self._parts.store.append(new)
        self._entries.extend(new)
        self.view = fold(new, self.view)
        self._grown.set()
        self._grown = asyncio.Event()
        for _, body in bodies:
            await self._after(body)
        assert prev is not None
        return prev

    async def _after(self, body: Record) -> None:
        match body:
            case PhaseChanged():
                event(Event.PHASE_CHANGED, round=body.round, phase=body.phase, reason=body.reason)
            case RoundClosed():
                event(Event.ROUND_CLOSED, round=body.round, reason=body.reason, loss=body.mean_loss)
                await self._delete_old_blobs(body.round)
            case _:
                pass

    async def _delete_old_blobs(self, closed: RoundId) -> None:
        kept = {final.round for final in self.view.last_finals.values()}
        number = RoundId(closed - BLOB_ROUNDS)
        if number < 0 or number in kept:
            return
        for key in await self._parts.blobs.keys(round_prefix(self.view.run_hash, number)):
            await self._parts.blobs.delete(key)

    async def publish_epoch(self, block: int) -> EpochHead:
        """Name the present head as the one that the weights of a chain epoch are computed from."""
        async with self._lock:
            head = EpochHead(block=block, seq=self.view.seq, head=self.view.head)
            await self._append([(LedgerKind.EPOCH_HEAD, head)])
            return head

    # --- routes

    async def handle(self, request: Request) -> Response:
        """All routes of the orchestrator."""
        if request.sender != ANONYMOUS and request.sender in self.view.peers:
            self._heard(request.sender)
        method, path = request.method, request.path
        if method == "POST" and path in SUBMISSIONS:
            return await self._submit(request)
        if method == "GET" and path.startswith("/v1/blobs/"):
            return reply(await self._parts.blobs.get(path.removeprefix("/v1/blobs/")))
        match method, path:
            case "GET", "/v1/run":
                run, view = self.view.run.model_dump(mode="json"), self.view
                info = RunInfo(run=run, run_hash=view.run_hash, owner=view.owner, protocol=PROTOCOL, relay=self.relay)
                return reply(info)
            case "GET", "/v1/ledger":
                return await self._ledger(request)
            case "GET", "/v1/status":
                figures = self.efforts.figures(self.view)
                return reply(canonical_json(status(self.view, self.beats, figures, self._parts.clock.now_s())))
            case "GET", "/v1/health":
                return reply(b"{}")
            case "GET", "/v1/me":
                return reply(canonical_json(me(self.view, request.sender)))
            case "POST", "/v1/heartbeat":
                return self._heartbeat(request)
            case "POST", "/v1/goodbye":
                return await self._goodbye(request)
            case "POST", "/v1/probe" if self._parts.probe is not None:
                if not self._parts.admit(request.sender, Role.MINER):
                    raise Forbidden("This hotkey is not admitted as a miner.")
                return reply(await self._parts.probe(request.sender, decode(ProbeRequest, request.body)))
            case "PUT", "/v1/blobs":
                return await self._store_blob(request)
            case _:
                raise Missing("There is no such route here.")

    def _heard(self, hotkey: Hotkey) -> None:
        known = self._live.get(hotkey)
        now_s = self._parts.clock.now_s()
        self._live[hotkey] = replace(known, heard_s=now_s) if known else LiveReport(heard_s=now_s)

    async def _submit(self, request: Request) -> Response:
        kind, record_type = SUBMISSIONS[request.path]
        record = decode(record_type, request.body)
        if isinstance(record, PeerRegistered) and not self._parts.admit(request.sender, record.role):
            raise Forbidden(f"This hotkey is not admitted as a {record.role}.")
        async with self._lock:
            if not check(self.view, request.sender, record):
                return reply(Appended(seq=self.view.seq, hash=self.view.head))
            entry = await self._append([(kind, record)], request.sender, request.auth)
            if isinstance(record, PeerRegistered):
                await self._registered(request.sender, record)
        self._heard(request.sender)
        return reply(Appended(seq=entry.seq, hash=entry.hash))

    async def _registered(self, hotkey: Hotkey, record: PeerRegistered) -> None:
        """Give a new miner a stage; one that comes back keeps its own."""
        event(Event.PEER_CHANGED, hotkey=hotkey, role=record.role, url=record.url)
        self._heard(hotkey)
        if record.role is Role.MINER and self.view.peers[hotkey].stage is None:
            stage = assign_stage(self.view, self.view.run)
            changed = PeerChanged(hotkey=hotkey, stage=stage, state=PeerState.SYNCING, reason="assigned")
            await self._append([(LedgerKind.PEER_CHANGED, changed)])

    def _heartbeat(self, request: Request) -> Response:
        beat = decode(Heartbeat, request.body)
        if request.sender not in self.view.peers:
            raise Forbidden("This hotkey has not registered with the run.")
        now_s = self._parts.clock.now_s()
        if beat.effort is not None:
            self.efforts.take(self.view, request.sender, beat.effort, now_s)
        was_drained = self._live[request.sender].is_drained
        self.beats[request.sender] = beat
        self._live[request.sender] = LiveReport(
            heard_s=now_s,
            round=beat.round,
            phase=beat.phase,
            is_drained=beat.is_drained,
            held=beat.held,
            applied=beat.applied,
        )
        if beat.is_drained and not was_drained:
            self._grown.set()
            self._grown = asyncio.Event()
        return reply(HeartbeatReply(seq=self.view.seq, head=self.view.head))

    async def _goodbye(self, request: Request) -> Response:
        async with self._lock:
            peer = self.view.peers.get(request.sender)
            if peer is not None and peer.state is not PeerState.RETIRED:
                gone = PeerChanged(hotkey=request.sender, stage=peer.stage, state=PeerState.RETIRED, reason="goodbye")
                await self._append([(LedgerKind.PEER_CHANGED, gone)], request.sender, request.auth)
            return reply(Appended(seq=self.view.seq, hash=self.view.head))

    async def _ledger(self, request: Request) -> Response:
        """``?after=SEQ&wait_s=S``: entries after SEQ; waits up to S seconds for the first."""
        try:
            after, wait_s = int(request.query.get("after", "-1")), float(request.query.get("wait_s", "0"))
        except ValueError:
            raise Malformed("The query needs after as a whole number and wait_s as a number.") from None
        try:
            async with asyncio.timeout(min(max(wait_s, 0.0), MAX_POLL_S)):
                while len(self._entries) <= after + 1:
                    await self._grown.wait()
        except TimeoutError:
            pass
        first = max(after + 1, 0)
        return reply(to_lines(self._entries[first : first + MAX_ENTRIES]))

    async def _store_blob(self, request: Request) -> Response:
        """An owner's result for one shard; the key is derived from who sends it."""
        query = request.query
        try:
            number, stage = RoundId(int(query["round"])), StageId(int(query["stage"]))
            shard, part = int(query["shard"]), query["part"]
        except (KeyError, ValueError):
            raise Malformed("The query needs round, stage, shard and part.") from None
        if part not in PARTS:
            raise Malformed("There is no such part of a shard.")
        if request.sender not in shard_owners(self.view, number, stage, shard):
            raise Forbidden("The sender does not own that shard.")
        key = shard_key(self.view.run_hash, number, stage, request.sender, shard, part)
        await self._parts.blobs.put(key, request.body)
        return reply(BlobStored(key=key, digest=Digest(sha256(request.body))))
