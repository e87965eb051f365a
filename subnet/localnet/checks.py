"""What a localnet claims about itself when it ends, checked against the facts. Pure.

Not here: gathering the facts (``subnet.localnet.facts``), printing (``subnet.localnet.summary``).
Invariant: a claim that cannot be decided for want of facts does not hold.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from subnet.chain.base import NeuronInfo
from subnet.records import RoundClosed
from subnet.swarm.account import account
from subnet.swarm.view import RunView
from subnet.types import Hotkey, MicrobatchId, Outcome, StageId

# Kinds of cheats that leave no commitment to audit: nobody can name them. They are left out of rounds, and are still
# paid for what they did before.
UNAUDITED_KINDS = frozenset({"silence"})
# Nats by which a stage that does anything must lower the loss. Rounding alone is 1e-7: a run whose middle stage had
# collapsed (noise from half of it, six rounds) still showed a rise of 5e-8.
MIN_RISE_NATS = 0.01


@dataclass(frozen=True)
class Facts:
    """What is known at the end. ``names``: who is behind a hotkey; ``neurons`` None without a chain.

    ``kills_missed``: miners that were to be killed and were not: their round had no moment for it. Losses are in
    nats per token on held-out text; ``bigram_entropy`` is that of the training text.
    """

    view: RunView
    names: Mapping[Hotkey, str]
    cheats: Mapping[str, str]
    kills: Mapping[str, int]
    miners: Sequence[str]
    validators: Sequence[str]
    held_out_loss: float | None
    bypassed_loss: float | None
    bigram_entropy: float
    digests_differed: Sequence[str]
    paid_twice: int
    points: Mapping[Hotkey, float]
    neurons: Sequence[NeuronInfo] | None
    kills_missed: Collection[str] = ()

    def hotkey(self, name: str) -> Hotkey:
        """The key of a program."""
        return next(hotkey for hotkey, known in self.names.items() if known == name)


@dataclass(frozen=True)
class Claim:
    """One statement about the run, and whether it is true."""

    text: str
    holds: bool
    detail: str


def claims(facts: Facts) -> list[Claim]:
    """Everything that the network claims, in the order of the summary."""
    made = [_learnt(facts)]
    if facts.view.run.stages.num_stages > 2:  # else no stage is a middle one
        made.append(_middle_stage_matters(facts))
    made += [_replicas_agree(facts), _accounted(facts)]
    if facts.validators:
        made += [_honest_pass(facts), _all_audited(facts), *_cheats_named(facts)]
    made += [*_silent_left_out(facts), *_killed_returned(facts)]
    if facts.validators and facts.neurons is not None:  # nobody else sets weights
        made += [_weights_on_chain(facts), _miners_earn(facts), *_cheats_unpaid(facts)]
        made += [_honest_keep_weight(facts)] if facts.cheats else []
    return made


def _learnt(facts: Facts) -> Claim:
    loss, bar = facts.held_out_loss, facts.bigram_entropy
    holds = loss is not None and loss < bar
    return Claim("held-out loss is below the bigram entropy of the training text", holds, f"{loss} < {bar:.4f} nats")


def _middle_stage_matters(facts: Facts) -> Claim:
    loss, without = facts.held_out_loss, facts.bypassed_loss
    holds = loss is not None and without is not None and without > loss + MIN_RISE_NATS
    return Claim("by-passing the middle stage raises the loss", holds, f"{loss} -> {without}")


def _replicas_agree(facts: Facts) -> Claim:
    return Claim(
        "replicas' digests are equal after every merge",
        not facts.digests_differed and bool(facts.view.closed),
        ", ".join(facts.digests_differed) or f"{len(facts.view.closed)} rounds",
    )


def accounted(view: RunView, closed: RoundClosed) -> bool:
    """Whether a round's account is what its members' commitments say, id by id."""
    ended = view.rounds.get(closed.round)
    if ended is None:
        return True  # older than what is retained
    applied: dict[StageId, dict[Hotkey, tuple[MicrobatchId, ...]]] = {}
    for hotkey in ended.members if closed.committed else ():
        commitment = ended.commitments[hotkey]
        applied.setdefault(commitment.stage, {})[hotkey] = commitment.applied
    true = account(ended.document.microbatches(), applied, view.run.stages.num_stages)
    said = (closed.num_complete, closed.partial, closed.duplicate, closed.released)
    return said == (len(true.complete), true.partial, true.duplicate, true.released)


def _accounted(facts: Facts) -> Claim:
    wrong = [str(closed.round) for closed in facts.view.closed if not accounted(facts.view, closed)]
    detail = f"rounds {', '.join(wrong)}" if wrong else f"{facts.paid_twice} paid twice"
    return Claim("every microbatch is accounted for, none is paid twice", not wrong and not facts.paid_twice, detail)


def _failed(facts: Facts) -> set[str]:
    return {facts.names[item.verdict.hotkey] for item in facts.view.verdicts if item.verdict.outcome is Outcome.FAILED}


def _honest_pass(facts: Facts) -> Claim:
    wronged = sorted(_failed(facts) - set(facts.cheats))
    return Claim("no audit of an honest miner failed", not wronged, ", ".join(wronged) or "none")


def _all_audited(facts: Facts) -> Claim:
    """Every member of all rounds of a complete window has a verdict in it; the last rounds are not due yet.

    A window with a round that was not committed has nothing to audit in that round, and is not complete.
    """
    view, window, lag = facts.view, facts.view.run.audit.window_rounds, facts.view.run.audit.lag_rounds
    due = view.closed[: max(0, len(view.closed) - lag)]
    spans = [due[first : first + window] for first in range(len(due) - window + 1)]
    windows = [
        [closed.round for closed in span]
        for span in spans
        if all(closed.committed and closed.round in view.rounds for closed in span)
    ]
    late: set[str] = set()
    for rounds in windows:
        members = set.intersection(*(set(view.rounds[number].members) for number in rounds))
        audited = {item.verdict.hotkey for item in view.verdicts if item.verdict.round in rounds}
        late |= {facts.names[hotkey] for hotkey in members - audited}
    fine = f"{len(windows)} windows of {window} rounds" if windows else f"no {window} rounds are due yet"
    return Claim("every miner was audited in its turn", not late, ", ".join(sorted(late)) or fine)


def _cheats_named(facts: Facts) -> list[Claim]:
    named = _failed(facts)
    return [
        Claim(
            f"{miner} ({kind}) is named by a failed audit", miner in named, "named" if miner in named else "not named"
        )
        for miner, kind in facts.cheats.items()
        if kind not in UNAUDITED_KINDS
    ]


def _silent_left_out(facts: Facts) -> list[Claim]:
    """Who fell silent is in the last merge no more."""
    merged = [closed.round for closed in facts.view.closed if closed.committed]
    last = facts.view.rounds.get(merged[-1]) if merged else None
    return [
        Claim(
            f"{miner} ({kind}) is left out of rounds",
            last is not None and facts.hotkey(miner) not in last.members,
            f"round {last.round}" if last is not None else "no round was merged",
        )
        for miner, kind in facts.cheats.items()
        if kind in UNAUDITED_KINDS
    ]


def _killed_returned(facts: Facts) -> list[Claim]:
    made = []
    for miner, number in facts.kills.items():
        hotkey = facts.hotkey(miner)
        back = [
            ended.round for ended in facts.view.rounds.values() if hotkey in ended.members and ended.round >= number
        ]
        is_killed, is_paid = miner not in facts.kills_missed, facts.points.get(hotkey, 0.0) > 0
        detail = f"merged in rounds {back}, {'paid' if is_paid else 'not paid'}" if is_killed else "never killed"
        holds = is_killed and bool(back) and is_paid
        made.append(Claim(f"{miner}, killed in round {number}, returned and is paid", holds, detail))
    return made


def _weights_on_chain(facts: Facts) -> Claim:
    neurons = {facts.names.get(known.hotkey): known for known in facts.neurons or ()}
    setters = [name for name in facts.validators if name in neurons and neurons[name].weights]
    wanted = min(2, len(facts.validators))
    return Claim(f"weights of {wanted} validators are on chain", len(setters) >= wanted, ", ".join(setters) or "none")


def _miners_earn(facts: Facts) -> Claim:
    earning = [
        name
        for known in facts.neurons or ()
        if (name := facts.names.get(known.hotkey, "")) in facts.miners and known.stake_rao > 0
    ]
    return Claim("miners earned emission", bool(earning), ", ".join(sorted(earning)) or "none")


def _weights_of(facts: Facts, miner: str) -> list[float]:
    """What each validator that set weights gives to a miner."""
    neurons = {facts.names.get(known.hotkey): known for known in facts.neurons or ()}
    if miner not in neurons:
        return []
    setters = [neurons[name] for name in facts.validators if name in neurons and neurons[name].weights]
    return [setter.weights.get(neurons[miner].uid, 0.0) for setter in setters]


def _cheats_unpaid(facts: Facts) -> list[Claim]:
    made = []
    for miner, kind in facts.cheats.items():
        if kind not in UNAUDITED_KINDS:
            weights = _weights_of(facts, miner)
            holds = bool(weights) and not any(weights)
            made.append(Claim(f"{miner}'s weight on chain is zero at the end", holds, str(weights)))
    return made


def _honest_keep_weight(facts: Facts) -> Claim:
    honest = [miner for miner in facts.miners if miner not in facts.cheats]
    without = [miner for miner in honest if not (weights := _weights_of(facts, miner)) or not all(weights)]
    return Claim("every honest miner has weight on chain", not without, ", ".join(without) or f"{len(honest)} miners")
