"""Invariant 10: scores from one ledger prefix are equal to the bit on every validator; a restart changes nothing."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from incentives.scores import ScoreBook, Scores, fold_scores
from subnet.records import parse_lines, to_lines
from subnet.types import Role
from tests.unit.book_of_rounds import FLOPS, Book, small_run

ROOT = Path(__file__).resolve().parents[2]
STAGES = {"a": 0, "b": 0, "c": 1, "d": 1, "e": 1}

PROGRAM = """
import json, sys
from incentives.scores import fold_scores
from subnet.config import parse_run_config
from subnet.records import parse_lines
run = parse_run_config(json.loads(sys.argv[1]))
found = fold_scores(parse_lines(sys.stdin.buffer.read()), run, json.loads(sys.argv[2]))
json.dump({hotkey: value.hex() for hotkey, value in found.by_hotkey.items()}, sys.stdout)
"""


def random_ledger(seed: int, num_rounds: int = 9) -> Book:
    """Rounds with gaps, duplicates, absentees, uncommitted rounds and failed audits."""
    chance, book = random.Random(seed), Book()
    book.register("v1", Role.VALIDATOR)
    for number in range(num_rounds):
        book.open(number, STAGES, 20 * number, 20)
        names = [name for name in STAGES if chance.random() < 0.9]
        chance.shuffle(names)
        for name in names:
            ids = [mb for mb in range(20 * number, 20 * number + 20) if chance.random() < 0.6]
            book.commit(name, number, STAGES[name], ids)
        book.close(number, [name for name in names if chance.random() < 0.95], committed=chance.random() < 0.9)
        if chance.random() < 0.4:
            book.verdict("v1", chance.randrange(number + 1), chance.choice(sorted(STAGES)))
        if number == 4:
            book.register("v2", Role.VALIDATOR)
        if chance.random() < 0.4:
            book.verdict("v2", chance.randrange(number + 1), chance.choice(sorted(STAGES)))
    return book


def fold(book: Book) -> Scores:
    return fold_scores(book.entries, small_run(), FLOPS)


@given(seed=st.integers(0, 10**6), cuts=st.lists(st.integers(0, 200), max_size=6))
@settings(max_examples=40)
def test_folding_in_pieces_and_asking_in_between_changes_nothing(seed: int, cuts: list[int]) -> None:
    book, pieces = random_ledger(seed), ScoreBook(small_run(), FLOPS)
    for entry in book.entries:
        pieces.add(entry)
        if entry.seq in cuts:
            assert pieces.scores() == fold_scores(book.entries[: entry.seq + 1], small_run(), FLOPS)
    assert pieces.scores() == fold(book)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=30)
def test_a_restart_from_the_ledgers_bytes_changes_nothing(seed: int) -> None:
    book = random_ledger(seed)
    assert fold_scores(parse_lines(to_lines(book.entries)), small_run(), FLOPS) == fold(book)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=30)
def test_nothing_is_paid_twice_and_all_work_is_accounted_for(seed: int) -> None:
    found = fold(random_ledger(seed))
    per_stage: dict[tuple[int, int], int] = {}
    for row in found.rows:
        voided = sum(count for reason, count in row.unpaid if reason == "audit-failed")
        per_stage[row.round, row.stage] = per_stage.get((row.round, row.stage), 0) + row.num_paid + voided
    assert all(count <= 20 for count in per_stage.values())
    for number in {row.round for row in found.rows}:
        rows = [row for row in found.rows if row.round == number]
        work = sum(per_stage.get((number, stage), 0) * 100 * int(flops) for stage, flops in enumerate(FLOPS))
        paid = sum(row.flops for row in rows)
        assert paid <= work
        if all(per_stage.get((number, stage), 0) for stage in range(len(FLOPS))):
            assert work - paid < len(STAGES) + len(FLOPS)  # what rounding down leaves


def test_other_processes_with_other_hash_seeds_agree_to_the_bit() -> None:
    book, run = random_ledger(11), small_run()
    arguments = [json.dumps(run.model_dump(mode="json")), json.dumps(list(FLOPS))]
    expected = {hotkey: value.hex() for hotkey, value in fold(book).by_hotkey.items()}
    assert len(set(expected.values())) > 2
    for hash_seed in ("0", "77"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments],
            input=to_lines(book.entries),
            capture_output=True,
            check=True,
            cwd=ROOT,
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            timeout=60,
        )
        assert json.loads(done.stdout) == expected
