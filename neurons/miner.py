"""The miner: trains the stage that the orchestrator assigns. Wiring only; the work is ``subnet.replica``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from neurons.base import (
    Neuron,
    announce,
    fetch_run,
    find_orchestrator,
    following_chain,
    neuron,
    open_corpus,
    publish_axon,
    published_url,
    require_registered,
    run_program,
    total_memory_bytes,
)
from neurons.settings import NeuronConfig, parse
from subnet.chain.feed import ChainFeed
from subnet.config import RunConfig
from subnet.data.batches import tokens
from subnet.data.corpus import Corpus
from subnet.errors import OutOfTurn
from subnet.net.base import Request, Response
from subnet.net.follower import LedgerFollower
from subnet.net.server import serve
from subnet.records import PeerRegistered
from subnet.replica.lifecycle import Replica
from subnet.replica.serving import request_caps
from subnet.replica.site import Site
from subnet.types import Digest, MicrobatchId, Role

PROBE_MICROBATCHES = 2  # timed after one that warms up; enough to rank devices, short enough to start at once


def measure_tokens_per_s(run: RunConfig, corpus: Corpus) -> float:
    """Tokens of the whole model, forward and backward, per second of this thread's processor time.

    Processor time, so that the figure is the machine's own and not that of whatever else runs on it now.
    """
    import torch

    from subnet.model.stages import full_model

    model, took_s = full_model(run), 0.0
    for number in range(PROBE_MICROBATCHES + 1):
        batch = torch.from_numpy(tokens(run, corpus, MicrobatchId(number)))
        began_s = time.thread_time()
        torch.autograd.backward(model.loss(batch))
        took_s += (time.thread_time() - began_s) if number else 0.0
    return PROBE_MICROBATCHES * run.microbatch_tokens / took_s


async def mine(config: NeuronConfig, replica_class: type[Replica]) -> None:
    """Join the run and serve it until this program is told to stop."""
    import torch

    torch.set_num_threads(1)
    with ThreadPoolExecutor(1, "tensors") as executor:
        async with neuron(config) as me:
            published_url(config, config.axon.port)  # wrong addresses are told now, not after the work
            snapshot = await require_registered(me)
            orchestrator = find_orchestrator(config, snapshot)
            _, run = await fetch_run(me, orchestrator)
            loop = asyncio.get_running_loop()
            corpus = await loop.run_in_executor(executor, open_corpus, run)
            speed = await loop.run_in_executor(executor, measure_tokens_per_s, run, corpus)
            follower = LedgerFollower(me.peers, orchestrator)
            data_dir = config.neuron.data_dir.expanduser() / run.hash()[:16] / me.signer.hotkey
            site = Site(
                run=run,
                hotkey=me.signer.hotkey,
                owner=orchestrator.hotkey,
                orchestrator=orchestrator,
                peers=me.peers,
                address_of=follower.address_of,
                clock=me.clock,
                corpus=corpus,
                data_dir=data_dir,
                executor=executor,
            )
            async with (
                following_chain(me, snapshot) as feed,
                _served(me, site, follower, speed, replica_class, feed) as replica,
            ):
                try:
                    await replica.run()
                    # A run that has stopped is served on: its last rounds may still be audited.
                    await asyncio.Event().wait()
                finally:
                    await replica.goodbye()


@asynccontextmanager
async def _served(
    me: Neuron,
    site: Site,
    follower: LedgerFollower,
    speed: float,
    replica_class: type[Replica],
    feed: ChainFeed | None,
) -> AsyncIterator[Replica]:
    """A replica whose routes can be reached and whose address is known to all; on chain as soon as the chain allows."""
    made: list[Replica] = []

    async def handle(request: Request) -> Response:
        if not made:
            raise OutOfTurn("This miner is still starting.")
        return await made[0].handle(request)

    axon = me.config.axon
    async with serve(handle, me.verifier(), axon.ip, axon.port, request_caps(site.run)) as served:
        url = published_url(me.config, served.port)
        registration = PeerRegistered(
            run_hash=site.run.hash(),
            role=Role.MINER,
            url=url,
            tokens_per_s=speed,
            memory_bytes=total_memory_bytes(),
            device=me.config.neuron.device,
            corpus_hash=Digest(site.run.data.corpus_hash),
        )
        made.append(replica_class(site, registration, follower))
        async with asyncio.TaskGroup() as group:
            publishing = group.create_task(publish_axon(me, feed, served.port))
            announce(url)
            try:
                yield made[0]
            finally:
                publishing.cancel()


def main(argv: list[str], replica_class: type[Replica] = Replica) -> int:
    """``liquid miner``."""
    config = parse(NeuronConfig, "miner", argv)
    return run_program(config, mine(config, replica_class))
