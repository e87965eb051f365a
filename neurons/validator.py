"""The validator: replays random pieces of miners' journals and sets weights on chain. Wiring only."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

from incentives.scores import fold_scores
from incentives.weights import weights
from neurons.base import Neuron, announce, fetch_run, find_orchestrator, neuron, require_registered, run_program
from neurons.settings import NeuronConfig, parse
from subnet.chain.base import Chain, ChainSnapshot
from subnet.chain.weights import WeightSetter
from subnet.config import RunConfig
from subnet.errors import ChainError, LedgerCorrupt, Refused, Unavailable
from subnet.log import Event, event
from subnet.model.flops import stage_flops_per_token
from subnet.net.base import PeerAddress
from subnet.net.follower import LedgerFollower
from subnet.orchestrate.heads import parse_head
from subnet.records import PeerRegistered
from subnet.types import Digest, Hotkey, Role, StageId
from subnet.verify.auditor import Auditor, AuditSite

RETRY_S = 1.0
CHAIN_POLL_S = 1.0  # between looks at the chain, in localnet blocks of 0.25 s; a fraction of any tempo


async def validate(config: NeuronConfig) -> None:
    """Audit and set weights until the run stops and its last verdicts are published, or this program is told to."""
    import torch

    torch.set_num_threads(1)
    with ThreadPoolExecutor(1, "tensors") as executor:
        async with neuron(config) as me:
            snapshot = await require_registered(me)
            orchestrator = find_orchestrator(config, snapshot)
            _, run = await fetch_run(me, orchestrator)
            from neurons.corpus import open_corpus

            corpus = await asyncio.get_running_loop().run_in_executor(executor, open_corpus, run)
            follower = LedgerFollower(me.peers, orchestrator)
            site = AuditSite(run, me.signer.hotkey, orchestrator, me.peers, corpus, executor, _beacon(me))
            await _register(me, run, orchestrator)
            announce("")
            auditor = Auditor(site, follower)
            async with asyncio.TaskGroup() as group:
                background = [group.create_task(follower.run())]
                if me.chain is not None:
                    background.append(group.create_task(_weights(me, run, follower)))
                await auditor.run()
                if me.chain is None:
                    for task in background:
                        task.cancel()


def _beacon(me: Neuron) -> BeaconSource:
    async def block_hash(number: int) -> str | None:
        assert me.chain is not None
        try:
            return await me.chain.block_hash(number)
        except (ChainError, Unavailable) as error:
            event(Event.CHAIN_FAILED, level=logging.WARNING, code=error.code)
            return None

    return block_hash


async def _register(me: Neuron, run: RunConfig, orchestrator: PeerAddress) -> None:
    registration = PeerRegistered(
        run_hash=run.hash(),
        role=Role.VALIDATOR,
        url=NOT_SERVING,
        tokens_per_s=0.0,
        memory_bytes=total_memory_bytes(),
        device=me.config.neuron.device,
        corpus_hash=Digest(run.data.corpus_hash),
    )
    while True:
        try:
            await me.peers.request(orchestrator, "POST", "/v1/register", registration.encoded(), timeout_s=10.0)
        except Unavailable:
            await asyncio.sleep(RETRY_S)
        else:
            return


def weights_at(entries: list[LedgerEntry], run: RunConfig, snapshot: ChainSnapshot) -> dict[Hotkey, float]:
    """Weights from one ledger prefix; every validator computes the same."""
    flops = [stage_flops_per_token(run, StageId(stage)) for stage in range(run.stages.num_stages)]
    scores = fold_scores(entries, run, flops)
    registered = {known.hotkey for known in snapshot.neurons}
    return weights(scores.by_hotkey, scores.burned, snapshot.owner_hotkey, registered)


async def _set_weights(chain: Chain, me: Neuron, run: RunConfig, follower: LedgerFollower) -> None:
    """Once per epoch: the ledger head that the owner committed on chain, scores of that prefix, weights."""
    setter = WeightSetter(chain, me.signer.hotkey, VERSION_KEY)
    while True:
        try:
            snapshot = await chain.snapshot()
            head = parse_head(snapshot.commitments.get(snapshot.owner_hotkey, ""))
            if head is not None and setter.is_due(snapshot):
                await follower.until(lambda view, seq=head[0]: view.seq >= seq, timeout_s=CHAIN_POLL_S)  # type: ignore[misc]
                entries = follower.prefix(*head)
                wanted = await asyncio.to_thread(weights_at, entries, run, snapshot)
                await setter.set(snapshot, wanted)
        except (ChainError, Unavailable, Refused, LedgerCorrupt) as error:
            event(Event.WEIGHTS_ALARM, level=logging.WARNING, code=error.code, reason=str(error))
        await asyncio.sleep(CHAIN_POLL_S)


def main(argv: list[str]) -> int:
    """``liquid validator``."""
    config = parse(NeuronConfig, "validator", argv)
    return run_program(config, validate(config))
