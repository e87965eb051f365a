"""The small decisions of ``swarm``: learnt deadlines, first-stage shares, newcomers' stages, owners, agreed roots."""

from __future__ import annotations

from collections import Counter

import pytest

from subnet.hashing import sha256
from subnet.records import PROTOCOL, ReplicaReady, RosterEntry, RoundDocument
from subnet.swarm.deadlines import Durations
from subnet.swarm.roster import (
    LiveReport,
    agreed_root,
    alive,
    assign_stage,
    draw_owners,
    liveness_window_s,
    make_roster,
)
from subnet.swarm.router import expected_tokens, shares
from subnet.swarm.view import NO_ROUND, PeerView, RunView
from subnet.types import Hotkey, MicrobatchId, PeerState, RoundId, StageId
from tests.unit.fake_swarm import RUN, registration

A, B, C = Hotkey("a"), Hotkey("b"), Hotkey("c")


def document(*capacities: float, released: tuple[MicrobatchId, ...] = (), num: int = 100) -> RoundDocument:
    """A round whose first stage has replicas of these capacities, and whose second has one."""
    first = [
        RosterEntry(hotkey=Hotkey(f"first-{place}"), url="http://h:1", stage=StageId(0), capacity=capacity)
        for place, capacity in enumerate(capacities)
    ]
    last = RosterEntry(hotkey=Hotkey("last"), url="http://h:1", stage=StageId(1), capacity=5.0)
    return RoundDocument(
        protocol=PROTOCOL,
        run_hash=RUN.hash(),
        round=RoundId(3),
        first_microbatch=MicrobatchId(1000),
        num_microbatches=num,
        released=released,
        roster=(*first, last),
        seed=sha256(b"seed"),
        params_roots=(),
        training_deadline_s=0.0,
        signature="",
    )


def view_of(**stages: int) -> RunView:
    """Miners by hotkey with their stages; each claims 100 tokens per second."""
    view = RunView(config=RUN)
    for hotkey, stage in stages.items():
        view.peers[Hotkey(hotkey)] = PeerView(registration(), StageId(stage), PeerState.ACTIVE, 0.0)
    return view


def declare(view: RunView, hotkey: Hotkey, root: str, number: RoundId = NO_ROUND) -> None:
    stage = view.peers[hotkey].stage
    assert stage is not None
    root_digest = sha256(root.encode())
    view.ready[hotkey] = ReplicaReady(round=number, stage=stage, params_root=root_digest, optim_root=root_digest)


def test_a_deadline_is_the_configured_one_until_there_is_something_to_learn_from() -> None:
    durations = Durations(30.0, floor_s=1.0, cap_s=120.0, samples_s=[2.0, 2.0])
    assert durations.timeout_s() == 30.0
    durations.observe(2.0)
    assert durations.timeout_s() == 4.0


def test_a_learnt_deadline_follows_spread_shrugs_off_an_outlier_and_stays_in_bounds() -> None:
    def learnt(*samples_s: float) -> float:
        return Durations(30.0, floor_s=1.0, cap_s=120.0, samples_s=samples_s).timeout_s()

    assert learnt(8.0, 10.0, 12.0) == 10.0 + 6 * 2.0
    assert learnt(10.0, 10.0, 10.0, 10.0, 500.0) == 20.0
    assert learnt(0.01, 0.01, 0.01) == 1.0
    assert learnt(100.0, 100.0, 100.0) == 120.0


def test_a_deadline_that_keeps_coming_too_early_doubles() -> None:
    timeout_s, durations = 10.0, Durations(10.0, floor_s=1.0, cap_s=1000.0)
    for _ in range(3):
        durations.observe(timeout_s)
    assert durations.timeout_s() == 2 * timeout_s


