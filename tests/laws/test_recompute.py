"""A microbatch whose graph was not kept gives the same bits as one whose graph was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from subnet.data.batches import tokens, wire_tokens
from subnet.data.corpus import Corpus
from subnet.model.flops import depth_that_fits, stage_memory_bytes, stage_parameters
from subnet.train.engine import StageEngine, StepPlan
from subnet.train.state import PendingHead
from subnet.types import MicrobatchId, StageId
from tests.tiny import text_corpus, tiny_run

NUM_MICROBATCHES = 6


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return text_corpus()


def played(engine: StageEngine, corpus: Corpus, order: list[int]) -> list[Any]:
    """Forward at a number's first place in ``order``, backward at its second; a step after every other backward."""
    run, boundary, width = engine.run, engine.boundary, engine.run.boundary.dims or engine.run.model.width
    made: list[Any] = []
    done: set[int] = set()

    def values(seed: int) -> Tensor:
        shape = (run.data.sequences, run.model.seq_len, width)
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed))

    for number in order:
        microbatch = MicrobatchId(number)
        if number not in engine.pending:
            batch = wire_tokens(tokens(run, corpus, microbatch), run.model.vocab_size)
            inputs = boundary.pack(values(number)) if engine.stage else None
            result = engine.forward(microbatch, batch, inputs)
            made.append((result.outputs, result.loss))
            continue
        grads = None if engine.module.is_last else boundary.pack_grad(values(number + 100) / 1e3, number)
        made.append((engine.backward(microbatch, grads).grads, None))
        done.add(number)
        if len(done) % 2 == 0:
            engine.step()
    heads = {number: PendingHead(number, 0, None) for number in engine.pending}
    return [*made, engine.snapshot(heads).root]


def same(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return all(torch.equal(left[name], right[name]) for name in left)
    return bool(left == right)


@settings(max_examples=8)
@given(
    order=st.permutations([number for number in range(NUM_MICROBATCHES) for _ in range(2)]),
    kind=st.sampled_from(["none", "int8", "anchored"]),
    stage=st.integers(0, 2),
    max_graphs=st.integers(0, 2),
)
def test_recomputing_changes_no_bit(corpus: Corpus, order: list[int], kind: str, stage: int, max_graphs: int) -> None:
    dims = 4 if kind == "anchored" else 0
    run = tiny_run(corpus, **{"boundary.kind": kind, "boundary.dims": dims})
    outcomes = []
    for limit in (float("inf"), max_graphs):
        engine = StageEngine(run, StageId(stage))
        engine.begin(engine.initial_state(), StepPlan(0, 1e9, 0))
        engine.max_graphs = limit
        outcomes.append(played(engine, corpus, order))
    kept, redone = outcomes
    assert kept[-1] == redone[-1]
    for (left, left_loss), (right, right_loss) in zip(kept[:-1], redone[:-1], strict=True):
        assert left_loss == right_loss
        assert same(left, right)


def test_only_so_many_graphs_are_kept(corpus: Corpus) -> None:
    run = tiny_run(corpus)
    engine = StageEngine(run, StageId(0))
    engine.begin(engine.initial_state(), StepPlan(0, 1e9, 0))
    engine.max_graphs = 2
    for number in range(4):
        batch = wire_tokens(tokens(run, corpus, MicrobatchId(number)), run.model.vocab_size)
        engine.forward(MicrobatchId(number), batch, None)
    assert [item.graph is not None for item in engine._pending.values()] == [True, True, False, False]


def test_depth_comes_before_graphs(corpus: Corpus) -> None:
    run, stage = tiny_run(corpus), StageId(1)
    least, version = stage_memory_bytes(run, stage, 1), 4 * stage_parameters(run, stage)
    graph = least - stage_memory_bytes(run, stage, 0)
    assert depth_that_fits(run, stage, 1, 8) == (1, 1)
    assert depth_that_fits(run, stage, least + 2 * version, 8) == (3, 0)
    assert depth_that_fits(run, stage, least + 7 * version + 3 * graph, 8) == (8, 3)
    assert depth_that_fits(run, stage, 1e12, 8) == (8, 8)
