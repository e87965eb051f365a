"""A localnet's claims over facts written by hand: all hold for a good run, each wrong fact breaks its own claim.

The same claims over a run that really happened are in tests/swarm/test_claims.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from subnet.chain.base import NeuronInfo
from subnet.config import parse_run_config
from subnet.hashing import EMPTY_ROOT
from subnet.localnet.checks import Facts, claims
from subnet.records import PROTOCOL, Commitment, RosterEntry, RoundClosed, RoundDocument, Verdict
from subnet.swarm.view import RoundView, RunView, VerdictView
from subnet.types import Hotkey, MicrobatchId, Outcome, Phase, RoundId, StageId, Uid

MINERS = [f"miner-{number}" for number in range(1, 7)]
VALIDATORS = ["validator-1", "validator-2"]
WINDOW, LAG, ROUNDS, MICROBATCHES = 2, 1, 5, 4

LEARNT = "held-out loss is below the bigram entropy of the training text"
BYPASS = "by-passing the middle stage raises the loss"
DIGESTS = "replicas' digests are equal after every merge"
ACCOUNT = "every microbatch is accounted for, none is paid twice"
HONEST = "no audit of an honest miner failed"
AUDITED = "every miner was audited in its turn"
WEIGHTS = "weights of 2 validators are on chain"
EARNED = "miners earned emission"
KEPT = "every honest miner has weight on chain"
ZERO = "miner-2's weight on chain is zero at the end"
NAMED = "miner-2 (noise) is named by a failed audit"


def key(name: str) -> Hotkey:
    return Hotkey(f"key of {name}")


def stage_of(name: str) -> StageId:
    return StageId(MINERS.index(name) // 2)


def commitment(number: int, name: str) -> Commitment:
    """Every other microbatch of the round, so that the two replicas of a stage share them."""
    first = number * MICROBATCHES + MINERS.index(name) % 2
    return Commitment(
        round=RoundId(number),
        stage=stage_of(name),
        document=EMPTY_ROOT,
        journal_root=EMPTY_ROOT,
        num_entries=0,
        segments=(),
        start_params_root=EMPTY_ROOT,
        start_optim_root=EMPTY_ROOT,
        end_params_root=EMPTY_ROOT,
        end_optim_root=EMPTY_ROOT,
        shard_digests=(),
        shard_norms=(),
        num_tokens=0,
        num_steps=0,
        applied=tuple(MicrobatchId(first + step) for step in (0, 2)),
        unacknowledged=(),
    )


def round_view(number: int) -> RoundView:
    roster = [RosterEntry(hotkey=key(name), url="", stage=stage_of(name), capacity=1.0) for name in MINERS]
    document = RoundDocument(
        protocol=PROTOCOL,
        run_hash=EMPTY_ROOT,
        round=RoundId(number),
        first_microbatch=MicrobatchId(number * MICROBATCHES),
        num_microbatches=MICROBATCHES,
        released=(),
        roster=tuple(roster),
        seed=EMPTY_ROOT,
        params_roots=(),
        training_deadline_s=0.0,
        signature="",
    )
    made = RoundView(document, 0, 0.0, Phase.MERGING, "quorum", 0.0, 0.0)
    made.commitments = {key(name): commitment(number, name) for name in MINERS}
    made.members = tuple(key(name) for name in MINERS)
    return made


def closed(number: int, **changes: object) -> RoundClosed:
    whole = RoundClosed(
        round=RoundId(number),
        committed=True,
        reason="merged",
        num_complete=MICROBATCHES,
        partial=(),
        duplicate=(),
        released=(),
        params_roots=(),
        mean_loss=2.0,
    )
    return whole.model_copy(update=changes)


def verdict(number: int, name: str, outcome: Outcome = Outcome.PASSED) -> VerdictView:
    said = Verdict(
        round=RoundId(number),
        hotkey=key(name),
        segment=0,
        outcome=outcome,
        reason=outcome.value,
        error=0.0,
        num_microbatches=1,
        cost_s=0.0,
        beacon=EMPTY_ROOT,
    )
    return VerdictView(key("validator-1"), said, 0)


def neuron(uid: int, name: str, weights: dict[Uid, float]) -> NeuronInfo:
    earned = 10**9 if name in MINERS else 10**12
    return NeuronInfo(Uid(uid), key(name), "cold", "", False, earned, 0.1, 0.0, 1, 1, weights)


def neurons(*, without: str = "", silent_validator: str = "") -> list[NeuronInfo]:
    """All neurons; ``without`` gets no weight from anybody, ``silent_validator`` sets none."""
    names = [*MINERS, *VALIDATORS]
    weights = {Uid(uid): 0.0 if name == without else 0.2 for uid, name in enumerate(MINERS)}
    setters = [name for name in VALIDATORS if name != silent_validator]
    return [neuron(uid, name, weights if name in setters else {}) for uid, name in enumerate(names)]


def good(num_stages: int = 3) -> Facts:
    run = parse_run_config(
        {
            "stages": {"num_stages": num_stages},
            "audit": {"window_rounds": WINDOW, "lag_rounds": LAG},
        }
    )
    view = RunView(config=run)
    view.rounds = {RoundId(number): round_view(number) for number in range(ROUNDS)}
    view.closed = [closed(number) for number in range(ROUNDS)]
    # Odd miners in even rounds and even ones in odd rounds: each once in any window of two. The last round lags.
    view.verdicts = [verdict(number, name) for number in range(ROUNDS - LAG) for name in MINERS[number % 2 :: 2]]
    names = {key(name): name for name in [*MINERS, *VALIDATORS]}
    points = {key(name): 1.0 for name in MINERS}
    return Facts(view, names, {}, {}, MINERS, VALIDATORS, 2.0, 2.5, 2.4, [], 0, points, neurons())


def broken(facts: Facts) -> list[str]:
    return [claim.text for claim in claims(facts) if not claim.holds]


def detail(facts: Facts, text: str) -> str:
    return next(claim.detail for claim in claims(facts) if claim.text == text)


def test_a_good_run_holds_all_its_claims() -> None:
    assert [claim.text for claim in claims(good())] == [
        LEARNT, BYPASS, DIGESTS, ACCOUNT, HONEST, AUDITED, WEIGHTS, EARNED,
    ]  # fmt: skip
    assert broken(good()) == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"held_out_loss": 2.41, "bypassed_loss": 2.5}, LEARNT),
        ({"held_out_loss": float("nan")}, LEARNT),
        ({"bypassed_loss": 2.0}, BYPASS),
        ({"bypassed_loss": 2.0 + 1e-7}, BYPASS),  # rounding is no rise
        ({"bypassed_loss": None}, BYPASS),
        ({"digests_differed": ["miner-1 in round 0"]}, DIGESTS),
        ({"paid_twice": 1}, ACCOUNT),
        ({"neurons": neurons(silent_validator="validator-2")}, WEIGHTS),
        ({"neurons": [replace(known, stake_rao=0) for known in neurons()]}, EARNED),
    ],
)
def test_a_wrong_fact_breaks_its_claim(change: dict[str, object], text: str) -> None:
    assert text in broken(replace(good(), **change))  # type: ignore[arg-type]


def test_without_a_loss_nothing_that_needs_one_holds() -> None:
    assert broken(replace(good(), held_out_loss=None, bypassed_loss=None)) == [LEARNT, BYPASS]


def test_no_stage_is_the_middle_of_two() -> None:
    facts = replace(good(num_stages=2), bypassed_loss=None)
    assert BYPASS not in [claim.text for claim in claims(facts)]


def test_without_validators_nothing_is_claimed_of_audits_and_weights() -> None:
    facts = replace(good(), validators=[])
    assert [claim.text for claim in claims(facts)] == [LEARNT, BYPASS, DIGESTS, ACCOUNT]


def test_without_a_merge_replicas_do_not_agree() -> None:
    facts = good()
    facts.view.closed = []
    assert DIGESTS in broken(facts)


FIRST = MicrobatchId(MICROBATCHES)  # the first of round 1


@pytest.mark.parametrize(
    "said",
    [
        closed(1, num_complete=MICROBATCHES - 1),
        closed(1, num_complete=MICROBATCHES - 1, released=(FIRST,)),  # merged, yet leased again
        closed(1, num_complete=MICROBATCHES - 1, partial=((FIRST, (StageId(0),)),)),
        closed(1, released=(FIRST,)),
    ],
)
def test_an_account_that_is_not_what_commitments_say_breaks_the_claim(said: RoundClosed) -> None:
    facts = good()
    facts.view.closed[1] = said
    assert broken(facts) == [ACCOUNT]
    assert detail(facts, ACCOUNT) == "rounds 1"


def test_work_that_is_missing_or_done_twice_must_be_listed() -> None:
    facts = good()
    merged = facts.view.rounds[RoundId(1)]
    lost = merged.commitments[key("miner-1")]
    merged.commitments[key("miner-1")] = lost.model_copy(update={"applied": lost.applied[1:]})
    doubled = merged.commitments[key("miner-4")]
    merged.commitments[key("miner-4")] = doubled.model_copy(update={"applied": (*doubled.applied, lost.applied[1])})
    assert broken(facts) == [ACCOUNT]
    facts.view.closed[1] = closed(
        1,
        num_complete=MICROBATCHES - 2,
        partial=((lost.applied[0], (StageId(0),)),),
        duplicate=((lost.applied[1], (StageId(1),)),),
    )
    assert broken(facts) == []


def test_a_round_that_was_not_committed_leases_every_id_again() -> None:
    facts = good()
    ids = facts.view.rounds[RoundId(4)].document.microbatches()
    facts.view.closed[4] = closed(4, committed=False, num_complete=0, released=ids)
    assert broken(facts) == []
    facts.view.closed[4] = closed(4, committed=False, num_complete=0, released=ids[1:])
    assert broken(facts) == [ACCOUNT]


def test_a_miner_without_a_verdict_in_one_window_was_not_audited_in_its_turn() -> None:
    facts = good()
    facts.view.verdicts = [
        item for item in facts.view.verdicts if (item.verdict.hotkey, item.verdict.round) != (key("miner-3"), 2)
    ]
    assert broken(facts) == [AUDITED]
    assert detail(facts, AUDITED) == "miner-3"


def test_the_last_rounds_are_not_due_yet() -> None:
    facts = good()
    facts.view.verdicts = [item for item in facts.view.verdicts if item.verdict.round < ROUNDS - LAG - 1]
    assert broken(facts) == [AUDITED]
    del facts.view.closed[-1]  # the round without verdicts is now the last one
    assert broken(facts) == []


@pytest.mark.parametrize("num_closed", [0, 1, 2])
def test_a_short_run_says_that_no_audit_is_due(num_closed: int) -> None:
    facts = good()
    del facts.view.closed[num_closed:]
    facts.view.verdicts = []
    assert AUDITED not in broken(facts)
    assert detail(facts, AUDITED) == "no 2 rounds are due yet"


def test_who_was_not_in_every_round_of_a_window_is_not_due() -> None:
    facts = good()
    for number in (1, 3):
        gone = facts.view.rounds[RoundId(number)]
        gone.members = tuple(hotkey for hotkey in gone.members if hotkey != key("miner-2"))
        gone.commitments.pop(key("miner-2"))
    facts.view.verdicts = [item for item in facts.view.verdicts if item.verdict.hotkey != key("miner-2")]
    assert AUDITED not in broken(facts)


def test_a_round_that_was_not_committed_or_not_retained_makes_no_window() -> None:
    facts = good()
    ids = facts.view.rounds[RoundId(1)].document.microbatches()
    facts.view.closed[1] = closed(1, committed=False, num_complete=0, released=ids)
    facts.view.rounds.pop(RoundId(3))
    facts.view.verdicts = []
    assert broken(facts) == []
    assert detail(facts, AUDITED) == "no 2 rounds are due yet"


def test_a_failed_audit_of_an_honest_miner_breaks_the_claim() -> None:
    facts = good()
    facts.view.verdicts.append(verdict(1, "miner-2", Outcome.FAILED))
    assert broken(facts) == [HONEST]
    assert detail(facts, HONEST) == "miner-2"


def cheated() -> Facts:
    facts = replace(good(), cheats={"miner-2": "noise"}, neurons=neurons(without="miner-2"))
    facts.view.verdicts.append(verdict(1, "miner-2", Outcome.FAILED))
    return facts


def test_a_cheat_that_is_named_and_unpaid_breaks_nothing() -> None:
    facts = cheated()
    assert broken(facts) == []
    assert {NAMED, ZERO, KEPT} <= {claim.text for claim in claims(facts)}


def without_failures(facts: Facts) -> Facts:
    facts.view.verdicts = [item for item in facts.view.verdicts if item.verdict.outcome is Outcome.PASSED]
    return facts


@pytest.mark.parametrize(
    ("spoil", "texts"),
    [
        (without_failures, [NAMED]),
        (lambda facts: replace(facts, neurons=neurons()), [ZERO]),
        (lambda facts: replace(facts, neurons=neurons(without="miner-3")), [ZERO, KEPT]),
        (lambda facts: replace(facts, neurons=[]), [WEIGHTS, EARNED, ZERO, KEPT]),
    ],
)
def test_what_spoils_the_case_against_a_cheat_breaks_its_claim(
    spoil: Callable[[Facts], Facts], texts: list[str]
) -> None:
    assert broken(spoil(cheated())) == texts


def test_a_silent_miner_must_be_out_of_the_last_merge_and_nothing_else_is_claimed_of_it() -> None:
    facts = replace(good(), cheats={"miner-2": "silence"})
    assert broken(facts) == ["miner-2 (silence) is left out of rounds"]
    assert not any("zero" in claim.text or "named" in claim.text for claim in claims(facts))
    last = facts.view.rounds[RoundId(ROUNDS - 1)]
    last.members = tuple(hotkey for hotkey in last.members if hotkey != key("miner-2"))
    last.commitments.pop(key("miner-2"))
    missing = tuple((MicrobatchId(16 + step), (StageId(0),)) for step in (1, 3))
    facts.view.closed[-1] = closed(ROUNDS - 1, num_complete=MICROBATCHES - 2, partial=missing)
    assert broken(facts) == []


KILLED = "miner-1, killed in round 4, returned and is paid"


def test_a_killed_miner_that_returned_and_is_paid_breaks_nothing() -> None:
    facts = replace(good(), kills={"miner-1": 4})
    assert broken(facts) == []
    assert detail(facts, KILLED) == "merged in rounds [4], paid"


@pytest.mark.parametrize(
    "change",
    [{"points": {}}, {"kills_missed": {"miner-1"}}, {"points": {key("miner-1"): 0.0}}],
)
def test_a_killed_miner_must_have_been_killed_and_be_paid(change: dict[str, object]) -> None:
    assert broken(replace(good(), kills={"miner-1": 4}, **change)) == [KILLED]  # type: ignore[arg-type]


def test_a_killed_miner_must_merge_again() -> None:
    facts = replace(good(), kills={"miner-1": ROUNDS})
    assert broken(facts) == [f"miner-1, killed in round {ROUNDS}, returned and is paid"]
