"""An orchestrator with miners that only claim to train: the whole phase machine without tensors or a network.

Each fake miner follows the orchestrator's own view, says what a real one would say, and can be told to die in a phase,
to leave its shards undone, or to publish a result of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from subnet.clock import LoopClock
from subnet.config import RunConfig, parse_run_config
from subnet.errors import Refused
from subnet.hashing import sha256
from subnet.net.base import Request, Response
from subnet.net.blobs import MemoryBlobs
from subnet.net.messages import Appended, Heartbeat
from subnet.orchestrate.ledger_store import LedgerStore, MemoryLedgerStore
from subnet.orchestrate.service import Admit, Orchestrator, OrchestratorParts, everyone
from subnet.records import (
    AuthStamp,
    Commitment,
    LossItem,
    LossReport,
    PeerRegistered,
    Record,
    ReplicaReady,
    SegmentRoots,
    ShardPublished,
    decode,
)
from subnet.swarm.roster import shard_owners
from subnet.swarm.router import shares
from subnet.swarm.view import RoundView, RunView
from subnet.types import Digest, Hotkey, MicrobatchId, Phase, Role, RoundId, StageId

BEAT_S = 0.5
TRAINING_S = 2.0  # until the first stage says that it is drained
CORPUS = sha256(b"a corpus")
RUN: RunConfig = parse_run_config(
    {
        "model": {"num_blocks": 2},
        "stages": {"num_stages": 2},
        "data": {"corpus_hash": CORPUS},
        "outer": {"num_shards": 2},
        "round": {"microbatches": 8, "min_replicas": 2},
    }
)
MINERS = tuple(Hotkey(f"miner-{number}") for number in range(4))

OWNER = Hotkey("owner")


@dataclass
class FakeSigner:
    """The owner."""

    hotkey: Hotkey = OWNER

    def sign(self, data: bytes) -> str:
        """The digest stands in for a signature."""
        return sha256(data)


@dataclass
class FakeBeacon:
    """A chain that stands at one block."""

    latest: int = -1

    def block(self) -> int:
        """See ``Beacon``."""
        return self.latest


@dataclass
class Conduct:
    """What a fake miner does wrong."""

    dies_in: Phase | None = None
    dies_in_round: int = 0
    skips_shards: bool = False
    lies_about_shards: bool = False
    never_commits: bool = False


def request(sender: Hotkey, path: str, record: Record, method: str = "POST") -> Request:
    """A signed request as the server hands it on."""
    auth = AuthStamp(nonce="1", signature="", method=method, path=path, receiver=Hotkey("owner"))
    return Request(sender, method, path, {}, record.encoded(), auth)


def registration(**changes: object) -> PeerRegistered:
    """What a fake miner registers with."""
    fields: dict[str, object] = {
        "run_hash": RUN.hash(),
        "role": Role.MINER,
        "url": "http://miner.test:1",
        "tokens_per_s": 100.0,
        "peak_flops_per_s": 1e9,
        "memory_bytes": 1,
        "device": "cpu",
        "corpus_hash": CORPUS,
    }
    return PeerRegistered(**{**fields, **changes})  # type: ignore[arg-type]


def initial_root(stage: StageId) -> Digest:
    """Root of the parameters that the seed gives."""
    return sha256(f"initial {stage}".encode())


def commitment(current: RoundView, hotkey: Hotkey, **changes: object) -> Commitment:
    """An honest commitment: the stage's replicas share the round as the first stage does."""
    entry = current.entry_of(hotkey)
    assert entry is not None
    mine = current.stage_roster(entry.stage).index(hotkey)
    applied = tuple(sorted(list(shares(current.document).values())[mine]))
    fields: dict[str, object] = {
        "round": current.round,
        "stage": entry.stage,
        "document": current.document.record_digest(),
        "journal_root": sha256(hotkey.encode()),
        "num_entries": 2,
        "segments": (SegmentRoots(first_entry=0, end_entry=2, start_root=CORPUS, end_root=CORPUS),),
        "start_params_root": current.document.params_roots[entry.stage],
        "start_optim_root": CORPUS,
        "end_params_root": CORPUS,
        "end_optim_root": CORPUS,
        "shard_digests": (CORPUS, CORPUS),
        "shard_norms": (1.0, 1.0),
        "num_tokens": len(applied) * RUN.microbatch_tokens,
        "num_steps": 8,
        "applied": applied,
        "unacknowledged": (),
    }
    return Commitment(**{**fields, **changes})  # type: ignore[arg-type]


def shard(current: RoundView, stage: StageId, number: int, liar: Hotkey | None = None) -> ShardPublished:
    """An owner's result; equal for all honest owners."""
    digest = sha256(f"{current.round} {stage} {number} {liar}".encode())
    return ShardPublished(round=current.round, stage=stage, shard=number, params_digest=digest, momentum_digest=digest)


def ready(view: RunView, hotkey: Hotkey) -> ReplicaReady:
    """Proof of the agreed parameters."""
    stage = view.peers[hotkey].stage
    assert stage is not None
    root = view.params_roots[stage] if view.params_roots else initial_root(stage)
    return ReplicaReady(round=view.last_round, stage=stage, params_root=root, optim_root=CORPUS)


def losses(current: RoundView, hotkey: Hotkey, microbatches: tuple[MicrobatchId, ...]) -> LossReport:
    """Losses of what a last-stage replica computed."""
    items = tuple(LossItem(microbatch=number, loss=2.0, path=(hotkey,)) for number in microbatches)
    return LossReport(round=current.round, items=items)


