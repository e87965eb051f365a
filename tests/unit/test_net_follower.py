"""A peer is reached where it registered last, whatever the frozen roster says."""

from __future__ import annotations

import asyncio

import pytest

from subnet.errors import LedgerCorrupt, Missing
from subnet.net.auth import dev_signer
from subnet.net.base import PeerAddress, Request, Response
from subnet.net.follower import LedgerFollower
from subnet.net.memory import MemoryNetwork
from subnet.records import LedgerEntry, LedgerKind, PeerRegistered, Record, RunOpened, to_lines
from subnet.swarm.ledger import append
from subnet.types import Hotkey, Role
from tests.tiny import text_corpus, tiny_run

OWNER, MINER = dev_signer("//owner").hotkey, dev_signer("//miner-1").hotkey


def ledger(*urls: str) -> list[LedgerEntry]:
    corpus = text_corpus()
    run = tiny_run(corpus)
    bodies: list[tuple[LedgerKind, Hotkey, Record]] = [
        (LedgerKind.RUN_OPENED, OWNER, RunOpened(run=run.model_dump(mode="json"), run_hash=run.hash(), owner=OWNER))
    ]
    for url in urls:
        record = PeerRegistered(
            run_hash=run.hash(),
            role=Role.MINER,
            url=url,
            tokens_per_s=1.0,
            peak_flops_per_s=1.0,
            memory_bytes=1,
            device="cpu",
            corpus_hash=corpus.digest,
        )
        bodies.append((LedgerKind.PEER_REGISTERED, MINER, record))
    entries: list[LedgerEntry] = []
    for kind, author, body in bodies:
        entries.append(append(entries[-1] if entries else None, kind, author, body, None, 1.0))
    return entries


def follow(*answers: list[LedgerEntry]) -> LedgerFollower:
    """A follower that has polled as often as there are answers."""
    waiting = list(answers)

    async def handle(request: Request) -> Response:
        del request
        return Response(200, to_lines(waiting.pop(0)))

    async def main() -> LedgerFollower:
        network = MemoryNetwork()
        network.attach(OWNER, handle)
        follower = LedgerFollower(network.attach(MINER, handle), PeerAddress(OWNER, "memory://owner"))
        for _ in answers:
            await follower.poll(0.0)
        return follower

    return asyncio.run(main())


def test_a_restarted_peer_is_reached_at_its_new_address() -> None:
    follower = follow(ledger("http://h:1", "http://h:2"))
    assert follower.address_of(MINER).url == "http://h:2"
    with pytest.raises(Missing):
        follower.address_of(OWNER)


def test_a_fork_is_refused_and_not_folded() -> None:
    first, other = ledger("http://h:1", "http://h:2"), ledger("http://h:1", "http://h:3", "http://h:4")
    follower = follow(first[:2])
    assert follower.prefix(1, first[1].hash) == first[:2]
    with pytest.raises(LedgerCorrupt):
        follower.prefix(1, first[0].hash)
    with pytest.raises(LedgerCorrupt):
        follow(first, other[3:])
