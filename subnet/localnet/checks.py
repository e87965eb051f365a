"""What a localnet claims about itself when it ends, checked against the facts. Pure.

Not here: gathering the facts (``subnet.localnet.facts``), printing (``subnet.localnet.summary``).
Invariant: a claim that cannot be decided for want of facts does not hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from subnet.chain.base import NeuronInfo
from subnet.records import RoundClosed
from subnet.swarm.view import RunView
from subnet.types import Hotkey, Outcome

# Kinds of cheats that leave no commitment to audit: they are not named, they just earn nothing from then on.
UNAUDITED_KINDS = frozenset({"silence"})


@dataclass(frozen=True)
class Facts:
    """What is known at the end. ``names``: who is behind a hotkey; ``neurons`` None without a chain.

    Losses are nats per token on held-out text; ``bigram_entropy`` is that of the training text.
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
    made = [_learnt(facts), _middle_stage_matters(facts), _replicas_agree(facts), _accounted(facts)]
    if facts.validators:
        made += [_honest_pass(facts), _all_audited(facts), *_cheats_named(facts)]
    made += _killed_returned(facts)
    if facts.neurons is not None:
        made += [_weights_on_chain(facts), _miners_earn(facts), *_cheats_unpaid(facts)]
    return made


def _learnt(facts: Facts) -> Claim:
    loss, bar = facts.held_out_loss, facts.bigram_entropy
    holds = loss is not None and loss < bar
    return Claim("held-out loss is below the bigram entropy of the training text", holds, f"{loss} < {bar:.4f} nats")


def _middle_stage_matters(facts: Facts) -> Claim:
    loss, without = facts.held_out_loss, facts.bypassed_loss
    holds = loss is not None and without is not None and without > loss
    return Claim("by-passing the middle stage raises the loss", holds, f"{loss} -> {without}")


def _replicas_agree(facts: Facts) -> Claim:
    return Claim(
        "replicas' digests are equal after every merge",
        not facts.digests_differed and bool(facts.view.closed),
        ", ".join(facts.digests_differed) or f"{len(facts.view.closed)} rounds",
    )


def accounted(view: RunView, closed: RoundClosed) -> bool:
    """Whether every id of a round stands in exactly one class."""
    ended = view.rounds.get(closed.round)
    if ended is None:
        return True  # older than what is retained; it was checked when it closed
    ids = set(ended.document.microbatches())
    listed = [mb for mb, _ in (*closed.partial, *closed.duplicate)] + list(closed.released)
    return len(listed) == len(set(listed)) and set(listed) <= ids and closed.num_complete == len(ids) - len(listed)


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
    """Every member of the rounds of a complete window has a verdict in it; the last rounds are not due yet."""
    view, window, lag = facts.view, facts.view.run.audit.window_rounds, facts.view.run.audit.lag_rounds
    due = [closed.round for closed in view.closed if closed.committed][: len(view.closed) - lag]
    late: set[str] = set()
    for first in range(len(due) - window + 1):
        rounds = due[first : first + window]
        members = set.intersection(*(set(view.rounds[number].members) for number in rounds if number in view.rounds))
        audited = {item.verdict.hotkey for item in view.verdicts if item.verdict.round in rounds}
        late |= {facts.names[hotkey] for hotkey in members - audited}
    return Claim("every miner was audited in its turn", not late, ", ".join(sorted(late)) or f"window of {window}")


def _cheats_named(facts: Facts) -> list[Claim]:
    named = _failed(facts)
    return [
        Claim(
            f"{miner} ({kind}) is named by a failed audit", miner in named, "named" if miner in named else "not named"
        )
        for miner, kind in facts.cheats.items()
        if kind not in UNAUDITED_KINDS
    ]


def _killed_returned(facts: Facts) -> list[Claim]:
    made = []
    for miner, number in facts.kills.items():
        hotkey = facts.hotkey(miner)
        back = [
            ended.round for ended in facts.view.rounds.values() if hotkey in ended.members and ended.round >= number
        ]
        is_paid = facts.points.get(hotkey, 0.0) > 0
        detail = f"merged in rounds {back}, {'paid' if is_paid else 'not paid'}"
        made.append(Claim(f"{miner}, killed in round {number}, returned and is paid", bool(back) and is_paid, detail))
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


def _cheats_unpaid(facts: Facts) -> list[Claim]:
    neurons = {known.hotkey: known for known in facts.neurons or ()}
    made = []
    for miner, kind in facts.cheats.items():
        uid = neurons[facts.hotkey(miner)].uid
        weights = [
            neurons[facts.hotkey(name)].weights.get(uid, 0.0)
            for name in facts.validators
            if neurons[facts.hotkey(name)].weights
        ]
        holds = bool(weights) and not any(weights) if kind not in UNAUDITED_KINDS else True
        made.append(Claim(f"{miner}'s weight on chain is zero at the end", holds, str(weights)))
    return made
