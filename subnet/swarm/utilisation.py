"""Model FLOPs utilisation (MFU), compute utilisation (CU) and goodput: sums over replicas and rounds, and their ratios.

MFU: model FLOPs of the committed tokens, over what the measured peaks of all devices held would have done in the same
seconds, idle and joining devices included. CU: seconds in forward, backward and step over the wall seconds of the same
rounds, merges included. Goodput: tokens in the committed model over wall seconds, and over the tokens processed; the
difference was dropped.
Not here: FLOPs per token (``subnet.model.flops``), which claims are taken (``subnet.orchestrate.efforts``).
Invariants: pure; committed is never more than processed; CU is within [0, 1]; a microbatch counts once per stage, for
whoever committed it first. Tokens committed and wall seconds come from the ledger; busy seconds, microbatches
processed and peaks are peers' own claims, and nothing is paid for them. Work that a crash kept from being reported is
in neither CU nor the tokens processed.
Source: algorithms.md section 9; PaLM (arXiv:2204.02311), appendix B.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

from subnet.records import RoundEffort
from subnet.swarm.view import RoundView, RunView
from subnet.types import Hotkey, MicrobatchId, RoundId, StageId


@dataclass(frozen=True)
class Tally:
    """Sums over rounds and devices. ``*_s``: device-seconds, of which ``reported_s`` and ``reported_training_s`` are
    those of rounds whose effort is known. ``*_flops``: model FLOPs; ``peak_flops``: peak times seconds held.
    ``num_due``: places on rosters, ``num_reported`` how many of them told their effort."""

    held_s: float = 0.0
    peak_flops: float = 0.0
    reported_s: float = 0.0
    reported_training_s: float = 0.0
    busy_s: float = 0.0
    busy_training_s: float = 0.0
    processed_flops: float = 0.0
    committed_flops: float = 0.0
    num_due: int = 0
    num_reported: int = 0

    @property
    def cu(self) -> float | None:
        """Compute utilisation over whole rounds; None before the first report."""
        return ratio(self.busy_s, self.reported_s)

    @property
    def cu_training(self) -> float | None:
        """Compute utilisation while TRAINING."""
        return ratio(self.busy_training_s, self.reported_training_s)

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation of the devices held; over 1 only where a peer claims less peak than it has."""
        return ratio(self.committed_flops, self.peak_flops)

    @property
    def goodput(self) -> float | None:
        """Share of the work processed that is in the committed model."""
        return ratio(self.committed_flops, self.processed_flops)


def ratio(part: float, whole: float) -> float | None:
    """``part / whole``; None where there is no whole."""
    return part / whole if whole else None


def total(tallies: Iterable[Tally]) -> Tally:
    """All of them together."""
    rows = [[getattr(tally, item.name) for item in fields(Tally)] for tally in tallies]
    return Tally(*(sum(column) for column in zip(*rows, strict=True)))


def round_end_s(view: RunView, ended: RoundView) -> float:
    """When a closed round was over: at the opening of the next, since replicas load and prove the merge until then."""
    following = view.round_view(RoundId(ended.round + 1))
    return ended.closed_s if following is None else following.opened_s


def committed_by(ended: RoundView) -> Counter[Hotkey]:
    """Microbatches of a round in the committed model, by whose commitment brought them in first at its stage.

    One that any stage lacks is not in the model, whatever the others did with it.
    """
    closed, brought = ended.closed, Counter[Hotkey]()
    if closed is None or not closed.committed:
        return brought
    left = set(ended.document.microbatches()) - {number for number, _ in closed.partial} - set(closed.released)
    wanted: dict[StageId, set[MicrobatchId]] = {}
    for hotkey in sorted(ended.members, key=lambda member: ended.commitment_seqs[member]):
        commitment = ended.commitments[hotkey]
        missing = wanted.setdefault(commitment.stage, set(left))
        first = missing.intersection(commitment.applied)
        brought[hotkey] = len(first)
        missing -= first
    return brought


def round_tallies(
    view: RunView, ended: RoundView, efforts: Mapping[Hotkey, RoundEffort], microbatch_flops: Sequence[float]
) -> dict[Hotkey, Tally]:
    """A closed round by device held in it. ``microbatch_flops``: model FLOPs of one microbatch at each stage."""
    wall_s, committed = round_end_s(view, ended) - ended.opened_s, committed_by(ended)
    tallies = {}
    for hotkey in ended.held:
        peak_flops = view.peers[hotkey].registration.peak_flops_per_s * wall_s
        entry, effort = ended.entry_of(hotkey), efforts.get(hotkey)
        if entry is None:
            tallies[hotkey] = Tally(wall_s, peak_flops)
            continue
        commitment = ended.commitments.get(hotkey)
        processed = max(len(commitment.applied) if commitment else 0, effort.num_forwards if effort else 0)
        busy_s, is_reported = effort.busy_s if effort else 0.0, effort is not None
        tallies[hotkey] = Tally(
            held_s=wall_s,
            peak_flops=peak_flops,
            reported_s=wall_s * is_reported,
            reported_training_s=ended.training_s * is_reported,
            busy_s=min(busy_s, wall_s),
            # The last step is taken after TRAINING has ended.
            busy_training_s=min(busy_s, ended.training_s),
            processed_flops=processed * microbatch_flops[entry.stage],
            committed_flops=committed[hotkey] * microbatch_flops[entry.stage],
            num_due=1,
            num_reported=int(is_reported),
        )
    return tallies
