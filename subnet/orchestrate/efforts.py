"""What replicas say a round took them: which claims are taken, and the figures that follow.

Kept in memory beside the heartbeats that bring it, not in the ledger: nobody is paid for it, and what a restart of the
orchestrator loses is missing from CU, not counted as idle. Not here: the arithmetic (``subnet.swarm.utilisation``).
Invariants: no more rounds are kept than the view retains; a claim that cannot be is refused, one that can is still
only its peer's word.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from subnet.config import RunConfig
from subnet.errors import Malformed
from subnet.model.flops import boundary_flops_per_token, model_flops_per_token, stage_model_flops_per_token
from subnet.records import RoundEffort
from subnet.swarm.utilisation import Tally, ratio, round_end_s, round_tallies, total
from subnet.swarm.view import RoundView, RunView
from subnet.types import Hotkey, RoundId, StageId

# By how much a replica may seem to have been busy for longer than its round has lasted: its clock is another one.
CLOCK_SLACK_S = 1.0


class Efforts:
    """The efforts of the rounds that a view retains."""

    def __init__(self, run: RunConfig) -> None:
        stages = [StageId(stage) for stage in range(run.stages.num_stages)]
        self._stage_flops = [stage_model_flops_per_token(run, stage) for stage in stages]
        self._model_flops = model_flops_per_token(run)
        self._boundary_flops = sum(boundary_flops_per_token(run, stage) for stage in stages)
        self._microbatch_tokens = run.microbatch_tokens
        self._reports: dict[RoundId, dict[Hotkey, RoundEffort]] = {}
        self._made: dict[RoundId, tuple[float, dict[Hotkey, Tally]]] = {}  # by round: its end, and its tallies

    def take(self, view: RunView, sender: Hotkey, effort: RoundEffort, now_s: float) -> None:
        """Keep what a heartbeat brought; raises ``Malformed`` where it cannot be true."""
        about = view.round_view(effort.round)
        if about is None and 0 <= effort.round <= view.last_round:
            return  # a round that is retained no longer
        if about is None or about.entry_of(sender) is None:
            raise Malformed("An effort is about a round that its sender was in.")
        num_microbatches = about.document.num_microbatches + len(about.document.released)
        if not 0 <= effort.num_forwards <= num_microbatches:
            raise Malformed("An effort counts no more microbatches than its round has.")
        if not 0 <= effort.busy_s <= now_s - about.opened_s + CLOCK_SLACK_S:
            raise Malformed("An effort takes no longer than its round has lasted.")
        reports = self._reports.setdefault(effort.round, {})
        known = reports.get(sender)
        # A program that was started again in COMMITTING has done nothing since: what it said before stands.
        if known is None or known.busy_s < effort.busy_s:
            reports[sender] = effort
            self._made.pop(effort.round, None)
        self._reports = {number: kept for number, kept in self._reports.items() if view.round_view(number)}

    def figures(self, view: RunView) -> dict[str, Any]:
        """``run`` and ``miners`` (by hotkey) over the closed rounds that the view retains, as plain JSON types."""
        rounds = [view.rounds[number] for number in sorted(view.rounds)]
        self._made = {number: made for number, made in self._made.items() if number in view.rounds}
        by_hotkey: dict[Hotkey, list[Tally]] = {}
        for ended in rounds:
            for hotkey, tally in self._tallies(view, ended).items():
                by_hotkey.setdefault(hotkey, []).append(tally)
        sums = {hotkey: total(tallies) for hotkey, tallies in by_hotkey.items()}
        wall_s = round_end_s(view, rounds[-1]) - rounds[0].opened_s if rounds else 0.0
        everybody = total(sums.values())
        return {
            "run": {
                "rounds": len(rounds),
                "wall_s": wall_s,
                **_shares(everybody),
                **_tokens(everybody, self._model_flops, wall_s),
                "peak_flops_per_s": ratio(everybody.peak_flops, wall_s),
                "model_flops_per_token": self._model_flops,
                "boundary_flops_per_token": self._boundary_flops,
                "num_reported": everybody.num_reported,
                "num_due": everybody.num_due,
            },
            "miners": {hotkey: self._miner(view, hotkey, sums[hotkey]) for hotkey in sorted(sums)},
        }

    def _tallies(self, view: RunView, ended: RoundView) -> dict[Hotkey, Tally]:
        """As of now: a round's end moves once, when the next one opens, and reports may come late."""
        end_s, made = round_end_s(view, ended), self._made.get(ended.round)
        if made is None or made[0] != end_s:
            microbatch_flops: Sequence[float] = [flops * self._microbatch_tokens for flops in self._stage_flops]
            made = end_s, round_tallies(view, ended, self._reports.get(ended.round, {}), microbatch_flops)
            self._made[ended.round] = made
        return made[1]

    def _miner(self, view: RunView, hotkey: Hotkey, tally: Tally) -> dict[str, Any]:
        peer = view.peers[hotkey]
        flops = self._stage_flops[peer.stage] if peer.stage is not None else 0.0
        peak = peer.registration.peak_flops_per_s
        return {**_shares(tally), **_tokens(tally, flops, tally.held_s), "peak_flops_per_s": peak}


def _shares(tally: Tally) -> dict[str, float | None]:
    return {"cu": tally.cu, "cu_training": tally.cu_training, "mfu": tally.mfu, "goodput": tally.goodput}


def _tokens(tally: Tally, flops_per_token: float, wall_s: float) -> dict[str, float | None]:
    """Tokens of a whole model's or of one stage's work; of a run, processed ones are weighted by their stages' work."""
    processed = tally.processed_flops / flops_per_token if flops_per_token else 0.0
    committed = tally.committed_flops / flops_per_token if flops_per_token else 0.0
    return {
        "processed_tokens": processed,
        "committed_tokens": committed,
        "dropped_tokens": max(0.0, processed - committed),
        "processed_tokens_per_s": ratio(processed, wall_s),
        "goodput_tokens_per_s": ratio(committed, wall_s),
    }
