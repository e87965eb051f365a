"""MFU, CU and goodput of two rounds of two stages, against numbers worked out by hand.

A microbatch costs 100 FLOPs at stage 0 and 300 at stage 1. Every round lasts from its opening to the next one's.
"""

from __future__ import annotations

from subnet.hashing import EMPTY_ROOT
from subnet.records import Commitment, PeerRegistered, RosterEntry, RoundClosed, RoundDocument, RoundEffort
from subnet.swarm.utilisation import Tally, committed_by, round_end_s, round_tallies, total
from subnet.swarm.view import PeerView, RoundView, RunView
from subnet.types import Hotkey, MicrobatchId, PeerState, Phase, Role, RoundId, StageId

ANN, BOB, CID, IDLE = (Hotkey(name) for name in ("ann", "bob", "cid", "idle"))
STAGES = {ANN: 0, BOB: 0, CID: 1}
PEAKS = {ANN: 40.0, BOB: 60.0, CID: 80.0, IDLE: 20.0}
FLOPS = (100.0, 300.0)


def peer(peak: float) -> PeerView:
    registration = PeerRegistered(
        run_hash=EMPTY_ROOT,
        role=Role.MINER,
        url="",
        tokens_per_s=1.0,
        peak_flops_per_s=peak,
        memory_bytes=1,
        device="cpu",
        corpus_hash=EMPTY_ROOT,
    )
    return PeerView(registration, StageId(0), PeerState.ACTIVE, 0.0)


def commitment(stage: int, applied: list[int]) -> Commitment:
    return Commitment(
        round=RoundId(0),
        stage=StageId(stage),
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
        applied=tuple(MicrobatchId(number) for number in applied),
        unacknowledged=(),
    )


def ended(applied: dict[Hotkey, list[int]], *, committed: bool = True) -> RoundView:
    """A round of the microbatches 0 to 9, open from 100 s to 118 s, 12 s of it in TRAINING.

    Lost: 8 lacks stage 1 and 9 both; 3 is doubled at stage 0.
    """
    roster = tuple(RosterEntry(hotkey=key, url="", stage=StageId(at), capacity=1.0) for key, at in STAGES.items())
    document = RoundDocument(
        protocol=0,
        run_hash=EMPTY_ROOT,
        round=RoundId(0),
        first_microbatch=MicrobatchId(0),
        num_microbatches=10,
        released=(),
        roster=roster,
        seed=EMPTY_ROOT,
        params_roots=(),
        training_deadline_s=0.0,
        signature="",
    )
    closed = RoundClosed(
        round=RoundId(0),
        committed=committed,
        reason="",
        num_complete=7,
        partial=((MicrobatchId(8), (StageId(1),)),),
        duplicate=((MicrobatchId(3), (StageId(0),)),),
        released=(MicrobatchId(9),),
        params_roots=(),
        mean_loss=None,
    )
    made = RoundView(document, 0, 100.0, Phase.MERGING, "", 0.0, 0.0, closed=closed, closed_s=118.0, training_s=12.0)
    made.commitments = {hotkey: commitment(STAGES[hotkey], ids) for hotkey, ids in applied.items()}
    made.commitment_seqs = {hotkey: seq for seq, hotkey in enumerate(applied)}
    made.members, made.held = tuple(sorted(applied)), set(PEAKS)
    return made


APPLIED = {BOB: [3, 4, 5, 6, 7], ANN: [0, 1, 2, 3, 8], CID: list(range(8))}


def view_of(first: RoundView, next_opened_s: float | None = 120.0) -> RunView:
    view = RunView(peers={hotkey: peer(peak) for hotkey, peak in PEAKS.items()}, rounds={RoundId(0): first})
    if next_opened_s is not None:
        document = first.document.model_copy(update={"round": RoundId(1)})
        view.round = RoundView(document, 9, next_opened_s, Phase.TRAINING, "", 0.0, 0.0)
    return view


def effort(busy_s: float, num_forwards: int) -> RoundEffort:
    return RoundEffort(round=RoundId(0), busy_s=busy_s, num_forwards=num_forwards)


def test_a_round_lasts_until_the_next_opens_and_the_last_until_it_is_closed() -> None:
    first = ended(APPLIED)
    assert round_end_s(view_of(first), first) == 120.0
    assert round_end_s(view_of(first, None), first) == 118.0


def test_a_microbatch_counts_once_per_stage_for_who_committed_first_and_only_if_no_stage_lacks_it() -> None:
    assert committed_by(ended(APPLIED)) == {BOB: 5, ANN: 3, CID: 8}  # 3 is bob's, 8 is in no model
    assert sum(committed_by(ended(APPLIED, committed=False)).values()) == 0


def test_a_round_by_hand() -> None:
    first = ended(APPLIED)
    made = round_tallies(view_of(first), first, {ANN: effort(5.0, 6), CID: effort(15.0, 9)}, FLOPS)
    ann, bob, cid = made[ANN], made[BOB], made[CID]
    assert (ann.cu, ann.cu_training) == (5 / 20, 5 / 12)
    assert ann.mfu == 3 * 100 / (40 * 20)
    assert ann.goodput == 3 / 6
    # Nobody knows how busy bob was; that it processed what it committed is known.
    assert (bob.cu, bob.cu_training, bob.num_reported) == (None, None, 0)
    assert (bob.mfu, bob.goodput) == (5 * 100 / (60 * 20), 1.0)
    # Its last step came after TRAINING.
    assert (cid.cu, cid.cu_training) == (15 / 20, 1.0)
    assert cid.mfu == 8 * 300 / (80 * 20)
    assert made[IDLE] == Tally(held_s=20.0, peak_flops=20.0 * 20)
    run = total(made.values())
    assert run.cu == (5 + 15) / (20 + 20)
    # 8 microbatches of 400 FLOPs, over 200 FLOP/s of four devices for 20 s, the idle one among them.
    assert run.mfu == 8 * 400 / (200 * 20)
    # Processed: 6 by ann, 5 by bob, 9 by cid.
    assert run.goodput == 8 * 400 / (6 * 100 + 5 * 100 + 9 * 300)
    assert (run.num_due, run.num_reported) == (3, 2)


def test_what_is_not_committed_is_processed_all_the_same() -> None:
    first = ended(APPLIED, committed=False)
    run = total(round_tallies(view_of(first), first, {}, FLOPS).values())
    assert (run.processed_flops, run.mfu, run.goodput) == (5 * 100 + 5 * 100 + 8 * 300, 0.0, 0.0)


def test_a_claim_never_brings_cu_above_one_nor_processed_below_committed() -> None:
    first = ended(APPLIED)
    cid = round_tallies(view_of(first), first, {CID: effort(1e6, 0)}, FLOPS)[CID]
    assert (cid.cu, cid.cu_training, cid.goodput) == (1.0, 1.0, 1.0)


def test_sums_over_rounds_are_weighted_by_their_length_and_nothing_has_no_figures() -> None:
    short = Tally(held_s=1, peak_flops=10, reported_s=1, busy_s=1, processed_flops=10, committed_flops=10)
    long = Tally(held_s=9, peak_flops=90, reported_s=9, busy_s=0, processed_flops=30, committed_flops=10)
    both = total([short, long])
    assert (both.held_s, both.cu, both.mfu, both.goodput) == (10, 0.1, 0.2, 0.5)
    assert (total([]).cu, total([]).cu_training, total([]).mfu, total([]).goodput) == (None, None, None, None)
