"""A whole network in one process under virtual time: the production code over in-memory seams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from subnet.clock import LoopClock
from subnet.config import RunConfig
from subnet.data.corpus import Corpus
from subnet.net.auth import Signer, dev_signer
from subnet.net.base import PeerAddress
from subnet.net.blobs import MemoryBlobs
from subnet.net.follower import LedgerFollower
from subnet.net.memory import MemoryNetwork
from subnet.orchestrate.ledger_store import MemoryLedgerStore
from subnet.orchestrate.service import Orchestrator, OrchestratorParts
from subnet.records import PeerRegistered
from subnet.replica.lifecycle import Replica
from subnet.replica.serving import request_caps
from subnet.replica.site import Site
from subnet.simulate.cheats import SilentReplica
from subnet.types import Role
from subnet.verify.auditor import Auditor, AuditSite

PEAK_FLOPS_PER_S = 1e12  # what every miner claims: more than any core has, so that MFU stays below 1


class InlineExecutor(ThreadPoolExecutor):
    """Work is done when ``submit`` returns, so that tensor work takes no virtual time."""

    def __init__(self) -> None:
        super().__init__(1)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """A future that is already done."""
        future = super().submit(fn, *args, **kwargs)
        wait([future])
        return future


@dataclass
class Miner:
    """One replica and what it runs in."""

    signer: Signer
    replica: Replica
    task: asyncio.Task[None] | None = None


@dataclass
class Net:
    """The network under test."""

    run: RunConfig
    corpus: Corpus
    folder: Path
    network: MemoryNetwork
    owner: Signer
    store: MemoryLedgerStore = field(default_factory=MemoryLedgerStore)
    blobs: MemoryBlobs = field(default_factory=MemoryBlobs)
    clock: LoopClock = field(default_factory=LoopClock)
    miners: dict[str, Miner] = field(default_factory=dict)
    validators: list[asyncio.Task[None]] = field(default_factory=list)
    orchestrator: Orchestrator | None = None
    orchestrator_task: asyncio.Task[None] | None = None

    @property
    def orchestrator_address(self) -> PeerAddress:
        """Where the orchestrator is reached."""
        return PeerAddress(self.owner.hotkey, f"memory://{self.owner.hotkey}")

    async def start_orchestrator(self, stop_after_rounds: int | None) -> None:
        """Start it, or start it again on the same ledger."""
        parts = OrchestratorParts(self.owner, self.store, self.blobs, self.clock)
        self.orchestrator = Orchestrator(self.run, parts, stop_after_rounds=stop_after_rounds)
        await self.orchestrator.start()
        self.network.attach(self.owner.hotkey, self.orchestrator.handle, signer=self.owner)
        self.orchestrator_task = asyncio.create_task(self.orchestrator.run_forever())

    async def stop_orchestrator(self) -> None:
        """Kill it without a word."""
        assert self.orchestrator_task is not None
        self.network.detach(self.owner.hotkey)
        self.orchestrator_task.cancel()
        await asyncio.gather(self.orchestrator_task, return_exceptions=True)

    def start_miner(self, name: str, replica_class: type[Replica] = Replica) -> Miner:
        """Start a miner, or start it again in the same data folder."""
        signer = dev_signer(f"//{name}")
        miner: Miner | None = None

        async def handle(request: Any) -> Any:
            assert miner is not None
            return await miner.replica.handle(request)

        peers = self.network.attach(signer.hotkey, handle, signer=signer, caps=request_caps(self.run))
        follower = LedgerFollower(peers, self.orchestrator_address)
        site = Site(
            run=self.run,
            hotkey=signer.hotkey,
            owner=self.owner.hotkey,
            orchestrator=self.orchestrator_address,
            peers=peers,
            address_of=follower.address_of,
            clock=self.clock,
            corpus=self.corpus,
            data_dir=self.folder / name,
            executor=InlineExecutor(),
            timer=asyncio.get_running_loop().time,
        )
        registration = PeerRegistered(
            run_hash=self.run.hash(),
            role=Role.MINER,
            url=f"http://{name}.test:1",
            tokens_per_s=100.0,
            peak_flops_per_s=PEAK_FLOPS_PER_S,
            memory_bytes=1 << 30,
            device="cpu",
            corpus_hash=self.corpus.digest,
        )
        replica = replica_class(site, registration, follower)
        miner = self.miners[name] = Miner(signer, replica)
        miner.task = asyncio.create_task(replica.run())
        return miner

    async def start_validator(self, name: str) -> None:
        """Start a validator; its beacon is the ledger, as without a chain."""
        signer = dev_signer(f"//{name}")

        async def handle(request: Any) -> Any:
            raise AssertionError("validators serve nothing")

        async def no_chain(number: int) -> str:
            raise AssertionError("there is no chain here")

        peers = self.network.attach(signer.hotkey, handle, signer=signer)
        follower = LedgerFollower(peers, self.orchestrator_address)
        site = AuditSite(
            self.run, signer.hotkey, self.orchestrator_address, peers, self.corpus, InlineExecutor(), no_chain
        )
        registration = PeerRegistered(
            run_hash=self.run.hash(),
            role=Role.VALIDATOR,
            url=f"http://{name}.test:1",
            tokens_per_s=0.0,
            peak_flops_per_s=0.0,
            memory_bytes=1 << 30,
            device="cpu",
            corpus_hash=self.corpus.digest,
        )
        await peers.request(self.orchestrator_address, "POST", "/v1/register", registration.encoded(), timeout_s=10.0)
        self.validators += [
            asyncio.create_task(follower.run()),
            asyncio.create_task(Auditor(site, follower).run()),
        ]

    async def kill_miner(self, name: str) -> None:
        """The process is gone at this instant."""
        miner = self.miners[name]
        assert miner.task is not None
        self.network.detach(miner.signer.hotkey)
        miner.task.cancel()
        await asyncio.gather(miner.task, return_exceptions=True)

    async def finish(self, timeout_s: float = 600.0) -> None:
        """Wait until every living miner saw the run stop; a crash is raised."""
        living = [miner for miner in self.miners.values() if not isinstance(miner.replica, SilentReplica)]
        tasks = [miner.task for miner in living if miner.task is not None and not miner.task.cancelled()]
        async with asyncio.timeout(timeout_s):
            await asyncio.gather(*tasks, *self.validators[1::2])


@asynccontextmanager
async def network(folder: Path, run: RunConfig, corpus: Corpus, *, rounds: int) -> AsyncIterator[Net]:
    """An orchestrator on an empty ledger; miners are started by the test."""
    net = Net(run, corpus, folder, MemoryNetwork(), dev_signer("//owner"))
    await net.start_orchestrator(rounds)
    try:
        yield net
    finally:
        for name in list(net.miners):
            await net.kill_miner(name)
        for task in net.validators:
            task.cancel()
        await asyncio.gather(*net.validators, return_exceptions=True)
        await net.stop_orchestrator()
