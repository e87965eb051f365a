"""The miner: trains the stage that the orchestrator assigns. Wiring only; the work is ``subnet.replica``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import NamedTuple
from urllib.parse import urljoin

import stamina
import torch

from neurons.base import (
    NOWHERE,
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
from subnet.errors import ConfigError, OutOfTurn
from subnet.log import Event, event
from subnet.model.stages import full_model
from subnet.net.base import PeerAddress, Request, Response, relay_url
from subnet.net.follower import LedgerFollower
from subnet.net.outbound import behind_relay
from subnet.net.reach import PROBE_PATH, answer_probe, is_reachable
from subnet.net.server import serve
from subnet.records import PeerRegistered
from subnet.replica.lifecycle import Replica
from subnet.replica.serving import request_caps
from subnet.replica.site import Site
from subnet.train.device import CPU, autocast, find_device, make_repeatable, memory_bytes, spent_s
from subnet.types import Digest, MicrobatchId, Role

# Square products of widths from 256 to 1536 reach 93 to 95 GFLOP/s on one core of the benches' machine, one of 2048 no
# more; all repetitions of this width take a fifth of a second there. CUDA devices want wider ones (not measured).
GEMM_WIDTHS = {"cpu": 1024, "cuda": 8192}
GEMM_REPETITIONS = 8
PROBE_MICROBATCHES = 2  # timed after one that warms up; enough to rank devices, short enough to start at once


class Speed(NamedTuple):
    """What this machine can do, as measured at start."""

    tokens_per_s: float
    peak_flops_per_s: float


def measure_tokens_per_s(run: RunConfig, corpus: Corpus, device: torch.device = CPU) -> float:
    """Tokens of the whole model, forward and backward, per second of the device's work."""
    model, took_s = full_model(run).to(device), 0.0
    for number in range(PROBE_MICROBATCHES + 1):
        batch = torch.from_numpy(tokens(run, corpus, MicrobatchId(number))).to(device)
        began_s = spent_s(device)
        with autocast(device):
            losses = model.losses(batch)
        torch.autograd.backward(losses)
        took_s += (spent_s(device) - began_s) if number else 0.0
    return PROBE_MICROBATCHES * run.microbatch_tokens / took_s


def measure_peak_flops_per_s(device: torch.device = CPU) -> float:
    """FLOP/s of the fastest of a few square matrix products, in the precision that engines compute in.

    The denominator of MFU (algorithms.md section 9, rule 5), in seconds of the device's work.
    """
    width, dtype = GEMM_WIDTHS[device.type], torch.float32 if device.type == "cpu" else torch.bfloat16
    factor = torch.ones(width, width, dtype=dtype, device=device)
    product, fastest_s = torch.empty_like(factor), float("inf")
    for _ in range(GEMM_REPETITIONS):
        began_s = spent_s(device)
        torch.mm(factor, factor, out=product)
        fastest_s = min(fastest_s, spent_s(device) - began_s)
    return 2.0 * width**3 / fastest_s


async def mine(config: NeuronConfig, replica_class: type[Replica]) -> None:
    """Join the run and serve it until this program is told to stop."""
    torch.set_num_threads(1)
    with ThreadPoolExecutor(1, "tensors") as executor:
        async with neuron(config) as me:
            if config.axon.relay == "never":
                published_url(config, config.axon.port)  # a wrong address is told now, not after the work
            snapshot = await require_registered(me)
            orchestrator = find_orchestrator(config, snapshot)
            info, run = await fetch_run(me, orchestrator)
            loop = asyncio.get_running_loop()
            corpus = await loop.run_in_executor(executor, open_corpus, run)
            device = find_device(run, config.neuron.device)
            make_repeatable(device)
            speed = await loop.run_in_executor(executor, measure_tokens_per_s, run, corpus, device)
            peak = await loop.run_in_executor(executor, measure_peak_flops_per_s, device)
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
                device=device,
            )
            make = partial(_make, me, site, follower, Speed(speed, peak), replica_class)
            async with (
                following_chain(me, snapshot) as feed,
                _served(me, site, make, feed, info.relay) as replica,
            ):
                try:
                    await replica.run()
                    # A run that has stopped is served on: its last rounds may still be audited.
                    await asyncio.Event().wait()
                finally:
                    await replica.goodbye()


