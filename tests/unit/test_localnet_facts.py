"""Facts of a localnet: digests, payments, merged parameters and losses, each from evidence alone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import numpy as np
import pytest

from incentives.scores import ScoreRow, fold_scores
from subnet.config import RunConfig
from subnet.data.corpus import Corpus
from subnet.errors import Missing
from subnet.hashing import EMPTY_ROOT
from subnet.localnet.facts import digests_differed, held_out_losses, merged_params, paid_twice
from subnet.net.base import PeerAddress
from subnet.net.blobs import shard_key
from subnet.records import LedgerKind, ReplicaReady, ShardFinal
from subnet.swarm.view import RunView
from subnet.train.engine import StageEngine
from subnet.train.merge import shard_digest, shard_slices
from subnet.types import Digest, Hotkey, RoundId, StageId
from tests.tiny import text_corpus, tiny_run
from tests.unit.book_of_rounds import FLOPS, Book, key, small_run


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return text_corpus()


# --- digests


def proved(book: Book, name: str, number: int, stage: int, root: str) -> None:
    body = ReplicaReady(round=RoundId(number), stage=StageId(stage), params_root=Digest(root), optim_root=EMPTY_ROOT)
    book.append(LedgerKind.READY, key(name), body)


def test_equal_roots_per_stage_and_round_do_not_differ() -> None:
    book = Book()
    for number in (-1, 0):
        for stage in (0, 1):
            for replica in ("a", "b"):
                proved(book, f"{replica}{stage}", number, stage, f"{number}{stage}".rjust(64, "0"))
    assert digests_differed(book.entries, {}) == []


def test_the_odd_one_out_is_named() -> None:
    book = Book()
    for name, root in (("a", "1" * 64), ("b", "1" * 64), ("c", "2" * 64)):
        proved(book, name, 3, 0, root)
    assert digests_differed(book.entries, {key("c"): "miner-3"}) == ["miner-3 in round 3"]


# --- payments


def paid_book() -> Book:
    """Two rounds; in the first, "b" does again what "a" did."""
    book, stages = Book(), {"a": 0, "b": 0, "c": 1}
    book.plain_round(0, stages, {"a": [0, 1, 2], "b": [2, 3], "c": [0, 1, 2, 3]}, 4)
    book.plain_round(1, stages, {"a": [4, 5], "b": [6, 7], "c": [4, 5, 6, 7]}, 4)
    return book


def rows_of(book: Book, run: RunConfig) -> tuple[ScoreRow, ...]:
    return fold_scores(book.entries, run, FLOPS).rows


def test_a_duplicate_that_is_paid_once_is_not_paid_twice() -> None:
    book = paid_book()
    rows = rows_of(book, small_run())
    assert sum(row.num_paid for row in rows) == 16
    assert paid_twice(book.entries, rows) == 0


def test_one_payment_too_many_is_found_although_the_round_had_room_for_it() -> None:
    book = Book()
    book.plain_round(0, {"a": 0, "b": 0}, {"a": [0, 1], "b": [1]}, 9)  # most of the round was never done
    rows = rows_of(book, small_run())
    wrong = [row.__class__(**{**vars(row), "num_paid": len({"a": [0, 1], "b": [1]}[row.hotkey])}) for row in rows]
    assert paid_twice(book.entries, rows) == 0
    assert paid_twice(book.entries, wrong) == 1


def test_rounds_beyond_the_pay_window_do_not_hide_a_payment() -> None:
    book = paid_book()
    rows = rows_of(book, small_run(window_rounds=1))
    assert {row.round for row in rows} == {1}
    more = [row.__class__(**{**vars(row), "num_paid": row.num_paid + 1}) for row in rows]
    assert paid_twice(book.entries, more) == len(rows)


# --- parameters and losses


class Shelf:
    """Peers of which one hands out blobs."""

    def __init__(self, blobs: Mapping[str, bytes]) -> None:
        self._blobs = blobs

    async def request(
        self,
        to: PeerAddress,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        query: Mapping[str, str] | None = None,
        timeout_s: float,
    ) -> bytes:
        if path not in self._blobs:
            raise Missing("There is no such blob.")
        return self._blobs[path]

    async def aclose(self) -> None:
        """Nothing to let go of."""


ORCHESTRATOR = PeerAddress(Hotkey("owner"), "memory://owner")
OWNERS = (Hotkey("first"), Hotkey("second"))
SHARD = 1


def merged(run: RunConfig, bodies: Mapping[Hotkey, bytes], digest: Digest) -> list[np.ndarray]:
    """What is read when one shard of stage 0 is final and its owners' blobs are ``bodies``."""
    final = ShardFinal(
        round=RoundId(2),
        stage=StageId(0),
        shard=SHARD,
        params_digest=digest,
        momentum_digest=EMPTY_ROOT,
        owners=OWNERS,
        basis="agreed",
    )
    view = RunView(config=run, run_hash=run.hash(), last_finals={(StageId(0), SHARD): final})
    blobs = {
        f"/v1/blobs/{shard_key(run.hash(), RoundId(2), StageId(0), owner, SHARD, 'params')}": body
        for owner, body in bodies.items()
    }
    return asyncio.run(merged_params(view, Shelf(blobs), ORCHESTRATOR))


def test_a_final_shard_replaces_the_initial_one_and_nothing_else(corpus: Corpus) -> None:
    run = tiny_run(corpus)
    initial = [StageEngine(run, StageId(stage)).params() for stage in range(3)]
    place = shard_slices(len(initial[0]), run.outer.num_shards)[SHARD]
    new = initial[0][place] + np.float32(1)
    # The first owner's blob is not what the ledger names; the second one's is.
    bodies = {OWNERS[0]: initial[0][place].tobytes(), OWNERS[1]: new.astype("<f4").tobytes()}
    found = merged(run, bodies, shard_digest(new))
    initial[0][place] = new
    assert all(np.array_equal(left, right) for left, right in zip(found, initial, strict=True))


@pytest.mark.parametrize("bodies", [{}, {OWNERS[0]: np.zeros(4, dtype="<f4").tobytes()}])
def test_a_shard_without_a_copy_of_its_digest_is_missing(corpus: Corpus, bodies: dict[Hotkey, bytes]) -> None:
    with pytest.raises(Missing, match="shard 1 of stage 0"):
        merged(tiny_run(corpus), bodies, shard_digest(np.ones(4, dtype=np.float32)))


def test_without_a_middle_stage_there_is_no_loss_without_it(corpus: Corpus) -> None:
    for stages, has_middle in ((3, True), (2, False)):
        run = tiny_run(corpus, **{"stages.num_stages": stages})
        params = [StageEngine(run, StageId(stage)).params() for stage in range(stages)]
        loss, bypassed = held_out_losses(run, corpus, params)
        assert 5.0 < loss < 6.5  # near ln 256: nothing is learnt yet
        assert (bypassed is not None) == has_middle
        assert bypassed != loss
