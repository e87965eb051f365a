"""A localnet's claims about itself: they hold for an honest run, and each turns false when its fact does."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from subnet.chain.base import NeuronInfo
from subnet.clock import run_virtual
from subnet.localnet.checks import Facts, claims
from subnet.localnet.facts import digests_differed, pay
from subnet.records import Verdict
from subnet.swarm.ledger import fold
from subnet.swarm.view import VerdictView
from subnet.types import Hotkey, Outcome, Uid
from tests.swarm.harness import Net, network
from tests.tiny import text_corpus, tiny_run

MINERS = [f"miner-{number}" for number in range(1, 7)]
VALIDATORS = ["validator-1", "validator-2"]


def neuron(uid: int, hotkey: Hotkey, weights: dict[Uid, float]) -> NeuronInfo:
    return NeuronInfo(Uid(uid), hotkey, "cold", "", False, 10**9, 0.1, 0.0, 1, 1, weights)


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    corpus = text_corpus()
    run = tiny_run(corpus, **{"audit.window_rounds": 2, "audit.lag_rounds": 1})

    async def main() -> Net:
        async with network(tmp_path_factory.mktemp("run"), run, corpus, rounds=3) as net:
            for name in VALIDATORS:
                await net.start_validator(name)
            for name in MINERS:
                net.start_miner(name)
            await net.finish()
            return net

    net = run_virtual(main())
    entries = asyncio.run(net.store.load())
    view = fold(entries)
    names = {miner.signer.hotkey: name for name, miner in net.miners.items()}
    validators = [hotkey for hotkey in view.peers if hotkey not in names]
    names |= dict(zip(validators, VALIDATORS, strict=True))
    hotkeys = list(names)
    everybody = {Uid(uid): 1 / len(MINERS) for uid in range(len(MINERS))}
    neurons = [neuron(uid, hotkey, everybody if hotkey in validators else {}) for uid, hotkey in enumerate(hotkeys)]
    points, twice = pay(entries, run)
    assert digests_differed(entries, names) == []
    return Facts(view, names, {}, {}, MINERS, VALIDATORS, 2.0, 2.5, 2.4, [], twice, points, neurons)


def broken(facts: Facts) -> list[str]:
    return [claim.text for claim in claims(facts) if not claim.holds]


def test_an_honest_run_holds_all_its_claims(facts: Facts) -> None:
    assert broken(facts) == []
    assert len(claims(facts)) == 8


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"held_out_loss": 2.41}, "held-out loss"),
        ({"held_out_loss": None}, "held-out loss"),
        ({"bypassed_loss": 1.9}, "by-passing"),
        ({"digests_differed": ["miner-1 in round 0"]}, "digests"),
        ({"paid_twice": 1}, "paid twice"),
        ({"neurons": []}, "weights of 2 validators"),
    ],
)
def test_each_false_fact_breaks_its_claim(facts: Facts, change: dict[str, object], text: str) -> None:
    found = broken(replace(facts, **change))  # type: ignore[arg-type]
    assert any(text in claim for claim in found)


def test_a_failed_audit_of_an_honest_miner_breaks_the_claim_and_of_a_cheat_keeps_it(facts: Facts) -> None:
    hotkey = facts.hotkey("miner-3")
    verdict = Verdict(
        round=facts.view.closed[0].round,
        hotkey=hotkey,
        segment=0,
        outcome=Outcome.FAILED,
        reason="output-mismatch",
        error=1.0,
        num_microbatches=1,
        cost_s=0.0,
        beacon=facts.view.head,
    )
    facts.view.verdicts.append(VerdictView(facts.hotkey("validator-1"), verdict, 0))
    try:
        assert broken(facts) == ["no audit of an honest miner failed"]
        cheat = replace(facts, cheats={"miner-3": "noise"})
        assert broken(cheat) == ["miner-3's weight on chain is zero at the end"]
    finally:
        facts.view.verdicts.pop()


def test_a_miner_that_was_never_audited_breaks_the_claim(facts: Facts) -> None:
    kept = list(facts.view.verdicts)
    facts.view.verdicts[:] = [item for item in kept if item.verdict.hotkey != facts.hotkey("miner-2")]
    try:
        assert broken(facts) == ["every miner was audited in its turn"]
    finally:
        facts.view.verdicts[:] = kept


def test_a_killed_miner_must_return_and_be_paid(facts: Facts) -> None:
    assert broken(replace(facts, kills={"miner-1": 1})) == []
    unpaid = replace(facts, kills={"miner-1": 1}, points={})
    assert broken(unpaid) == ["miner-1, killed in round 1, returned and is paid"]
