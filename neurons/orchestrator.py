"""The orchestrator: schedules one run for the subnet's owner. Wiring only; the decisions are ``subnet.swarm``."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing

from neurons.base import Neuron, announce, neuron, published_url, require_registered, run_program
from neurons.settings import OrchestratorConfig, parse
from neurons.standing import check
from subnet.chain.base import Chain, ChainSnapshot
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

CHAIN_POLL_S = 1.0  # between looks at the chain
UNSPECIFIED = ("", "0.0.0.0", "::")  # listening on every address, publishing none


def resolve_run(name: str) -> RunConfig:
    """The RunConfig with the corpus hash of this machine where the file says ``auto``."""
    run = load_run_config(name)
    if run.data.corpus_hash != AUTO:
        return run
    return run.with_values(**{"data.corpus_hash": load_corpus(run.data.source, run.data.held_out_share).digest})


class ChainView:
    """What this orchestrator knows of the chain: its newest block, and who has a place in the subnet."""

    def __init__(self, snapshot: ChainSnapshot | None) -> None:
        self.snapshot = snapshot

    def block(self) -> int:
        """Number of the newest known block; -1 without a chain."""
        return self.snapshot.block if self.snapshot else -1

    def admit(self, hotkey: Hotkey, role: Role) -> bool:
        """Miners need a place in the subnet, validators a permit: a verdict can take somebody's pay."""
        if self.snapshot is None:
            return True
        place = self.snapshot.neuron(hotkey)
        return place is not None and (role is not Role.VALIDATOR or place.validator_permit)


async def orchestrate(config: OrchestratorConfig) -> None:
    """Serve a run until this program is told to stop."""
    run = await asyncio.to_thread(resolve_run, config.run)
    async with neuron(config) as me:
        snapshot = await require_registered(me)
        if snapshot is not None and snapshot.owner_hotkey != me.signer.hotkey:
            raise ConfigError(
                f"The owner hotkey of subnet {config.netuid} on chain is {snapshot.owner_hotkey}, not this wallet's.",
                remedy="Start the orchestrator with the owner's hotkey: --wallet.name and --wallet.hotkey.",
            )
        folder = config.neuron.data_dir.expanduser() / run.hash()[:16] / "orchestrator"
        folder.mkdir(parents=True, exist_ok=True)
        seen = ChainView(snapshot)
        store = SqlLedgerStore(config.ledger_url or f"sqlite+aiosqlite:///{folder / 'ledger.sqlite'}")
        prober = Prober(me.signer, me.clock, allows_private=is_private(config.axon.external_ip or config.axon.ip))
        async with aclosing(prober):
            blobs = StoreBlobs(folder / "blobs")
            parts = OrchestratorParts(me.signer, store, blobs, me.clock, seen, seen.admit, prober.probe)
            service = Orchestrator(run, parts, stop_after_rounds=config.stop_after_rounds or None)
            await service.start()
            verifier, axon = me.verifier(), config.axon
            relay = _relay(run, verifier, seen) if config.relay else None
            async with serve(service.handle, verifier, axon.ip, axon.port, request_caps(run), relay=relay) as served:
                service.relay = _announced_relay(config, served.port) if relay is not None else ""
                await _serve_run(me, service, seen, served.port)
        await store.close()


def _relay(run: RunConfig, verifier: Verifier, seen: ChainView) -> Relay:
    limits = RelayLimits(max_body_bytes=relayed_body_bytes(run))
    return Relay(verifier, lambda hotkey: seen.admit(hotkey, Role.MINER), limits)


def _announced_relay(config: OrchestratorConfig, port: int) -> str:
    """The relay's address, or its path where this machine does not know by which address it is reached."""
    is_unknown = (config.axon.external_ip or config.axon.ip) in UNSPECIFIED
    return RELAY_PREFIX if is_unknown else published_url(config, port) + RELAY_PREFIX


async def _serve_run(me: Neuron, service: Orchestrator, seen: ChainView, port: int) -> None:
    url = published_url(me.config, port)
    if me.chain is not None:
        await me.chain.serve_axon(me.config.axon.external_ip or me.config.axon.ip, port)
    announce(url)
    async with asyncio.TaskGroup() as group:
        if me.chain is not None:
            group.create_task(_follow_chain(me.chain, me, service, seen))
        await service.run_forever()
        # A run that has stopped is served until this program is told to stop: its ledger and model may be asked for.
        await asyncio.Event().wait()


async def _follow_chain(chain: Chain, me: Neuron, service: Orchestrator, seen: ChainView) -> None:
    """Keep the view of the chain fresh and commit the ledger's head once per epoch."""
    published_at = -1
    while True:
        try:
            snapshot = await chain.snapshot()
            check(me.config, me.signer.hotkey, me.signer.hotkey, snapshot)
            seen.snapshot = snapshot
            epoch = snapshot.last_epoch_block
            if epoch != published_at:
                head = await service.publish_epoch(snapshot.block)
                await chain.commit(head.on_chain())
                published_at = epoch
        except (ChainError, Unavailable) as error:
            event(Event.CHAIN_FAILED, level=logging.WARNING, code=error.code, reason=str(error))
        await asyncio.sleep(CHAIN_POLL_S)


def main(argv: list[str]) -> int:
    """``liquid orchestrator``."""
    config = parse(OrchestratorConfig, "orchestrator", argv)
    return run_program(config, orchestrate(config))