def test_first_stage_shares_cover_the_round_exactly_once_in_proportion() -> None:
    released = (MicrobatchId(7), MicrobatchId(9))
    found = document(1.0, 2.0, 5.0, released=released, num=78)
    given = shares(found)
    assert sorted(number for ids in given.values() for number in ids) == sorted(found.microbatches())
    assert [len(given[Hotkey(f"first-{place}")]) for place in range(3)] == [10, 20, 50]
    assert {7, 9} <= {number for ids in given.values() for number in ids}


def test_first_stage_shares_are_interleaved_so_that_a_round_cut_short_stays_even() -> None:
    found = document(1.0, 3.0, num=80)
    holder = {number: hotkey for hotkey, ids in shares(found).items() for number in ids}
    for cut in range(4, 80):
        num = Counter(holder[number] for number in found.microbatches()[:cut])
        assert abs(num[Hotkey("first-0")] - cut / 4) <= 1


def test_expected_tokens_follow_capacity_within_a_stage() -> None:
    found = document(1.0, 3.0, num=80)
    tokens = 80 * RUN.microbatch_tokens
    assert expected_tokens(found, RUN, Hotkey("first-1")) == pytest.approx(0.75 * tokens)
    assert expected_tokens(found, RUN, Hotkey("last")) == tokens
    assert expected_tokens(found, RUN, Hotkey("stranger")) == 0.0


def test_a_newcomer_goes_where_least_capacity_is_present() -> None:
    assert assign_stage(view_of(), RUN) == 0
    assert assign_stage(view_of(a=0), RUN) == 1
    assert assign_stage(view_of(a=0, b=1), RUN) == 0
    for gone in (PeerState.LOST, PeerState.RETIRED):
        view = view_of(a=0, b=1)
        view.peers[B].state = gone
        assert assign_stage(view, RUN) == 1


def test_two_distinct_owners_are_drawn_whatever_the_order_and_evenly() -> None:
    members = [Hotkey(f"m{number}") for number in range(5)]
    num: Counter[Hotkey] = Counter()
    for shard in range(500):
        owners = draw_owners(sha256(b"set"), StageId(1), shard, members)
        assert len(set(owners)) == 2
        assert owners == draw_owners(sha256(b"set"), StageId(1), shard, members[::-1])
        num.update(owners)
    assert all(150 <= num[member] <= 250 for member in members)  # 200 expected, sigma about 11
    assert draw_owners(sha256(b"set"), StageId(1), 0, members[:1]) == (members[0],)
    assert draw_owners(sha256(b"set"), StageId(1), 0, []) == ()


def test_silence_beyond_the_window_is_death() -> None:
    window_s = liveness_window_s(RUN)
    live = {A: LiveReport(heard_s=100.0), B: LiveReport(heard_s=101.0)}
    assert alive(live, RUN, 100.0 + window_s) == {A, B}
    assert alive(live, RUN, 100.5 + window_s) == {B}


def test_before_the_first_round_most_replicas_decide_which_parameters_are_the_initial_ones() -> None:
    view = view_of(a=0, b=0, c=0)
    assert agreed_root(view, StageId(0)) is None
    declare(view, A, "wrong")
    assert agreed_root(view, StageId(0)) == sha256(b"wrong")
    declare(view, B, "right")
    declare(view, C, "right")
    assert agreed_root(view, StageId(0)) == sha256(b"right")
    assert [entry.hotkey for entry in make_roster(view, [A, B, C])] == [B, C]


def test_a_roster_holds_only_living_miners_that_proved_the_agreed_root_of_the_last_round() -> None:
    view = view_of(a=1, b=0, c=0)
    view.params_roots = (sha256(b"zero"), sha256(b"one"))
    declare(view, A, "one")
    declare(view, B, "zero", RoundId(4))  # of another round
    declare(view, C, "zero")
    assert [entry.hotkey for entry in make_roster(view, [A, B, C])] == [C, A]  # by stage, then by hotkey
    assert [entry.hotkey for entry in make_roster(view, [A, B])] == [A]
    declare(view, C, "another")
    assert [entry.hotkey for entry in make_roster(view, [A, B, C])] == [A]
