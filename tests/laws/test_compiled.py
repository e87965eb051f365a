"""A compiled stage computes what an eager one does, and the same bits in every engine, recomputed or not."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from subnet.data.batches import tokens, wire_tokens
from subnet.data.corpus import Corpus
from subnet.train.engine import StageEngine, StepPlan
from subnet.types import Digest, MicrobatchId, StageId
from tests.tiny import text_corpus, tiny_run

NUM_MICROBATCHES = 2


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return text_corpus()


def trained(corpus: Corpus, *, compiled: bool, max_graphs: float = NUM_MICROBATCHES) -> StageEngine:
    """The first stage after a step on two microbatches that were in flight together."""
    run = tiny_run(corpus, compiled=compiled, **{"boundary.kind": "anchored", "boundary.dims": 4})
    engine = StageEngine(run, StageId(0))
    if compiled:
        engine.warm_up()
    engine.begin(engine.initial_state(), StepPlan(0, NUM_MICROBATCHES * run.microbatch_tokens, 0))
    engine.max_graphs = max_graphs
    crossed = []
    for number in range(NUM_MICROBATCHES):
        batch = wire_tokens(tokens(run, corpus, MicrobatchId(number)), run.model.vocab_size)
        outputs = engine.forward(MicrobatchId(number), batch, None).outputs
        assert outputs is not None
        crossed.append(engine.boundary.unpack(outputs))
    for number, values in enumerate(crossed):
        engine.backward(MicrobatchId(number), engine.boundary.pack_grad(values, seed=number))
    engine.step()
    return engine


def root(engine: StageEngine) -> Digest:
    return engine.snapshot({}).root


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_compiling_changes_nothing_that_an_audit_sees(corpus: Corpus) -> None:
    eager, compiled = trained(corpus, compiled=False), trained(corpus, compiled=True)
    start = eager.initial_state().params
    moved = np.linalg.norm(eager.params() - start)
    assert np.linalg.norm(compiled.params() - eager.params()) < 1e-3 * moved
    assert root(trained(corpus, compiled=True)) == root(compiled)
    assert root(trained(corpus, compiled=True, max_graphs=0)) == root(compiled)
