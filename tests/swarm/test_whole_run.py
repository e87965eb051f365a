"""Whole runs in one process: the account is exact, replicas agree, the loss falls, restarts lose nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from subnet.clock import run_virtual
from subnet.data.corpus import Corpus
from subnet.swarm.ledger import fold
from subnet.swarm.view import RunView
from subnet.types import Outcome, Phase
from tests.swarm.harness import Net, network
from tests.tiny import text_corpus, tiny_run

MINERS = [f"miner-{number}" for number in range(1, 7)]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return text_corpus()


def final_view(net: Net) -> RunView:
    return fold(asyncio.run(net.store.load()))


def check_account(view: RunView) -> None:
    """Every microbatch that was ever leased ends in exactly one class, and a released one is leased again."""
    leased_again: set[int] = set()
    for closed in view.closed:
        document = view.rounds[closed.round].document
        ids = set(document.microbatches())
        listed = [mb for mb, _ in closed.partial] + [mb for mb, _ in closed.duplicate] + list(closed.released)
        assert len(listed) == len(set(listed)), "an id stands in two classes"
        assert set(listed) <= ids
        assert closed.num_complete == len(ids) - len(listed)
        assert leased_again <= ids, "a released id was not leased again in the next round"
        leased_again = set(closed.released)


def check_agreement(view: RunView) -> None:
    """After every merge all replicas of a stage proved the same root: the next document names it."""
    for stage in range(view.run.stages.num_stages):
        roots = {ready.params_root for ready in view.ready.values() if ready.stage == stage}
        assert len(roots) == 1


def test_a_run_of_six_miners_merges_every_round_and_accounts_for_every_microbatch(
    tmp_path: Path, corpus: Corpus
) -> None:
    async def main() -> Net:
        async with network(tmp_path, tiny_run(corpus), corpus, rounds=3) as net:
            for name in MINERS:
                net.start_miner(name)
            await net.finish()
            return net

    view = final_view(run_virtual(main()))
    assert [closed.committed for closed in view.closed] == [True, True, True]
    assert all(closed.num_complete == 16 for closed in view.closed)
    check_account(view)
    check_agreement(view)
    losses = [closed.mean_loss for closed in view.closed]
    assert None not in losses
    assert losses == sorted(losses, reverse=True)


def test_a_miner_killed_in_training_resumes_from_its_journal_and_is_in_the_merge(
    tmp_path: Path, corpus: Corpus
) -> None:
    async def main() -> Net:
        async with network(tmp_path, tiny_run(corpus), corpus, rounds=3) as net:
            for name in MINERS:
                net.start_miner(name)
            victim = net.miners["miner-1"]
            await victim.replica.follower.until(
                lambda view: view.round is not None and view.round.round == 1 and view.round.phase is Phase.TRAINING
            )
            await net.kill_miner("miner-1")
            net.start_miner("miner-1")
            await net.finish()
            return net

    net = run_virtual(main())
    view = final_view(net)
    check_account(view)
    check_agreement(view)
    hotkey = net.miners["miner-1"].signer.hotkey
    assert hotkey in view.rounds[view.closed[-1].round].members


@pytest.mark.parametrize("phase", list(Phase))
def test_the_orchestrator_is_killed_in_any_phase_and_nothing_is_lost(
    phase: Phase, tmp_path: Path, corpus: Corpus
) -> None:
    async def main() -> Net:
        async with network(tmp_path, tiny_run(corpus), corpus, rounds=3) as net:
            for name in MINERS:
                net.start_miner(name)
            watcher = net.miners["miner-1"].replica.follower
            assert await watcher.until(lambda view: bool(view.closed) and view.phase is phase, timeout_s=60.0)
            await net.stop_orchestrator()
            await asyncio.sleep(5.0)
            await net.start_orchestrator(3)
            await net.finish()
            return net

    view = final_view(run_virtual(main()))
    assert [closed.num_complete for closed in view.closed] == [16, 16, 16]
    check_account(view)
    check_agreement(view)


def test_an_audit_that_comes_after_the_retention_punishes_nobody(tmp_path: Path, corpus: Corpus) -> None:
    """As when the chain was away: what miners need not keep any more is missed, what they still keep is audited."""
    rounds, kept = 5, 2
    changes = {"audit.window_rounds": 1, "round.retention_rounds": kept}

    async def main() -> Net:
        async with network(tmp_path, tiny_run(corpus, **changes), corpus, rounds=rounds) as net:
            for name in MINERS:
                net.start_miner(name)
            watcher = net.miners["miner-1"].replica.follower
            assert await watcher.until(lambda view: view.last_round >= rounds - 2, timeout_s=300.0)
            await net.start_validator("late")
            await net.finish()
            return net

    verdicts = [item.verdict for item in final_view(run_virtual(main())).verdicts]
    assert {verdict.outcome for verdict in verdicts} == {Outcome.PASSED}
    assert {verdict.round for verdict in verdicts} >= set(range(rounds - kept + 1, rounds))
    assert 0 not in {verdict.round for verdict in verdicts}


def test_two_runs_of_one_seed_end_in_the_same_parameters_where_order_does_not_matter(
    tmp_path: Path, corpus: Corpus
) -> None:
    """One replica per stage and one step per round: the order of arrival changes the sum by rounding only."""
    run = tiny_run(corpus, **{"round.inner_steps": 1, "round.min_replicas": 1, "outer.learning_rate": 1.0})

    async def main(folder: Path) -> Net:
        async with network(folder, run, corpus, rounds=2) as net:
            for name in MINERS[:3]:
                net.start_miner(name)
            await net.finish()
            return net

    first = final_view(run_virtual(main(tmp_path / "a")))
    second = final_view(run_virtual(main(tmp_path / "b")))
    a = [closed.mean_loss for closed in first.closed]
    b = [closed.mean_loss for closed in second.closed]
    assert np.allclose(np.array(a, dtype=float), np.array(b, dtype=float), rtol=1e-6)
