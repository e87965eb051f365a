"""The engine of one stage against plain torch: weighting, stale graphs, clipping, the rhythm of steps, divergence."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from subnet.config import RunConfig
from subnet.data.batches import tokens, wire_tokens
from subnet.data.corpus import Corpus
from subnet.errors import Diverged
from subnet.model.stages import token_loss
from subnet.train.engine import StageEngine, StepPlan
from subnet.train.optim import Moments, stage_inner
from subnet.train.state import PendingHead, StageState
from subnet.types import MicrobatchId, StageId
from tests.tiny import text_corpus, tiny_run

NEVER = StepPlan(0, 1e12, 0)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return text_corpus()


@pytest.fixture(scope="module")
def run(corpus: Corpus) -> RunConfig:
    return tiny_run(corpus)


def started(run: RunConfig, stage: int, plan: StepPlan = NEVER) -> StageEngine:
    engine = StageEngine(run, StageId(stage))
    engine.begin(engine.initial_state(), plan)
    return engine


def token_ids(run: RunConfig, corpus: Corpus, number: int) -> Tensor:
    return wire_tokens(tokens(run, corpus, MicrobatchId(number)), run.model.vocab_size)


def hidden(run: RunConfig, number: int) -> dict[str, Tensor]:
    shape = (run.data.sequences, run.model.seq_len, run.model.width)
    return {"values": torch.randn(shape, generator=torch.Generator().manual_seed(number))}


def work(engine: StageEngine, corpus: Corpus, number: int) -> None:
    """One microbatch through a middle stage and back."""
    microbatch = MicrobatchId(number)
    engine.forward(microbatch, token_ids(engine.run, corpus, number), hidden(engine.run, number))
    engine.backward(microbatch, hidden(engine.run, number + 1000))


def test_a_stale_backward_is_that_of_a_deep_copy_made_at_its_forward(run: RunConfig, corpus: Corpus) -> None:
    """Gradients to the parameters and to the input, two steps after the forward."""
    engine = started(run, 1)
    work(engine, corpus, 1)
    engine.step()
    reference = copy.deepcopy(engine.module)
    engine.forward(MicrobatchId(0), token_ids(run, corpus, 0), hidden(run, 0))
    for number in (2, 3):
        work(engine, corpus, number)
        engine.step()
    sent = engine.backward(MicrobatchId(0), hidden(run, 9))
    inputs = hidden(run, 0)["values"].requires_grad_()
    crossing = reference(token_ids(run, corpus, 0).long()[:, :-1], inputs).crossing
    crossing.backward(hidden(run, 9)["values"])
    assert (sent.version, sent.staleness) == (1, 2)
    assert sent.grads is not None
    assert inputs.grad is not None
    assert torch.equal(sent.grads["values"], inputs.grad)
    expected = torch.cat([item.grad.flatten() for item in reference.parameters() if item.grad is not None])
    torch.testing.assert_close(engine._grad / run.microbatch_tokens, expected, rtol=1e-6, atol=1e-9)


def test_the_last_stage_computes_the_mean_loss_and_its_gradient(run: RunConfig, corpus: Corpus) -> None:
    engine = started(run, 2)
    result = engine.forward(MicrobatchId(0), token_ids(run, corpus, 0), hidden(run, 0))
    sent = engine.backward(MicrobatchId(0), None)
    inputs = hidden(run, 0)["values"].requires_grad_()
    ids = token_ids(run, corpus, 0).long()
    logits = engine.module(ids[:, :-1], inputs).logits
    loss = token_loss(logits, ids[:, 1:])
    loss.backward()
    assert result.outputs is None
    assert result.loss == loss.item()
    assert sent.grads is not None
    assert inputs.grad is not None
    assert torch.equal(sent.grads["values"], inputs.grad)


def test_the_first_stage_sends_nothing_upstream(run: RunConfig, corpus: Corpus) -> None:
    engine = started(run, 0)
    assert engine.forward(MicrobatchId(0), token_ids(run, corpus, 0), None).loss is None
    assert engine.backward(MicrobatchId(0), hidden(run, 0)).grads is None
    assert engine.has_gradient


def test_microbatches_weigh_as_many_tokens_as_they_have(run: RunConfig, corpus: Corpus) -> None:
    """Two microbatches of unlike length step as the token-weighted mean of their gradients."""
    grads, sizes = [], (run.data.sequences, 1)
    for number, rows in enumerate(sizes):
        engine = started(run, 2)
        inputs = {"values": hidden(run, number)["values"][:rows]}
        engine.forward(MicrobatchId(number), token_ids(run, corpus, number)[:rows], inputs)
        engine.backward(MicrobatchId(number), None)
        grads.append(engine._grad / (rows * run.model.seq_len))
    both = started(run, 2)
    for number, rows in enumerate(sizes):
        inputs = {"values": hidden(run, number)["values"][:rows]}
        both.forward(MicrobatchId(number), token_ids(run, corpus, number)[:rows], inputs)
        both.backward(MicrobatchId(number), None)
    expected = sum(rows * grad for rows, grad in zip(sizes, grads, strict=True)) / sum(sizes)
    result = both.step()
    assert result.num_tokens == sum(sizes) * run.model.seq_len
    assert result.grad_norm == pytest.approx(float(torch.linalg.vector_norm(expected)), rel=1e-5)


def test_every_replica_takes_its_steps_when_its_share_is_reached(run: RunConfig, corpus: Corpus) -> None:
    """A share that is no multiple of a microbatch: the thresholds do not drift, and all steps are taken."""
    size = run.microbatch_tokens
    engine = started(run, 1, StepPlan(0, 10 * size / 4, 10 * size / 4))
    stepped_after = []
    for number in range(10):
        work(engine, corpus, number)
        if engine.should_step():
            engine.step()
            stepped_after.append(number + 1)
    assert stepped_after == [3, 5, 8, 10]
    assert not engine.has_gradient


def test_the_learning_rate_follows_the_runs_tokens_not_the_replicas(corpus: Corpus) -> None:
    run = tiny_run(corpus, **{"inner.warmup_tokens": 10_000})
    rates = []
    for share in (1.0, 0.25):
        engine = started(run, 1, StepPlan(2_000, share * 1_000, 1_000))
        for number in range(2):
            work(engine, corpus, number)
            rates.append(engine.step().learning_rate)
    assert rates[:2] == rates[2:]
    assert rates[0] == pytest.approx(run.inner.learning_rate * 0.3)
    assert rates[1] == pytest.approx(run.inner.learning_rate * 0.4)


def test_a_step_is_adamw_on_the_clipped_gradient(corpus: Corpus) -> None:
    run = tiny_run(corpus, **{"inner.clip_norm": 1e-3})
    engine = started(run, 1)
    reference = copy.deepcopy(engine.module)
    work(engine, corpus, 0)
    result = engine.step()
    inputs = hidden(run, 0)["values"]
    crossing = reference(token_ids(run, corpus, 0).long()[:, :-1], inputs).crossing
    crossing.backward(hidden(run, 1000)["values"])
    total = torch.nn.utils.clip_grad_norm_(reference.parameters(), stage_inner(run, StageId(1)).clip_norm)
    inner = run.inner
    groups = [
        {
            "params": [p for p, slot in zip(reference.parameters(), engine.layout, strict=True) if slot.decays is flag],
            "weight_decay": inner.weight_decay if flag else 0.0,
        }
        for flag in (True, False)
    ]
    torch.optim.AdamW(groups, lr=result.learning_rate, betas=(inner.beta1, inner.beta2), eps=inner.eps).step()
    assert result.grad_norm == pytest.approx(float(total), rel=1e-5)
    expected = torch.cat([item.detach().flatten() for item in reference.parameters()])
    np.testing.assert_allclose(engine.params(), expected.numpy(), rtol=1e-5, atol=1e-6)


def test_equal_operations_give_equal_bits(run: RunConfig, corpus: Corpus) -> None:
    roots = []
    for _ in range(2):
        engine = started(run, 1)
        for number in range(3):
            work(engine, corpus, number)
            engine.step()
        roots.append(engine.snapshot({}).root)
    assert roots[0] == roots[1]


def test_a_snapshot_stays_what_it_was_while_the_engine_goes_on(run: RunConfig, corpus: Corpus) -> None:
    engine = started(run, 1)
    engine.forward(MicrobatchId(7), token_ids(run, corpus, 7), hidden(run, 7))
    work(engine, corpus, 0)
    engine.step()
    heads = {MicrobatchId(7): PendingHead(microbatch=MicrobatchId(7), version=0, attempt=0, peer=None)}
    state = engine.snapshot(heads)
    root = state.root
    assert list(state.stash or {}) == [0]
    engine.backward(MicrobatchId(7), hidden(run, 8))
    engine.step()
    assert replace(state).root == root  # computed once more
    engine.begin(state, NEVER)
    assert engine.snapshot(heads).root == root
    assert engine.pending == (7,)


def test_a_loss_that_is_not_finite_is_told_and_leaves_nothing_in_flight(run: RunConfig, corpus: Corpus) -> None:
    engine = started(run, 2)
    with pytest.raises(Diverged):
        engine.forward(MicrobatchId(0), token_ids(run, corpus, 0), {"values": hidden(run, 0)["values"] * float("inf")})
    assert engine.pending == ()
    assert not engine.has_gradient


def test_a_gradient_that_is_not_finite_is_told_before_the_parameters_change(run: RunConfig, corpus: Corpus) -> None:
    engine = started(run, 1)
    engine.forward(MicrobatchId(0), token_ids(run, corpus, 0), hidden(run, 0))
    engine.backward(MicrobatchId(0), {"values": torch.full_like(hidden(run, 0)["values"], 3e38)})
    before = engine.params()
    with pytest.raises(Diverged):
        engine.step()
    assert np.array_equal(engine.params(), before)


def test_begin_forgets_the_round_before(run: RunConfig, corpus: Corpus) -> None:
    engine = started(run, 1)
    initial = engine.snapshot({})
    engine.forward(MicrobatchId(0), token_ids(run, corpus, 0), hidden(run, 0))
    work(engine, corpus, 1)
    engine.step()
    work(engine, corpus, 2)
    moved = StageState(initial.params + np.float32(1), Moments.zeros(engine.num_parameters), initial.num_shards)
    engine.begin(moved, NEVER)
    assert (engine.version, engine.pending, engine.has_gradient) == (0, (), False)
    assert engine.snapshot({}).root == moved.root
