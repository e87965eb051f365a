"""The orchestrator: schedules one run for the subnet's owner. Wiring only; the decisions are ``subnet.swarm``."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing

from neurons.base import (
    Neuron,
    announce,
    following_chain,
    neuron,
    publish_axon,
    published_url,
    require_registered,
    run_program,
)
from neurons.settings import OrchestratorConfig, parse
from subnet.chain.feed import ChainFeed, Pace
from subnet.config import AUTO, RunConfig, load_run_config
from subnet.data.corpus import load_corpus
from subnet.errors import ChainError, ConfigError, Unavailable
from subnet.log import Event, event
from subnet.net.auth import Verifier
from subnet.net.base import RELAY_PREFIX
from subnet.net.blobs import StoreBlobs
from subnet.net.reach import Prober, is_private
from subnet.net.relay import Relay, RelayLimits
from subnet.net.server import serve
from subnet.orchestrate.ledger_store import SqlLedgerStore
from subnet.orchestrate.service import Orchestrator, OrchestratorParts
from subnet.orchestrate.submissions import relayed_body_bytes, request_caps
from subnet.types import Hotkey, Role


def resolve_run(name: str) -> RunConfig:
    """The RunConfig with the corpus hash of this machine where the file says ``auto``."""
    run = load_run_config(name)
    if run.data.corpus_hash != AUTO:
        return run
    return run.with_values(**{"data.corpus_hash": load_corpus(run.data.source, run.data.held_out_share).digest})


class ChainView:
    """What this orchestrator knows of the chain: where it stands, and who has a place in the subnet."""

    def __init__(self, feed: ChainFeed | None) -> None:
        self._feed = feed

    def block(self) -> int:
        """Number of the block that should be the newest now, seen or not: none that is named after it is known yet.

        -1 without a chain.
        """
        return self._feed.expected_block() if self._feed else -1

    def admit(self, hotkey: Hotkey, role: Role) -> bool:
        """Miners need a place in the subnet, validators a permit: a verdict can take somebody's pay."""
        if self._feed is None:
            return True
        place = self._feed.newest.neuron(hotkey)
        return place is not None and (role is not Role.VALIDATOR or place.validator_permit)


async def orchestrate(config: OrchestratorConfig) -> None:
    """Serve a run until this program is told to stop."""
    published_url(config, config.axon.port)  # wrong addresses are told now, not after the work
    run = await asyncio.to_thread(resolve_run, config.run)
    async with neuron(config) as me:
        snapshot = await require_registered(me)
        if snapshot is not None and snapshot.owner_hotkey != me.signer.hotkey:
            raise ConfigError(
                f"The owner hotkey of subnet {config.netuid} on chain is {snapshot.owner_hotkey}, not this wallet's.",
                remedy="Start the orchestrator with the owner's hotkey: --wallet.name and --wallet.hotkey.",
            )
        async with following_chain(me, snapshot, pace=Pace.BLOCK) as feed:
            await _serve_run(me, run, feed)


async def _serve_run(me: Neuron, run: RunConfig, feed: ChainFeed | None) -> None:
    config = me.config
    assert isinstance(config, OrchestratorConfig)
    folder = config.neuron.data_dir.expanduser() / run.hash()[:16] / "orchestrator"
    folder.mkdir(parents=True, exist_ok=True)
    view = ChainView(feed)
    store = SqlLedgerStore(config.ledger_url or f"sqlite+aiosqlite:///{folder / 'ledger.sqlite'}")
    prober = Prober(me.signer, me.clock, allows_private=is_private(config.axon.external_ip or config.axon.ip))
    async with aclosing(prober):
        try:
            blobs = StoreBlobs(folder / "blobs")
            parts = OrchestratorParts(me.signer, store, blobs, me.clock, view, view.admit, prober.probe)
            service = Orchestrator(run, parts, stop_after_rounds=config.stop_after_rounds or None)
            await service.start()
            await _serve(me, config, run, service, view, feed)
        finally:
            await store.close()


async def _serve(
    me: Neuron,
    config: OrchestratorConfig,
    run: RunConfig,
    service: Orchestrator,
    view: ChainView,
    feed: ChainFeed | None,
) -> None:
    verifier, axon = me.verifier(), config.axon
    relay = _relay(run, verifier, view) if config.relay else None
    async with (
        serve(service.handle, verifier, axon.ip, axon.port, request_caps(run), relay=relay) as served,
        asyncio.TaskGroup() as group,
    ):
        service.relay = published_url(config, served.port) + RELAY_PREFIX if relay is not None else ""
        group.create_task(_publish(me, feed, served.port))
        if feed is not None:
            group.create_task(_commit_heads(feed, service))
        await service.run_forever()
        # A run that has stopped is served until this program is told to stop: its ledger may be asked for.
        await asyncio.Event().wait()


def _relay(run: RunConfig, verifier: Verifier, view: ChainView) -> Relay:
    limits = RelayLimits(max_body_bytes=relayed_body_bytes(run))
    return Relay(verifier, lambda hotkey: view.admit(hotkey, Role.MINER), limits)


async def _publish(me: Neuron, feed: ChainFeed | None, port: int) -> None:
    """Say where this orchestrator is: on chain, where strangers look, and then to whoever started it."""
    await publish_axon(me, feed, port)
    announce(published_url(me.config, port))


async def _commit_heads(feed: ChainFeed, service: Orchestrator) -> None:
    """Commit the ledger's head once per epoch."""
    published_at = -1
    async for snapshot in feed.looks():
        if snapshot.last_epoch_block == published_at:
            continue
        head = await service.publish_epoch(snapshot.block)
        try:
            await feed.chain.commit(head.on_chain())
            published_at = snapshot.last_epoch_block
        except (ChainError, Unavailable) as error:
            event(Event.CHAIN_FAILED, level=logging.WARNING, code=error.code, reason=str(error))


def main(argv: list[str]) -> int:
    """``liquid orchestrator``."""
    config = parse(OrchestratorConfig, "orchestrator", argv)
    return run_program(config, orchestrate(config))
