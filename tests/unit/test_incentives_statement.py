"""Statements: the rows add up to the score, nothing that was claimed is left out, and the README's example is true."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from incentives.scores import fold_scores
from incentives.statement import statement
from incentives.weights import weights
from subnet.types import Hotkey, Role
from tests.unit.book_of_rounds import FLOPS, OWNER, Book, key, small_run

STAGES = {"ann": 0, "bob": 0, "cid": 1}

# The worked example of the README ("How pay is computed"): two rounds of ten microbatches of 100 tokens. Stage 0 costs
# 1,000 FLOPs a token, stage 1 costs 3,000; work halves in two rounds.
EXAMPLE = {
    "ann": (
        "round 0 stage 0: 6 microbatches, 600 tokens paid; 1200000 FLOPs x 0.7071 = 848528",
        "round 1 stage 0: 7 microbatches, 700 tokens paid; 1400000 FLOPs x 1.0000 = 1400000",
        "score 2248528 = 32.93 % of all work",
    ),
    "bob": (
        "round 0 stage 0: 0 microbatches, 0 tokens paid, 4 not paid (audit-failed); 800000 FLOPs x 0.7071 = 0",
        "round 1 stage 0: 0 microbatches, 0 tokens paid, 3 not paid (audit-failed), 1 not paid (duplicate); "
        "600000 FLOPs x 1.0000 = 0",
        "audit of round 0, segment 0 failed: output-mismatch",
        "score 0 = 0.00 % of all work",
    ),
    "cid": (
        "round 0 stage 1: 10 microbatches, 1000 tokens paid; 2000000 FLOPs x 0.7071 = 1414213",
        "round 1 stage 1: 10 microbatches, 1000 tokens paid; 2000000 FLOPs x 1.0000 = 2000000",
        "score 3414213 = 50.00 % of all work",
    ),
}
WEIGHTS = {"ann": 0.3293, "cid": 0.5000, "owner": 0.1707}


def example() -> Book:
    book = Book()
    book.register("val", Role.VALIDATOR)
    book.plain_round(0, STAGES, {"ann": range(6), "bob": range(6, 10), "cid": range(10)}, 10)
    book.plain_round(1, STAGES, {"ann": range(10, 17), "bob": range(16, 20), "cid": range(10, 20)}, 10)
    book.verdict("val", 0, "bob")
    return book


def test_the_worked_example_of_the_readme() -> None:
    scores = fold_scores(example().entries, small_run(), FLOPS)
    for name, lines in EXAMPLE.items():
        assert statement(scores, key(name)).lines() == lines
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    assert all(line in readme for lines in EXAMPLE.values() for line in lines)
    found = weights(scores.by_hotkey, scores.burned, OWNER, {key(name) for name in STAGES})
    assert {hotkey: round(share, 4) for hotkey, share in found.items()} == WEIGHTS


def test_a_stranger_has_an_empty_statement() -> None:
    empty = statement(fold_scores(example().entries, small_run(), FLOPS), Hotkey("nobody"))
    assert (empty.rows, empty.points, empty.share) == ((), 0, 0.0)
    assert statement(fold_scores([], small_run(), FLOPS), Hotkey("nobody")).share == 0.0


claims = st.lists(
    st.dictionaries(st.sampled_from(sorted(STAGES)), st.sets(st.integers(0, 12)), min_size=1), min_size=1, max_size=6
)


@given(claims=claims, failed=st.booleans())
def test_statements_add_up(claims: list[dict[str, set[int]]], failed: bool) -> None:
    book = Book()
    book.register("val", Role.VALIDATOR)
    for number, applied in enumerate(claims):
        shifted = {name: sorted(10 * number + item for item in ids) for name, ids in applied.items()}
        book.plain_round(number, STAGES, shifted, 10)
    if failed:
        book.verdict("val", len(claims) - 1, "bob")
    scores = fold_scores(book.entries, small_run(window_rounds=10), FLOPS)
    accounts = [statement(scores, hotkey) for hotkey in scores.points]
    for account in accounts:
        assert sum(row.points for row in account.rows) == account.points == scores.points[account.hotkey]
        claimed = sum(len(applied.get(account.hotkey, ())) for applied in claims)
        assert sum(row.num_paid + sum(count for _, count in row.unpaid) for row in account.rows) == claimed
        assert sum(row.num_tokens for row in account.rows) == 100 * sum(row.num_paid for row in account.rows)
    whole = sum(account.points for account in accounts) + scores.burned
    if whole:
        assert abs(sum(account.share for account in accounts) + scores.burned / whole - 1.0) < 1e-12
