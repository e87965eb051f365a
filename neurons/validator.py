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
    neuron,
    open_corpus,
    require_registered,
    run_program,
    total_memory_bytes,
)
from neurons.settings import NeuronConfig, parse
from neurons.standing import check
from subnet.chain.base import Chain, ChainSnapshot
from subnet.chain.weights import WeightSetter
from subnet.config import RunConfig
from subnet.errors import ChainError, LedgerCorrupt, Refused, Unavailable
from subnet.log import Event, event
from subnet.model.flops import stage_flops_per_token
from subnet.net.base import PeerAddress
from subnet.net.follower import LedgerFollower
from subnet.records import LedgerEntry, PeerRegistered, parse_head
from subnet.types import Digest, Hotkey, Role, StageId
from subnet.verify.auditor import Auditor, AuditSite, BeaconSource

RETRY_S = 1.0
CHAIN_POLL_S = 1.0  # between looks at the chain: a few blocks of a localnet, a fraction of a real one
LINGER_TEMPOS = 2.5  # after the run has stopped: the owner commits the last head, and an epoch passes over it
NOT_SERVING = "http://127.0.0.1:9"  # validators ask and are never asked; the discard port says so


async def validate(config: NeuronConfig) -> None:
    """Audit and set weights until the run stops and its last verdicts are published, or this program is told to."""
    import torch

    torch.set_num_threads(1)
    with ThreadPoolExecutor(1, "tensors") as executor:
        async with neuron(config) as me:
            orchestrator = find_orchestrator(config, await require_registered(me))
            _, run = await fetch_run(me, orchestrator)
            corpus = await asyncio.get_running_loop().run_in_executor(executor, open_corpus, run)
            follower = LedgerFollower(me.peers, orchestrator)
            site = AuditSite(run, me.signer.hotkey, orchestrator, me.peers, corpus, executor, _beacon(me))
            await _register(me, run, orchestrator)
            announce(NOT_SERVING)
            async with asyncio.TaskGroup() as group:
                background = [group.create_task(follower.run())]
                if me.chain is not None:
                    background.append(group.create_task(_set_weights(me.chain, me, run, follower, orchestrator.hotkey)))
                await Auditor(site, follower).run()
                if me.chain is not None:
                    await asyncio.sleep(LINGER_TEMPOS * await _tempo_s(me.chain))
                for task in background:
                    task.cancel()


async def _tempo_s(chain: Chain) -> float:
    """Length of an epoch, from two looks at the chain."""
    first = await chain.snapshot()
    await asyncio.sleep(CHAIN_POLL_S)
    second = await chain.snapshot()
    return first.tempo_blocks * CHAIN_POLL_S / max(second.block - first.block, 1)


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


def _say_permit(snapshot: ChainSnapshot, hotkey: Hotkey, had: bool) -> bool:
    """Whether this validator may set weights now; a change is said once. Audits go on without."""
    place = snapshot.neuron(hotkey)
    has = place is not None and place.validator_permit
    if has != had:
        stake_rao = place.stake_rao if place else 0
        event(Event.PERMIT_CHANGED, level=logging.WARNING, has_permit=has, stake_rao=stake_rao, block=snapshot.block)
    return has


async def _set_weights(chain: Chain, me: Neuron, run: RunConfig, follower: LedgerFollower, owner: Hotkey) -> None:
    """Once per epoch: the ledger head that the owner committed on chain, scores of that prefix, weights."""
    setter, had_permit = WeightSetter(chain, me.signer.hotkey), True
    while True:
        try:
            snapshot = await chain.snapshot()
            check(me.config, me.signer.hotkey, owner, snapshot)
            had_permit = _say_permit(snapshot, me.signer.hotkey, had_permit)
            is_due = setter.look(snapshot)
            head = parse_head(snapshot.commitments.get(snapshot.owner_hotkey, ""))
            if head is not None and is_due:
                await follower.reaches(head[0], timeout_s=CHAIN_POLL_S)
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
