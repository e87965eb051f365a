"""Each cheat is named by a failed audit of both validators, loses its pay, and harms no honest miner's standing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from incentives.scores import fold_scores
from subnet.clock import run_virtual
from subnet.data.corpus import Corpus
from subnet.model.flops import stage_flops_per_token
from subnet.records import LedgerEntry
from subnet.simulate.cheats import replica_class
from subnet.swarm.ledger import fold
from subnet.types import Outcome, StageId
from tests.swarm.harness import Net, network
from tests.tiny import text_corpus, tiny_run

MINERS = [f"miner-{number}" for number in range(1, 7)]
CHEAT = "miner-2"
WINDOW = 2


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return text_corpus()


def play(folder: Path, corpus: Corpus, kind: str | None, rounds: int = 3) -> tuple[Net, list[LedgerEntry]]:
    run = tiny_run(corpus, **{"audit.window_rounds": WINDOW, "round.min_replicas": 1, "round.training_timeout_s": 20.0})

    async def main() -> Net:
        async with network(folder, run, corpus, rounds=rounds) as net:
            for name in ("validator-1", "validator-2"):
                await net.start_validator(name)
            for name in MINERS:
                if name == CHEAT and kind is not None:
                    net.start_miner(name, replica_class(kind))
                else:
                    net.start_miner(name)
            await net.finish()
            return net

    net = run_virtual(main())
    return net, asyncio.run(net.store.load())


def failed(entries: list[LedgerEntry]) -> dict[str, set[str]]:
    """Hotkeys of miners with failed audits, and the reasons."""
    found: dict[str, set[str]] = {}
    for item in fold(entries).verdicts:
        if item.verdict.outcome is Outcome.FAILED:
            found.setdefault(item.verdict.hotkey, set()).add(item.verdict.reason)
    return found


def test_honest_miners_all_pass_and_all_are_audited_in_their_turn(tmp_path: Path, corpus: Corpus) -> None:
    net, entries = play(tmp_path, corpus, None)
    view = fold(entries)
    assert failed(entries) == {}
    for first in range(len(view.closed) - WINDOW + 1):
        audited = {item.verdict.hotkey for item in view.verdicts if first <= item.verdict.round < first + WINDOW}
        assert audited == {miner.signer.hotkey for miner in net.miners.values()}


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("noise", "output-mismatch"),
        ("random-grads", "output-mismatch"),
        ("scaled-pseudo-grad", "shard-digest"),
        ("wrong-shard", "wrong-shard"),
    ],
)
def test_a_cheat_is_named_and_loses_its_pay(tmp_path: Path, corpus: Corpus, kind: str, reason: str) -> None:
    # A scaled pseudo-gradient shows in the last of two segments only, and few rounds of noise may by chance be audited
    # where it did nothing yet: audits of more rounds find both.
    net, entries = play(tmp_path, corpus, kind, rounds=6 if kind in ("noise", "scaled-pseudo-grad") else 3)
    cheat = net.miners[CHEAT].signer.hotkey
    assert failed(entries) == {cheat: {reason}}
    authors = {item.author for item in fold(entries).verdicts if item.verdict.outcome is Outcome.FAILED}
    assert len(authors) == 2, "the second validator verifies before anybody is punished"
    flops = [stage_flops_per_token(net.run, StageId(stage)) for stage in range(3)]
    scores = fold_scores(entries, net.run, flops).by_hotkey
    assert scores.get(cheat, 0.0) == 0.0
    assert all(scores[miner.signer.hotkey] > 0 for name, miner in net.miners.items() if name != CHEAT)


def test_a_silent_miner_holds_nobody_up_and_is_not_paid_for_silence(tmp_path: Path, corpus: Corpus) -> None:
    net, entries = play(tmp_path, corpus, "silence")
    view = fold(entries)
    assert all(closed.committed for closed in view.closed)
    cheat = net.miners[CHEAT].signer.hotkey
    assert failed(entries) in ({}, {cheat: {"unavailable"}})
    assert cheat not in view.rounds[view.closed[-1].round].members
    flops = [stage_flops_per_token(net.run, StageId(stage)) for stage in range(3)]
    scores = fold_scores(entries, net.run, flops).by_hotkey
    assert scores.get(cheat, 0.0) < min(scores[m.signer.hotkey] for name, m in net.miners.items() if name != CHEAT)
