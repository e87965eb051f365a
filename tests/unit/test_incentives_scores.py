"""Scores: what is paid, to whom, and what is not."""

from __future__ import annotations

import math

import pytest

from incentives.scores import DECAY_ONE, Scores, decay_parts, fold_scores
from subnet.types import Hotkey, Role, RoundId
from tests.unit.book_of_rounds import FLOPS, Book, key, small_run

STAGES = {"a": 0, "b": 0, "c": 1}
WORK = 10 * 100 * 4000  # FLOPs of ten microbatches through both stages
POOL = WORK // 2


def scores(book: Book, **pay: float) -> Scores:
    run = small_run(int(pay.get("window_rounds", 4)), pay.get("half_life_rounds", 2.0))
    return fold_scores(book.entries, run, FLOPS)


def honest_round() -> Book:
    book = Book()
    book.plain_round(0, STAGES, {"a": range(6), "b": range(6, 10), "c": range(10)}, 10)
    return book


def test_each_stage_is_an_equal_pool_shared_by_tokens() -> None:
    found = scores(honest_round())
    assert found.points == {key("a"): POOL * 6 // 10, key("b"): POOL * 4 // 10, key("c"): POOL}
    assert found.by_hotkey == {name: float(points) for name, points in found.points.items()}
    assert found.burned == 0.0


def test_assignment_does_not_decide_income() -> None:
    """Stage 1 costs three times the FLOPs of stage 0, and both pay the same."""
    book = Book()
    book.plain_round(0, {"cheap": 0, "dear": 1}, {"cheap": range(10), "dear": range(10)}, 10)
    found = scores(book)
    assert found.points[key("cheap")] == found.points[key("dear")] == POOL


def test_a_microbatch_is_paid_once_to_the_earliest_commitment() -> None:
    book = Book()
    book.plain_round(0, STAGES, {"b": range(5, 10), "a": range(6), "c": range(10)}, 10)
    found = scores(book)
    rows = {row.hotkey: row for row in found.rows}
    assert (rows[key("b")].num_paid, rows[key("b")].unpaid) == (5, ())
    assert (rows[key("a")].num_paid, rows[key("a")].unpaid) == (5, (("duplicate", 1),))


def test_partial_microbatches_count_where_they_were_applied() -> None:
    book = Book()
    book.plain_round(0, STAGES, {"a": range(10), "c": range(4)}, 10)
    found = scores(book)
    work = 10 * 100 * 1000 + 4 * 100 * 3000
    assert found.points == {key("a"): work // 2, key("c"): work // 2}


def test_a_pool_that_nobody_earns_burns() -> None:
    book = Book()
    book.plain_round(0, STAGES, {"a": range(10)}, 10)
    found = scores(book)
    assert found.points == {key("a"): 10 * 100 * 1000 // 2}
    assert found.burned == 10 * 100 * 1000 // 2


def test_a_round_that_was_not_committed_pays_nothing() -> None:
    book = Book()
    book.open(0, STAGES, 0, 10)
    book.commit("a", 0, 0, range(10))
    book.close(0, ["a"], committed=False)
    found = scores(book)
    assert found.points == {key("a"): 0}
    assert found.rows[0].unpaid == (("round-not-committed", 10),)


def test_an_open_round_pays_nothing_yet() -> None:
    book = honest_round()
    before = scores(book)
    book.open(1, STAGES, 10, 10)
    book.commit("a", 1, 0, range(10, 20))
    assert scores(book) == before


def test_who_is_not_in_the_closed_set_or_not_on_the_roster_is_not_paid() -> None:
    book = Book()
    book.open(0, STAGES, 0, 10)
    book.commit("a", 0, 0, range(5))
    book.commit("b", 0, 1, range(5))  # of stage 0
    book.commit("stranger", 0, 1, range(5))
    book.commit("c", 0, 1, range(5))
    book.close(0, ["b", "stranger", "c"])
    reasons = {row.hotkey: row.unpaid for row in scores(book).rows}
    assert reasons == {
        "a": (("not-in-closed-set", 5),),
        "b": (("not-in-roster-of-stage", 5),),
        "stranger": (("not-in-roster-of-stage", 5),),
        "c": (),
    }


def test_ids_outside_the_round_are_not_paid() -> None:
    book = Book()
    book.plain_round(0, STAGES, {"a": [*range(10), 99], "c": range(10)}, 10)
    found = scores(book)
    assert found.rows[0].unpaid == (("not-in-round", 1),)
    assert found.points[key("a")] == POOL


def test_nothing_is_paid_again_in_a_later_round() -> None:
    book = honest_round()
    book.open(1, STAGES, 10, 10, released=[0, 1])
    book.commit("b", 1, 0, [0, 1, 10])
    book.close(1, ["b"])
    row = next(row for row in scores(book).rows if row.round == 1)
    assert (row.num_paid, row.unpaid) == (1, (("already-paid", 2),))


def test_a_released_microbatch_is_paid_in_the_round_that_merged_it() -> None:
    book = Book()
    book.plain_round(0, STAGES, {"a": range(8), "c": range(8)}, 10)
    book.open(1, STAGES, 10, 10, released=[8, 9])
    book.commit("b", 1, 0, [8, 9])
    book.close(1, ["b"])
    assert next(row.num_paid for row in scores(book).rows if row.round == 1) == 2


def test_work_decays_by_half_life_and_leaves_after_the_window() -> None:
    book = honest_round()
    full = scores(book).points[key("c")]
    for number in range(1, 5):
        book.open(number, STAGES, 10 * number, 10)
        book.close(number, [])
        found = scores(book)
        expected = full * decay_parts(number, 2.0) // DECAY_ONE if number < 4 else 0
        assert found.points.get(key("c"), 0) == expected
    assert found.rows == ()


def test_decay_is_half_at_the_half_life() -> None:
    assert decay_parts(0, 8.0) == DECAY_ONE
    assert decay_parts(8, 8.0) == DECAY_ONE // 2
    assert math.isclose(decay_parts(3, 8.0) / DECAY_ONE, 0.5 ** (3 / 8), rel_tol=1e-11)


def with_validators(*names: str) -> Book:
    book = Book()
    for name in names:
        book.register(name, Role.VALIDATOR)
    return book


def add_round(book: Book, number: int) -> None:
    first = 10 * number
    applied = {"a": range(first, first + 6), "b": range(first + 6, first + 10), "c": range(first, first + 10)}
    book.plain_round(number, STAGES, applied, 10)


def test_one_of_two_validators_voids_nothing() -> None:
    book = with_validators("v1", "v2")
    add_round(book, 0)
    book.verdict("v1", 0, "a")
    book.verdict("v1", 0, "a")
    assert scores(book).voided == {}


def test_a_confirmed_failure_voids_the_window_and_what_was_earned_burns() -> None:
    book = with_validators("v1", "v2")
    add_round(book, 0)
    add_round(book, 1)
    whole = scores(book)
    book.verdict("v1", 1, "a")
    book.verdict("v2", 1, "a")
    found = scores(book)
    assert found.points[key("a")] == 0
    assert found.burned == float(whole.points[key("a")])
    assert found.points[key("b")] == whole.points[key("b")]
    assert found.voided[key("a")].reason == "output-mismatch"
    assert {row.unpaid for row in found.rows if row.hotkey == "a"} == {(("audit-failed", 6),)}


def test_the_only_validator_confirms_alone_and_it_stays_confirmed() -> None:
    book = with_validators("v1")
    add_round(book, 0)
    book.verdict("v1", 0, "a")
    book.register("v2", Role.VALIDATOR)
    assert scores(book).points[key("a")] == 0


@pytest.mark.parametrize(("number", "segment"), [(1, 0), (0, 1)])
def test_confirmation_is_of_the_same_segment_of_the_same_round(number: int, segment: int) -> None:
    book = with_validators("v1", "v2")
    add_round(book, 0)
    add_round(book, 1)
    book.verdict("v1", 0, "a")
    book.verdict("v2", number, "a", segment=segment)
    assert scores(book).voided == {}


def test_verdicts_of_strangers_and_passes_void_nothing() -> None:
    book = with_validators("v1", "v2")
    book.register("c", Role.MINER)
    add_round(book, 0)
    book.verdict("v1", 0, "a")
    book.verdict("c", 0, "a")
    book.verdict("stranger", 0, "a")
    book.verdict("v2", 0, "a", passed=True)
    assert scores(book).voided == {}


def test_a_voided_hotkey_earns_again_when_its_failure_leaves_the_window() -> None:
    book = with_validators("v1")
    add_round(book, 0)
    book.verdict("v1", 0, "a")
    for number in range(1, 4):
        add_round(book, number)
        assert scores(book).points[key("a")] == 0
    add_round(book, 4)
    assert scores(book).points[key("a")] > 0


def test_a_liar_that_claims_first_takes_nothing_from_the_honest() -> None:
    """It claims everything and commits first; once it is found out, the honest replica is paid in full."""
    book = with_validators("v1")
    book.plain_round(0, STAGES, {"b": range(10), "a": range(6), "c": range(10)}, 10)
    assert scores(book).points[key("a")] == 0
    book.verdict("v1", 0, "b")
    found = scores(book)
    assert found.points[key("a")] == POOL * 6 // 10
    assert found.points[key("b")] == 0


def test_scores_are_of_the_latest_closed_round() -> None:
    book = Book()
    assert scores(book).round == RoundId(-1)
    assert scores(book).points == {}
    add_round(book, 0)
    add_round(book, 1)
    assert scores(book).round == RoundId(1)
    assert set(scores(book).points) == {Hotkey(name) for name in "abc"}