@dataclass
class FakeSwarm:
    """One orchestrator on a store that outlives it, and its miners."""

    store: LedgerStore = field(default_factory=MemoryLedgerStore)
    beacon: FakeBeacon = field(default_factory=FakeBeacon)
    blobs: MemoryBlobs = field(default_factory=MemoryBlobs)
    admit: Admit = everyone
    service: Orchestrator | None = None
    ticking: asyncio.Task[None] | None = None
    miners: dict[Hotkey, asyncio.Task[None]] = field(default_factory=dict)

    @property
    def view(self) -> RunView:
        """What the orchestrator knows."""
        assert self.service is not None
        return self.service.view

    async def start(self, stop_after_rounds: int | None = None) -> None:
        """Start the orchestrator, or start it again on the same ledger."""
        parts = OrchestratorParts(FakeSigner(), self.store, self.blobs, LoopClock(), self.beacon, self.admit)
        service = Orchestrator(RUN, parts, stop_after_rounds=stop_after_rounds)
        await service.start()
        self.service, self.ticking = service, asyncio.create_task(service.run_forever())

    async def kill(self) -> None:
        """End the orchestrator without a word; miners find nobody until it is started again."""
        assert self.ticking is not None
        self.service = None
        self.ticking.cancel()
        await asyncio.gather(self.ticking, return_exceptions=True)

    async def post(self, sender: Hotkey, path: str, record: Record) -> Response:
        """One signed record to the orchestrator."""
        assert self.service is not None
        return await self.service.handle(request(sender, path, record))

    async def appended(self, sender: Hotkey, path: str, record: Record) -> Appended:
        """The answer to one signed record."""
        return decode(Appended, (await self.post(sender, path, record)).body)

    def add(self, hotkey: Hotkey, conduct: Conduct | None = None) -> None:
        """Start a miner, or start it again."""
        self.miners[hotkey] = asyncio.create_task(self._mine(hotkey, conduct or Conduct()))

    async def until(self, condition: Callable[[RunView], bool], timeout_s: float = 600.0) -> None:
        """Wait until the orchestrator's view meets ``condition``."""
        async with asyncio.timeout(timeout_s):
            while self.service is None or not condition(self.view):  # noqa: ASYNC110 - virtual time costs nothing
                await asyncio.sleep(0.05)

    async def reaches(self, phase: Phase, number: int) -> None:
        """Wait for a phase of a round."""
        await self.until(lambda view: view.phase is phase and view.round is not None and view.round.round == number)

    async def closes(self, number: int) -> RoundView:
        """Wait until a round is closed."""
        await self.until(lambda view: view.last_round >= number)
        return self.view.rounds[RoundId(number)]

    async def _mine(self, hotkey: Hotkey, conduct: Conduct) -> None:
        await self.until(lambda view: True)
        await self.post(hotkey, "/v1/register", registration())
        while True:
            if self.service is not None:
                view = self.view
                number = view.last_round + 1
                if conduct.dies_in is view.phase and number == conduct.dies_in_round:
                    return
                try:
                    await self._beat(hotkey)
                    await self._work(hotkey, conduct)
                except Refused:
                    pass  # the phase ended in between; the next look tells
            await asyncio.sleep(BEAT_S)

    async def _beat(self, hotkey: Hotkey) -> None:
        current, now_s = self.view.round, LoopClock().now_s()
        beat = Heartbeat(
            round=RoundId(-1) if current is None else current.round,
            phase=self.view.phase,
            is_drained=current is not None and now_s - current.opened_s >= TRAINING_S,
            held=0,
            applied=1,
            queue=0,
            tokens_per_s=1.0,
            loss=None,
            wire_bytes=30,
            wire_tokens=10,
            staleness_max=0,
            effort=None,
        )
        await self.post(hotkey, "/v1/heartbeat", beat)

    async def _work(self, hotkey: Hotkey, conduct: Conduct) -> None:
        view, current = self.view, self.view.round
        if current is None:
            if hotkey not in view.ready:
                await self.post(hotkey, "/v1/ready", ready(view, hotkey))
        elif current.entry_of(hotkey) is None:
            return
        elif current.phase is Phase.COMMITTING and not conduct.never_commits:
            mine = commitment(current, hotkey)
            if mine.stage == RUN.stages.num_stages - 1:
                await self.post(hotkey, "/v1/report", losses(current, hotkey, mine.applied))
            await self.post(hotkey, "/v1/commitment", mine)
        elif current.phase is Phase.MERGING and not conduct.skips_shards:
            for stage, number in ((StageId(stage), number) for stage in range(2) for number in range(2)):
                owners = shard_owners(view, current.round, stage, number)
                if hotkey in owners and hotkey not in current.published.get((stage, number), {}):
                    liar = hotkey if conduct.lies_about_shards else None
                    await self.post(hotkey, "/v1/shard", shard(current, stage, number, liar))


@asynccontextmanager
async def fake_swarm(
    *, stop_after_rounds: int | None = None, store: LedgerStore | None = None, **conducts: Conduct
) -> AsyncIterator[FakeSwarm]:
    """A swarm of ``MINERS``, two per stage; ``conducts`` by hotkey with an underscore (``miner_1=...``)."""
    swarm = FakeSwarm(store=store or MemoryLedgerStore())
    await swarm.start(stop_after_rounds)
    for hotkey in MINERS:
        swarm.add(hotkey, conducts.get(hotkey.replace("-", "_")))
    try:
        yield swarm
    finally:
        tasks = [*swarm.miners.values(), *([swarm.ticking] if swarm.ticking else [])]
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
