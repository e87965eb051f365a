"""The validator: replays random pieces of miners' journals and sets weights on chain. Wiring only."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

from incentives.scores import fold_scores
from incentives.weights import weights
from neurons.base import (
    Neuron,
    announce,
    fetch_run,
    find_orchestrator,
    following_chain,
    neuron,
    open_corpus,
    require_registered,
    run_program,
    total_memory_bytes,
)
from neurons.settings import NeuronConfig, parse
from subnet.chain.base import ChainSnapshot
from subnet.chain.feed import ChainFeed
from subnet.chain.weights import WeightSetter
from subnet.config import RunConfig
from subnet.errors import ChainError, Forbidden, LedgerCorrupt, Refused, Unavailable
from subnet.log import Event, event
from subnet.model.flops import stage_flops_per_token
from subnet.net.follower import LedgerFollower
from subnet.records import LedgerEntry, PeerRegistered, parse_head
from subnet.train.device import find_device, make_repeatable, memory_bytes
from subnet.types import Digest, Hotkey, Role, StageId
from subnet.verify.auditor import Auditor, AuditSite, BeaconSource

RETRY_S = 1.0
PERMIT_RETRY_S = 12.0  # a block of the real chain
CHAIN_POLL_S = 1.0  # between questions for the beacon's block, which is final a block or two after it is named
LINGER_TEMPOS = 2.5  # after the run has stopped: the owner commits the last head, and an epoch passes over it
NOT_SERVING = "http://127.0.0.1:9"  # validators ask and are never asked; the discard port says so


async def validate(config: NeuronConfig) -> None:
    """Audit and set weights until the run stops and its last verdicts are published, or this program is told to."""
    import torch

    torch.set_num_threads(1)
    with ThreadPoolExecutor(1, "tensors") as executor:
        async with neuron(config) as me:
            snapshot = await require_registered(me)
            orchestrator = find_orchestrator(config, snapshot)
            _, run = await fetch_run(me, orchestrator)
            corpus = await asyncio.get_running_loop().run_in_executor(executor, open_corpus, run)
            follower = LedgerFollower(me.peers, orchestrator)
            device = find_device(run, config.neuron.device)
            make_repeatable(device)
            memory = memory_bytes(device, total_memory_bytes())
            site = AuditSite(
                run, me.signer.hotkey, orchestrator, me.peers, corpus, executor, _beacon(me), device, memory
            )
            async with following_chain(me, snapshot, is_validator=True) as feed:
                await _register(me, site)
                announce(NOT_SERVING)
                async with asyncio.TaskGroup() as group:
                    background = [group.create_task(follower.run())]
                    if feed is not None:
                        background.append(group.create_task(_set_weights(feed, me.signer.hotkey, run, follower)))
                    await Auditor(site, follower).run()
                    if feed is not None:
                        await asyncio.sleep(LINGER_TEMPOS * (feed.tempo_s or 0.0))
                    for task in background:
                        task.cancel()


def _beacon(me: Neuron) -> BeaconSource:
    async def block_hash(number: int) -> str:
        assert me.chain is not None
        while True:
            try:
                found = await me.chain.block_hash(number)
            except (ChainError, Unavailable) as error:
                event(Event.CHAIN_FAILED, level=logging.WARNING, code=error.code)
                found = None
            if found is not None:
                return found
            await asyncio.sleep(CHAIN_POLL_S)

    return block_hash


async def _register(me: Neuron, site: AuditSite) -> None:
    registration = PeerRegistered(
        run_hash=site.run.hash(),
        role=Role.VALIDATOR,
        url=NOT_SERVING,
        tokens_per_s=0.0,
        peak_flops_per_s=0.0,
        memory_bytes=int(site.memory_bytes),
        device=str(site.device),
        corpus_hash=Digest(site.run.data.corpus_hash),
    )
    is_told = False
    while True:
        try:
            await me.peers.request(site.orchestrator, "POST", "/v1/register", registration.encoded(), timeout_s=10.0)
        except Unavailable:
            await asyncio.sleep(RETRY_S)
        except Forbidden as error:  # no permit (yet): it may come with the next epoch
            if not is_told:
                event(Event.REQUEST_REFUSED, level=logging.WARNING, path="/v1/register", reason=str(error))
            is_told = True
            await asyncio.sleep(PERMIT_RETRY_S)
        else:
            return


def weights_at(entries: list[LedgerEntry], run: RunConfig, snapshot: ChainSnapshot) -> dict[Hotkey, float]:
    """Weights from one ledger prefix; every validator computes the same."""
    flops = [stage_flops_per_token(run, StageId(stage)) for stage in range(run.stages.num_stages)]
    scores = fold_scores(entries, run, flops)
    registered = {known.hotkey for known in snapshot.neurons}
    return weights(scores.by_hotkey, scores.burned, snapshot.owner_hotkey, registered)


async def _set_weights(feed: ChainFeed, hotkey: Hotkey, run: RunConfig, follower: LedgerFollower) -> None:
    """Once per epoch: the ledger head that the owner committed on chain, scores of that prefix, weights."""
    setter = WeightSetter(feed.chain, hotkey)
    async for snapshot in feed.looks():
        try:
            head = parse_head(snapshot.commitments.get(snapshot.owner_hotkey, ""))
            if setter.look(snapshot) and head is not None:
                await follower.reaches(head[0], timeout_s=CHAIN_POLL_S)
                entries = follower.prefix(*head)
                wanted = await asyncio.to_thread(weights_at, entries, run, snapshot)
                await setter.set(snapshot, wanted)
        except (ChainError, Unavailable, Refused, LedgerCorrupt) as error:
            event(Event.WEIGHTS_ALARM, level=logging.WARNING, code=error.code, reason=str(error))


def main(argv: list[str]) -> int:
    """``liquid validator``."""
    config = parse(NeuronConfig, "validator", argv)
    return run_program(config, validate(config))
