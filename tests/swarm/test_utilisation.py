"""The figures of a whole run agree with each other and with its ledger. In real time: busy seconds are real seconds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from subnet.model.flops import model_flops_per_token
from subnet.orchestrate.status import status
from subnet.swarm.utilisation import committed_by
from tests.swarm.harness import PEAK_FLOPS_PER_S, Net, network
from tests.tiny import text_corpus, tiny_run

MINERS = [f"miner-{number}" for number in range(1, 7)]
ROUNDS = 3
# Several heartbeats per round, and nobody is lost because this machine is busy with something else.
CHANGES = {"custody.status_interval_s": 0.1, "custody.missed_statuses": 100, "round.microbatches": 32}


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Net:
    corpus = text_corpus()

    async def main() -> Net:
        async with network(tmp_path_factory.mktemp("run"), tiny_run(corpus, **CHANGES), corpus, rounds=ROUNDS) as net:
            for name in MINERS:
                net.start_miner(name)
            await net.finish()
            return net

    return asyncio.run(main())


def test_the_figures_of_a_run_are_consistent(net: Net) -> None:
    assert net.orchestrator is not None
    view, run_config = net.orchestrator.view, net.run
    figures: dict[str, Any] = status(view, net.orchestrator.beats, net.orchestrator.efforts.figures(view), 0.0)
    run, miners = figures["utilisation"]["run"], figures["utilisation"]["miners"]
    tokens = ROUNDS * run_config.round_tokens

    assert run["rounds"] == ROUNDS
    assert run["num_reported"] == run["num_due"] == ROUNDS * len(MINERS), "every round of every replica was told"
    first, last = view.rounds[view.closed[0].round], view.rounds[view.last_round]
    assert run["wall_s"] == pytest.approx(last.closed_s - first.opened_s)
    assert sorted(miners) == sorted(miner.signer.hotkey for miner in net.miners.values())

    for miner in miners.values():
        assert 0 < miner["cu"] <= 1
        assert miner["cu"] <= miner["cu_training"] <= 1
        assert 0 < miner["mfu"] < 1
        assert miner["processed_tokens"] >= miner["committed_tokens"] > 0
    # All replicas compute in turn here: their busy seconds fit into the run's.
    assert sum(miner["cu"] for miner in miners.values()) <= 1
    assert run["cu"] == pytest.approx(sum(miner["cu"] for miner in miners.values()) / len(miners))

    assert run["committed_tokens"] == tokens, "every microbatch of this run is complete"
    assert run["processed_tokens"] >= tokens
    assert run["goodput"] == pytest.approx(run["committed_tokens"] / run["processed_tokens"])
    assert run["goodput_tokens_per_s"] == pytest.approx(tokens / run["wall_s"])

    model = run_config.model
    block = 2 * model.width**2 + 2 * model.width * model.width // 2 + 3 * model.width * model.ffn_width
    num_parameters = model.num_blocks * block + model.vocab_size * model.width
    flops = 6 * num_parameters + 12 * model.num_blocks * model.width * model.seq_len
    assert run["model_flops_per_token"] == model_flops_per_token(run_config) == flops
    done = sum(miner["mfu"] * miner["peak_flops_per_s"] * run["wall_s"] for miner in miners.values())
    assert done == pytest.approx(tokens * flops)
    assert run["mfu"] == pytest.approx(tokens * flops / (len(MINERS) * PEAK_FLOPS_PER_S * run["wall_s"]))


def test_effort_is_told_without_a_word_in_the_ledger(net: Net) -> None:
    assert net.orchestrator is not None
    text = b"".join(entry.encoded() for entry in asyncio.run(net.store.load()))
    assert b"busy_s" not in text
    for ended in net.orchestrator.view.rounds.values():
        brought = committed_by(ended)
        assert sum(brought.values()) == net.run.stages.num_stages * net.run.round.microbatches
