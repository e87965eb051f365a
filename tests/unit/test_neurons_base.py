"""How the programs find the orchestrator, publish where they are, live on chain, and what code they end with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from neurons.base import (
    EXIT_AGAIN,
    EXIT_CRASHED,
    EXIT_REFUSED,
    Neuron,
    exit_code,
    fetch_run,
    find_orchestrator,
    following_chain,
    publish_axon,
    published_url,
    require_registered,
    run_program,
)
from neurons.settings import NeuronConfig
from subnet.chain.base import Chain
from subnet.chain.memory import PERMIT_STAKE_RAO, MemoryChain, MemoryLedgerChain
from subnet.clock import WallClock, run_virtual
from subnet.errors import (
    ChainNotNow,
    ChainRefused,
    ChainUnreachable,
    ConfigError,
    DeadlineExceeded,
    Forbidden,
    LedgerCorrupt,
    LiquidError,
    NotRegistered,
    OwnerChanged,
    Unavailable,
)
from subnet.net.auth import dev_signer
from subnet.net.base import PeerAddress, Request, Response
from subnet.net.memory import MemoryNetwork
from subnet.net.messages import RunInfo
from subnet.records import PROTOCOL
from subnet.types import Hotkey, Uid
from tests.tiny import text_corpus, tiny_run
from tests.unit.heard_events import same_logger

OWNER, MINER, FORGER = dev_signer("//owner"), dev_signer("//miner-1"), dev_signer("//forger")
TEMPO_BLOCKS = 10


@pytest.fixture(autouse=True)
def _same_logger() -> Iterator[None]:
    with same_logger():
        yield


@pytest.fixture
def ledger() -> MemoryLedgerChain:
    """uid 0 owner, 1 miner."""
    made = MemoryLedgerChain(("cold", OWNER.hotkey), tempo_blocks=TEMPO_BLOCKS)
    made.register("cold miner", MINER.hotkey, PERMIT_STAKE_RAO)
    return made


def config(**settings: Any) -> NeuronConfig:
    return NeuronConfig(**{"axon": {"ip": "127.0.0.1"}, "subtensor": {"network": "local"}, **settings})


def miner(chain: Chain | None, answer: Callable[[Request], Awaitable[Response]] | None = None) -> Neuron:
    async def nobody(request: Request) -> Response:
        return Response(404, b"{}")

    network = MemoryNetwork()
    network.attach(OWNER.hotkey, answer or nobody)
    return Neuron(config(), MINER, chain, network.attach(MINER.hotkey, nobody), WallClock())


def on(ledger: MemoryLedgerChain) -> MemoryChain:
    return MemoryChain(ledger, "cold miner", MINER.hotkey)


# --- exit codes


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (ConfigError("x"), EXIT_REFUSED),
        (NotRegistered("x"), EXIT_REFUSED),
        (ChainRefused("x"), EXIT_REFUSED),
        (ChainNotNow("x"), EXIT_AGAIN),
        (ChainUnreachable("x"), EXIT_AGAIN),
        (DeadlineExceeded("x"), EXIT_AGAIN),
        (OwnerChanged("x"), EXIT_AGAIN),
        (LedgerCorrupt("x"), EXIT_CRASHED),
        (Forbidden("x"), EXIT_CRASHED),
    ],
)
def test_the_exit_code_says_whether_to_start_again(
    failure: LiquidError, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    async def work() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())

    async def fail() -> None:
        raise failure

    assert exit_code(failure) == code
    assert run_program(config(), work()) == code
    told = capsys.readouterr().err
    assert str(failure) in told
    assert "Traceback" not in told


def test_what_nobody_foresaw_is_a_crash_with_its_stack(capsys: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        raise LookupError("surprise")

    assert run_program(config(), work()) == EXIT_CRASHED
    assert "LookupError: surprise" in capsys.readouterr().err


# --- the orchestrator


def test_the_orchestrator_is_the_owners_axon_on_chain(ledger: MemoryLedgerChain) -> None:
    with pytest.raises(Unavailable, match="serves no axon"):
        find_orchestrator(config(), ledger.snapshot())
    ledger.serve_axon(OWNER.hotkey, "1.2.3.4", 80)
    assert find_orchestrator(config(), ledger.snapshot()) == PeerAddress(OWNER.hotkey, "http://1.2.3.4:80")
    named = config(orchestrator={"url": "http://5.6.7.8:90/"})
    assert find_orchestrator(named, ledger.snapshot()) == PeerAddress(OWNER.hotkey, "http://5.6.7.8:90")


def test_an_owner_that_the_chain_does_not_know_is_refused(ledger: MemoryLedgerChain) -> None:
    forged = config(orchestrator={"url": "http://5.6.7.8:90", "hotkey": FORGER.hotkey})
    with pytest.raises(ConfigError, match="not the hotkey of the subnet's owner on chain"):
        find_orchestrator(forged, ledger.snapshot())


def test_without_a_chain_both_halves_must_be_named() -> None:
    with pytest.raises(ConfigError, match="who owns"):
        find_orchestrator(config(), None)
    with pytest.raises(ConfigError, match="where"):
        find_orchestrator(config(orchestrator={"hotkey": OWNER.hotkey}), None)


def test_a_run_that_names_another_owner_is_refused() -> None:
    run = tiny_run(text_corpus())

    def info(owner: Hotkey) -> bytes:
        return RunInfo(run=run.model_dump(mode="json"), run_hash=run.hash(), owner=owner, protocol=PROTOCOL).encoded()

    async def fetch(owner: Hotkey) -> Hotkey:
        async def answer(request: Request) -> Response:
            return Response(200, info(owner))

        found, _ = await fetch_run(miner(None, answer), PeerAddress(OWNER.hotkey, "memory://owner"))
        return found.owner

    assert asyncio.run(fetch(OWNER.hotkey)) == OWNER.hotkey
    with pytest.raises(ConfigError, match="owner"):
        asyncio.run(fetch(FORGER.hotkey))


# --- on chain


def test_who_has_no_place_is_told_what_to_type(ledger: MemoryLedgerChain) -> None:
    async def main() -> None:
        assert await require_registered(miner(on(ledger))) is not None
        assert await require_registered(miner(None)) is None
        ledger.replace(Uid(1), "cold", FORGER.hotkey)
        with pytest.raises(NotRegistered, match="btcli subnets register --netuid 1 --wallet default"):
            await require_registered(miner(on(ledger)))

    asyncio.run(main())


@pytest.mark.parametrize("ip", ["0.0.0.0", "::"])
def test_an_address_to_listen_on_is_not_published(ip: str) -> None:
    with pytest.raises(ConfigError, match=r"--axon\.external_ip"):
        published_url(config(axon={"ip": ip}), 80)
    assert published_url(config(axon={"ip": ip, "external_ip": "1.2.3.4", "external_port": 81}), 80) == (
        "http://1.2.3.4:81"
    )


class Limited(MemoryChain):
    """Refuses the first addresses that it is given."""

    def __init__(self, ledger: MemoryLedgerChain, *refusals: LiquidError) -> None:
        super().__init__(ledger, "cold miner", MINER.hotkey)
        self._refusals = list(refusals)
        self.num_served = 0

    async def serve_axon(self, ip: str, port: int) -> None:
        self.num_served += 1
        if self._refusals:
            raise self._refusals.pop(0)
        await super().serve_axon(ip, port)


def published(chain: Limited) -> str:
    """The axon on chain after publishing."""

    async def main() -> str:
        me = miner(chain)
        async with following_chain(me, await chain.snapshot()) as feed:
            await publish_axon(me, feed, 4321)
            await publish_axon(me, feed, 4321)
        place = (await chain.snapshot()).neuron(MINER.hotkey)
        return place.axon if place else ""

    return run_virtual(main())


def test_an_address_is_published_as_soon_as_the_chain_allows(ledger: MemoryLedgerChain) -> None:
    assert published(Limited(ledger, ChainNotNow("limit"), ChainUnreachable("away"))) == "127.0.0.1:4321"


def test_an_address_that_is_there_already_is_not_sent_again(ledger: MemoryLedgerChain) -> None:
    ledger.serve_axon(MINER.hotkey, "127.0.0.1", 4321)
    chain = Limited(ledger)
    assert published(chain) == "127.0.0.1:4321"
    assert chain.num_served == 0


def test_an_address_that_is_never_taken_ends_the_program(ledger: MemoryLedgerChain) -> None:
    with pytest.RaisesGroup(ChainRefused):
        published(Limited(ledger, ChainRefused("InvalidIpAddress")))


def lived(ledger: MemoryLedgerChain, fate: Callable[[], None]) -> list[str]:
    """What a program does that meets ``fate``."""
    done: list[str] = []

    async def main() -> None:
        me = miner(on(ledger))
        async with following_chain(me, await require_registered(me)):
            fate()
            try:
                while True:
                    ledger.step()
                    await asyncio.sleep(1)
                    done.append("works")
            finally:
                await asyncio.sleep(0.5)
                done.append("drained")

    with pytest.RaisesGroup(NotRegistered):
        run_virtual(main())
    return done


def test_a_neuron_that_lost_its_place_drains_and_ends(ledger: MemoryLedgerChain) -> None:
    done = lived(ledger, lambda: ledger.replace(Uid(1), "cold", FORGER.hotkey))
    assert done[-1] == "drained"
    assert "works" in done


def test_events_can_be_read_by_machines(capsys: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        raise NotRegistered("x")

    run_program(config(logging={"json_lines": True}), work())
    first = json.loads(capsys.readouterr().err.splitlines()[0])
    assert (first["event"], first["reason"]) == ("stopped", "not_registered")