def _make(
    me: Neuron, site: Site, follower: LedgerFollower, speed: Speed, replica_class: type[Replica], url: str
) -> Replica:
    registration = PeerRegistered(
        run_hash=site.run.hash(),
        role=Role.MINER,
        url=url,
        tokens_per_s=speed.tokens_per_s,
        peak_flops_per_s=speed.peak_flops_per_s,
        memory_bytes=memory_bytes(site.device, total_memory_bytes()),
        device=str(site.device),
        corpus_hash=Digest(site.run.data.corpus_hash),
    )
    return replica_class(site, registration, follower)


@asynccontextmanager
async def _served(
    me: Neuron, site: Site, make: Callable[[str], Replica], feed: ChainFeed | None, relay: str
) -> AsyncIterator[Replica]:
    """A replica whose routes can be reached and whose address is known to all; on chain as soon as the chain allows.

    ``make``: the replica that is reached at a URL. ``relay``: where the orchestrator's relay is; empty: it has none.
    """
    made: list[Replica] = []
    own_urls: list[str] = []

    async def handle(request: Request) -> Response:
        if request.path == PROBE_PATH and request.method == "POST" and request.sender == site.owner and own_urls:
            return answer_probe(request, me.signer, own_urls[0])
        if not made:
            raise OutOfTurn("This miner is still starting.")
        return await made[0].handle(request)

    axon = me.config.axon
    async with (
        serve(handle, me.verifier(), axon.ip, axon.port, request_caps(site.run)) as served,
        AsyncExitStack() as way,
        asyncio.TaskGroup() as group,
    ):
        if await _needs_relay(me, site.orchestrator, served.port, own_urls, relay):
            at = PeerAddress(site.owner, urljoin(site.orchestrator.url, relay))
            await way.enter_async_context(behind_relay(served.gate, me.signer, at))
            url = relay_url(at.url, me.signer.hotkey)
            event(Event.RELAY_USED, url=url, setting=axon.relay)
            publishing = None  # strangers could not use an address that only signed requests of the run pass
        else:
            url = published_url(me.config, served.port)
            publishing = group.create_task(publish_axon(me, feed, served.port))
        made.append(make(url))
        announce(url)
        try:
            yield made[0]
        finally:
            if publishing is not None:
                publishing.cancel()


async def _needs_relay(me: Neuron, orchestrator: PeerAddress, port: int, own_urls: list[str], relay: str) -> bool:
    """Whether to be reached through the relay at ``relay`` (empty: none is offered) instead of at an own address.

    ``own_urls`` gets the address that is probed, so that the probe can be answered.
    """
    axon = me.config.axon
    if axon.relay == "always" and not relay:
        raise ConfigError(
            "The orchestrator offers no relay.", remedy="Make this machine reachable, with --axon.relay never."
        )
    if axon.relay == "always" or (axon.relay == "auto" and relay and (axon.external_ip or axon.ip) in NOWHERE):
        return True
    url = published_url(me.config, port)
    own_urls.append(url)
    if axon.relay == "never" or not relay or await is_reachable(me.peers, orchestrator, url):
        return False
    remedy = "Forward the port and set --axon.external_ip to save the way over the relay."
    event(Event.PROBED, level=logging.WARNING, url=url, is_reachable=False, remedy=remedy)
    return True


def main(argv: list[str], replica_class: type[Replica] = Replica) -> int:
    """``liquid miner``."""
    config = parse(NeuronConfig, "miner", argv)
    stamina.instrumentation.set_on_retry_hooks(())  # each lost connection is an event of ours already
    return run_program(config, mine(config, replica_class))
