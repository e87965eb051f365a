"""The orchestrator's other routes: the ledger by long poll, blobs, the epoch head, what people and peers look at."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

import pytest

from subnet.clock import LoopClock, run_virtual
from subnet.errors import Forbidden, LedgerCorrupt, Malformed, Missing
from subnet.hashing import sha256
from subnet.net.base import ANONYMOUS, Request
from subnet.net.messages import BlobStored, ProbeReply, ProbeRequest, RunInfo
from subnet.orchestrate.service import MAX_ENTRIES, Orchestrator, OrchestratorParts
from subnet.records import LedgerEntry, decode, parse_lines
from subnet.swarm.ledger import fold
from subnet.swarm.roster import shard_owners
from subnet.types import Hotkey, Phase, Role, RoundId, StageId
from tests.unit.fake_swarm import MINERS, RUN, Conduct, FakeSigner, FakeSwarm, fake_swarm, registration

LAZY = {name.replace("-", "_"): Conduct(skips_shards=True) for name in MINERS}


def run(main: Coroutine[Any, Any, None]) -> None:
    run_virtual(main)


async def ask(
    swarm: FakeSwarm, path: str, sender: Hotkey = ANONYMOUS, method: str = "GET", body: bytes = b"", **query: object
) -> bytes:
    assert swarm.service is not None
    fields = {name: str(value) for name, value in query.items()}
    return (await swarm.service.handle(Request(sender, method, path, fields, body, None))).body


def test_a_poll_returns_with_the_next_entry_and_otherwise_at_its_deadline() -> None:
    async def main() -> None:
        swarm = FakeSwarm()
        await swarm.start()
        started_s = LoopClock().now_s()
        assert await ask(swarm, "/v1/ledger", after=0, wait_s=7) == b""
        assert LoopClock().now_s() - started_s == pytest.approx(7)
        poll = asyncio.create_task(ask(swarm, "/v1/ledger", after=0, wait_s=20))
        await asyncio.sleep(3)
        assert not poll.done()
        await swarm.post(MINERS[0], "/v1/register", registration())
        [entry, *_] = parse_lines(await poll)
        assert (entry.seq, entry.author) == (1, MINERS[0])
        assert LoopClock().now_s() - started_s < 11
        await swarm.kill()

    run(main())


def test_a_reader_that_comes_late_gets_the_whole_ledger_in_pieces() -> None:
    async def main() -> None:
        async with fake_swarm() as swarm:
            await swarm.until(lambda view: view.seq > MAX_ENTRIES)
            read: list[LedgerEntry] = []
            while len(read) <= swarm.view.seq:
                piece = parse_lines(await ask(swarm, "/v1/ledger", after=len(read) - 1))
                assert 0 < len(piece) <= MAX_ENTRIES
                read += piece
            assert fold(read) == swarm.view

    run(main())


@pytest.mark.parametrize("query", [{"after": "x"}, {"wait_s": "soon"}])
def test_a_poll_that_cannot_be_read_is_refused(query: dict[str, str]) -> None:
    async def main() -> None:
        async with fake_swarm() as swarm:
            with pytest.raises(Malformed):
                await ask(swarm, "/v1/ledger", **query)

    run(main())


def test_blobs_are_kept_under_the_key_of_who_sent_them_and_only_for_owners() -> None:
    async def main() -> None:
        async with fake_swarm(**LAZY) as swarm:
            await swarm.reaches(Phase.MERGING, 0)
            owners = shard_owners(swarm.view, RoundId(0), StageId(0), 1)
            place = {"round": 0, "stage": 0, "shard": 1}
            stored = decode(
                BlobStored, await ask(swarm, "/v1/blobs", owners[0], "PUT", b"values", **place, part="params")
            )
            assert owners[0] in stored.key
            assert stored.digest == sha256(b"values")
            assert await ask(swarm, f"/v1/blobs/{stored.key}", owners[1]) == b"values"
            stranger = next(hotkey for hotkey in MINERS if hotkey not in owners)
            with pytest.raises(Forbidden):
                await ask(swarm, "/v1/blobs", stranger, "PUT", b"values", **place, part="params")
            with pytest.raises(Malformed):
                await ask(swarm, "/v1/blobs", owners[0], "PUT", b"values", **place, part="../params")
            with pytest.raises(Missing):
                await ask(swarm, "/v1/blobs/none", owners[0])

    run(main())


def test_the_epoch_head_names_the_prefix_before_it() -> None:
    async def main() -> None:
        async with fake_swarm() as swarm:
            await swarm.closes(0)
            assert swarm.service is not None
            head = await swarm.service.publish_epoch(12)
            entries = await swarm.store.load()
            assert entries[head.seq].hash == head.head
            assert swarm.view.epoch_heads == [head]

    run(main())


def test_status_and_me_say_what_is_going_on() -> None:
    async def main() -> None:
        async with fake_swarm(miner_0=Conduct(never_commits=True)) as swarm:
            await swarm.reaches(Phase.COMMITTING, 0)
            shown = json.loads(await ask(swarm, "/v1/status"))
            assert (shown["round"], shown["phase"], shown["reason"]) == (0, "committing", "drained")
            assert shown["deadline_s"] == swarm.view.deadline_s > shown["now_s"]
            assert [miner["hotkey"] for miner in shown["miners"]] == list(MINERS)
            assert all(miner["beat"]["applied"] == 1 for miner in shown["miners"])
            assert shown["bytes_per_token_per_boundary"] == 3.0
            assert (shown["seq"], shown["head"]) == (swarm.view.seq, swarm.view.head)
            mine = json.loads(await ask(swarm, "/v1/me", MINERS[0]))
            assert (mine["reason"], mine["owner"]) == ("commitment-due", MINERS[0])
            assert mine["deadline_s"] == swarm.view.deadline_s
            nobody = json.loads(await ask(swarm, "/v1/me", Hotkey("stranger")))
            assert nobody["reason"] == "not-registered"
            info = decode(RunInfo, await ask(swarm, "/v1/run"))
            assert (info.run_hash, info.owner) == (RUN.hash(), FakeSigner().hotkey)
            with pytest.raises(Missing):
                await ask(swarm, "/v1/nothing")

    run(main())


def test_only_who_may_register_as_a_miner_is_probed_and_only_where_somebody_probes() -> None:
    async def main() -> None:
        async with fake_swarm() as swarm:
            asked: list[tuple[Hotkey, str]] = []

            async def probe(hotkey: Hotkey, request: ProbeRequest) -> ProbeReply:
                asked.append((hotkey, request.url))
                return ProbeReply(is_reachable=True)

            def admit(hotkey: Hotkey, role: Role) -> bool:
                return hotkey == MINERS[0] and role is Role.MINER

            with pytest.raises(Missing):
                await ask(swarm, "/v1/probe", MINERS[0], "POST", b"{}")
            parts = OrchestratorParts(FakeSigner(), swarm.store, swarm.blobs, LoopClock(), admit=admit, probe=probe)
            service = Orchestrator(RUN, parts)
            await service.start()
            body = ProbeRequest(url="http://miner.test:1").encoded()
            found = await service.handle(Request(MINERS[0], "POST", "/v1/probe", {}, body, None))
            assert decode(ProbeReply, found.body).is_reachable
            with pytest.raises(Forbidden):
                await service.handle(Request(MINERS[1], "POST", "/v1/probe", {}, body, None))
            with pytest.raises(Malformed):
                await service.handle(Request(MINERS[0], "POST", "/v1/probe", {}, b"{}", None))
            assert asked == [(MINERS[0], "http://miner.test:1")]

    run(main())


def test_a_ledger_of_another_run_or_owner_is_left_alone() -> None:
    async def main() -> None:
        async with fake_swarm() as swarm:
            await swarm.closes(0)
            other_run = RUN.with_values(seed=2)
            for run_config, signer in ((other_run, FakeSigner()), (RUN, FakeSigner(Hotkey("another")))):
                parts = OrchestratorParts(signer, swarm.store, swarm.blobs, LoopClock())
                with pytest.raises(LedgerCorrupt, match="another run or owner"):
                    await Orchestrator(run_config, parts).start()

    run(main())
