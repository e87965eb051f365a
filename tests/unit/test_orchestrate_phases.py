"""The phase machine as the orchestrator runs it, with fake miners: deaths, missing owners, disputes, restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from subnet.clock import LoopClock, run_virtual
from subnet.hashing import merkle_root
from subnet.records import LedgerKind, SetClosed, body_of
from subnet.swarm.ledger import fold
from subnet.swarm.roster import liveness_window_s, shard_owners
from subnet.swarm.view import AGREED, DISPUTED, KEPT, SINGLE, RoundView, RunView
from subnet.types import Hotkey, Phase, RoundId, StageId
from tests.unit.fake_swarm import MINERS, RUN, TRAINING_S, Conduct, FakeSwarm, fake_swarm

STAGES = tuple(StageId(stage) for stage in range(RUN.stages.num_stages))
SHARDS = tuple((stage, shard) for stage in STAGES for shard in range(RUN.outer.num_shards))


def run(main: Coroutine[Any, Any, None]) -> None:
    run_virtual(main)


def ids_of(found: RoundView) -> list[int]:
    """All ids of a closed round, from its account."""
    closed = found.closed
    assert closed is not None
    listed = [number for number, _ in (*closed.partial, *closed.duplicate)]
    complete = set(found.document.microbatches()) - set(listed) - set(closed.released)
    assert len(complete) == closed.num_complete
    return sorted([*complete, *listed, *closed.released])


async def check_ledger(swarm: FakeSwarm) -> RunView:
    """A second reader of the stored ledger sees what the orchestrator sees."""
    again = fold(await swarm.store.load())
    assert again == swarm.view
    return again


def test_rounds_of_healthy_miners_agree_on_everything_without_waiting_for_a_deadline() -> None:
    async def main() -> None:
        async with fake_swarm(stop_after_rounds=3) as swarm:
            started_s = LoopClock().now_s()
            await swarm.until(lambda view: view.stopped is not None)
            assert LoopClock().now_s() - started_s < 3 * (TRAINING_S + 4)
            view = await check_ledger(swarm)
            assert [closed.committed for closed in view.closed] == [True, True, True]
            for number, found in view.rounds.items():
                assert found.closed is not None
                assert found.closed.num_complete == RUN.round.microbatches
                assert found.closed.mean_loss == 2.0
                assert found.members == MINERS
                assert {final.basis for final in found.finals.values()} == {AGREED}
                assert found.document.first_microbatch == number * RUN.round.microbatches
                for stage in STAGES:
                    digests = [found.finals[stage, shard].params_digest for shard in range(2)]
                    assert found.closed.params_roots[stage] == merkle_root(digests)
            assert view.next_microbatch == 3 * RUN.round.microbatches

    run(main())


@pytest.mark.parametrize("phase", list(Phase))
def test_a_miner_that_dies_in_a_phase_holds_the_round_up_for_a_liveness_window_at_most(phase: Phase) -> None:
    async def main() -> None:
        async with fake_swarm(miner_3=Conduct(dies_in=phase, dies_in_round=1)) as swarm:
            await swarm.closes(0)
            since_s = LoopClock().now_s()
            found = await swarm.closes(1)
            waited_s = LoopClock().now_s() - since_s
            forming_s = RUN.round.forming_timeout_s if phase is Phase.FORMING else 0.0
            assert waited_s < TRAINING_S + 3 + liveness_window_s(RUN) + forming_s
            closed = found.closed
            assert closed is not None
            assert closed.committed
            assert ids_of(found) == sorted(found.document.microbatches())
            has_committed = phase is Phase.MERGING
            assert (Hotkey("miner-3") in found.members) == has_committed
            if phase in (Phase.TRAINING, Phase.COMMITTING):
                # The other stage applied everything, so its share is partial, listed, and not leased again.
                assert {stages for _, stages in closed.partial} == {(StageId(1),)}
                assert closed.released == ()
            await check_ledger(swarm)

    run(main())


def test_a_miner_that_returns_keeps_its_stage_and_is_in_the_next_round() -> None:
    async def main() -> None:
        async with fake_swarm(miner_0=Conduct(dies_in=Phase.TRAINING)) as swarm:
            await swarm.closes(0)
            stage = swarm.view.peers[MINERS[0]].stage
            swarm.add(MINERS[0])
            found = await swarm.closes(1)
            entry = found.entry_of(MINERS[0])
            assert entry is not None
            assert entry.stage == stage

    run(main())


def test_one_missing_owner_leaves_the_shard_to_the_other() -> None:
    async def main() -> None:
        async with fake_swarm(miner_0=Conduct(skips_shards=True)) as swarm:
            found = await swarm.closes(0)
            for stage, shard in SHARDS:
                is_owner = MINERS[0] in shard_owners(swarm.view, RoundId(0), stage, shard)
                assert found.finals[stage, shard].basis == (SINGLE if is_owner else AGREED)
                assert found.finals[stage, shard].owners

    run(main())


def test_a_shard_without_both_owners_stays_as_it_was() -> None:
    async def main() -> None:
        lazy = Conduct(skips_shards=True)
        async with fake_swarm() as swarm:
            first = await swarm.closes(0)
            stage = swarm.view.peers[MINERS[0]].stage
            for hotkey in first.stage_members(StageId(stage or 0)):
                swarm.miners.pop(hotkey).cancel()
                swarm.add(hotkey, lazy)
            second = await swarm.closes(1)
            for shard in range(RUN.outer.num_shards):
                final = second.finals[StageId(stage or 0), shard]
                assert (final.basis, final.owners) == (KEPT, ())
                assert final.params_digest == first.finals[StageId(stage or 0), shard].params_digest
            assert first.closed is not None
            assert second.closed is not None
            assert second.closed.params_roots[stage or 0] == first.closed.params_roots[stage or 0]
            await swarm.closes(2)  # and the run goes on from there

    run(main())


def test_a_shard_missing_from_the_first_round_on_does_not_stop_the_run() -> None:
    async def main() -> None:
        lazy = Conduct(skips_shards=True)
        async with fake_swarm(**{name.replace("-", "_"): lazy for name in MINERS}) as swarm:
            found = await swarm.closes(0)
            assert {final.basis for final in found.finals.values()} == {KEPT}
            assert found.closed is not None
            assert found.closed.params_roots == found.document.params_roots
            await swarm.reaches(Phase.TRAINING, 1)

    run(main())


def test_owners_who_disagree_change_nothing() -> None:
    async def main() -> None:
        async with fake_swarm(miner_0=Conduct(lies_about_shards=True)) as swarm:
            found = await swarm.closes(0)
            stage = swarm.view.peers[MINERS[0]].stage
            for key in SHARDS:
                assert found.finals[key].basis == (DISPUTED if key[0] == stage else AGREED)
                assert len(found.published[key]) == 2  # both claims stay on record
            assert (StageId(stage or 0), 0) not in swarm.view.last_finals
            await swarm.reaches(Phase.TRAINING, 1)

    run(main())


def test_a_stage_that_commits_nothing_leaves_the_round_uncommitted_and_its_ids_are_leased_again() -> None:
    async def main() -> None:
        mute = Conduct(never_commits=True)
        async with fake_swarm(miner_0=mute, miner_2=mute) as swarm:
            found = await swarm.closes(0)
            closed = found.closed
            assert closed is not None
            assert not closed.committed
            assert closed.reason == "stage-without-commitment"
            assert closed.released == found.document.microbatches()
            assert closed.params_roots == found.document.params_roots
            assert not found.finals
            for hotkey in (MINERS[0], MINERS[2]):
                swarm.miners.pop(hotkey).cancel()
                swarm.add(hotkey)
            await swarm.reaches(Phase.TRAINING, 1)
            assert swarm.view.round is not None
            assert set(closed.released) <= set(swarm.view.round.document.microbatches())
            again = await swarm.closes(1)
            assert again.closed is not None
            assert again.closed.committed
            assert swarm.view.released == ()

    run(main())


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("away_s", [0.0, 3.0])
def test_an_orchestrator_killed_in_a_phase_goes_on_where_it_was(phase: Phase, away_s: float) -> None:
    async def main() -> None:
        slow = Conduct(skips_shards=phase is Phase.MERGING)  # so that there is a MERGING to be killed in
        async with fake_swarm(miner_0=slow) as swarm:
            await swarm.closes(0)
            if phase is Phase.FORMING:
                await swarm.until(lambda view: view.round is None)
            else:
                await swarm.reaches(phase, 1)
            before = fold(await swarm.store.load())
            await swarm.kill()
            await asyncio.sleep(away_s)
            await swarm.start()
            assert swarm.view.seq >= before.seq
            assert swarm.view.peers.keys() == before.peers.keys()
            found = await swarm.closes(1)
            assert found.closed is not None
            assert found.closed.committed
            assert found.members == MINERS, "nobody was lost by the orchestrator's own absence"
            assert found.closed.num_complete == RUN.round.microbatches
            await check_ledger(swarm)

    run(main())


def test_a_killed_orchestrator_opens_no_round_twice_and_stops_when_it_would_have() -> None:
    async def main() -> None:
        async with fake_swarm(stop_after_rounds=2) as swarm:
            for number in range(2):
                await swarm.reaches(Phase.COMMITTING, number)
                await swarm.kill()
                await swarm.start(stop_after_rounds=2)
            await swarm.until(lambda view: view.stopped is not None)
            view = await check_ledger(swarm)
            kinds = [entry.kind for entry in await swarm.store.load()]
            assert kinds.count(LedgerKind.ROUND_OPENED) == kinds.count(LedgerKind.ROUND_CLOSED) == 2
            assert kinds.count(LedgerKind.RUN_OPENED) == kinds.count(LedgerKind.RUN_STOPPED) == 1
            assert len(view.closed) == 2

    run(main())


def test_the_beacon_is_named_before_its_block_exists() -> None:
    async def main() -> None:
        async with fake_swarm() as swarm:
            swarm.beacon.latest = 100
            await swarm.closes(0)
            [closed] = [body_of(entry) for entry in await swarm.store.load() if entry.kind is LedgerKind.SET_CLOSED]
            assert isinstance(closed, SetClosed)
            assert closed.beacon_block > 100

    run(main())


@pytest.mark.parametrize("phase", [Phase.TRAINING, Phase.COMMITTING, Phase.MERGING])
def test_a_deadline_that_passed_while_the_orchestrator_was_away_cuts_nobody_off(phase: Phase) -> None:
    async def main() -> None:
        async with fake_swarm() as swarm:
            await swarm.reaches(phase, 0)
            deadline_s = swarm.view.deadline_s
            await swarm.kill()
            await asyncio.sleep(deadline_s + 60.0 - LoopClock().now_s())
            await swarm.start()
            found = await swarm.closes(0)
            assert found.closed is not None
            assert found.closed.committed
            assert found.members == MINERS
            assert {final.basis for final in found.finals.values()} == {AGREED}

    run(main())


def test_rounds_that_fail_again_and_again_do_not_grow() -> None:
    async def main() -> None:
        mute = Conduct(never_commits=True)
        async with fake_swarm(miner_0=mute, miner_2=mute) as swarm:
            for number in range(3):
                found = await swarm.closes(number)
                assert len(found.document.microbatches()) == RUN.round.microbatches
            assert swarm.view.next_microbatch == RUN.round.microbatches, "the same ids every time"

    run(main())
