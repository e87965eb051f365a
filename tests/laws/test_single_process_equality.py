"""Invariants 1-4: the pipeline of engines is the model, merged rounds are AdamW, and a journal is a state."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from subnet.config import RunConfig
from subnet.data.batches import tokens, wire_tokens
from subnet.data.corpus import Corpus
from subnet.model.stages import FullModel, cut, full_model, parameter_layout
from subnet.train import merge
from subnet.train.engine import StageEngine, StepPlan
from subnet.train.recorder import RecordedStage
from subnet.types import Digest, Hotkey, MicrobatchId, StageId
from tests.tiny import text_corpus, tiny_run

DOCUMENT = Digest("d" * 64)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return text_corpus()


def batch(run: RunConfig, corpus: Corpus, number: int) -> torch.Tensor:
    return wire_tokens(tokens(run, corpus, MicrobatchId(number)), run.model.vocab_size)


def pipeline_pass(engines: Sequence[StageEngine | RecordedStage], token_ids: torch.Tensor, number: int) -> float:
    """One microbatch through all stages and back, as the wire would carry it."""
    packed, loss = None, None
    for engine in engines:
        result = engine.forward(MicrobatchId(number), token_ids, packed)
        packed, loss = result.outputs, result.loss
    grads = None
    for engine in reversed(engines):
        grads = engine.backward(MicrobatchId(number), grads).grads
    assert loss is not None
    return loss


@pytest.mark.parametrize("kind", ["none", "int8", "anchored", "resbm"])
@pytest.mark.parametrize("num_stages", [1, 2, 3])
def test_gradient_through_the_boundaries_is_the_gradient_of_the_model_in_one_process(
    corpus: Corpus, kind: str, num_stages: int
) -> None:
    changes = {"boundary.kind": kind, "boundary.dims": 4, "boundary.grad_stride": 2, "stages.num_stages": num_stages}
    run = tiny_run(corpus, **changes)
    engines = [StageEngine(run, StageId(stage)) for stage in range(num_stages)]
    for engine in engines:
        engine.begin(engine.initial_state(), StepPlan(0, 1e9, 0))
    model, token_ids = full_model(run), batch(run, corpus, 0)
    losses = model.losses(token_ids.to(torch.int64))
    torch.stack(losses).sum().backward()
    assert pipeline_pass(engines, token_ids, 0) == pytest.approx(losses[-1].item(), rel=1e-6)
    for engine, stage in zip(engines, model.stages, strict=True):
        expected = torch.cat([item.grad.flatten() for item in stage.parameters() if item.grad is not None])
        found = engine._grad / run.microbatch_tokens
        assert torch.linalg.vector_norm(found - expected) <= 1e-5 * torch.linalg.vector_norm(expected)


def test_initial_parameters_do_not_depend_on_the_cut(corpus: Corpus) -> None:
    flats = []
    for num_stages in (1, 3):
        model = full_model(tiny_run(corpus, **{"stages.num_stages": num_stages}))
        flats.append(torch.cat([item.detach().flatten() for item in model.parameters()]))
    assert torch.equal(*flats)


def single_process(run: RunConfig, corpus: Corpus, rounds: int) -> FullModel:
    """Plain torch: AdamW on the mean loss over each round's microbatches."""
    model = full_model(run)
    decays, plain = [], []
    for stage in model.stages:
        for slot, item in zip(parameter_layout(stage), stage.parameters(), strict=True):
            (decays if slot.decays else plain).append(item)
    groups = [{"params": decays, "weight_decay": run.inner.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    betas = (run.inner.beta1, run.inner.beta2)
    optimizer = torch.optim.AdamW(groups, lr=run.inner.learning_rate, betas=betas, eps=run.inner.eps)
    for index in range(rounds):
        optimizer.zero_grad()
        for number in range(index * run.round.microbatches, (index + 1) * run.round.microbatches):
            (model.loss(batch(run, corpus, number).to(torch.int64)) / run.round.microbatches).backward()
        optimizer.step()
    return model


def test_the_equality_run_is_single_process_training(corpus: Corpus, tmp_path: Path) -> None:
    """H=1 per drained round, outer lr 1, momentum 0, no clip, no boundary, one replica per stage."""
    changes = {"round.inner_steps": 1, "outer.learning_rate": 1.0, "outer.momentum": 0.0, "inner.clip_norm": 0.0}
    run = tiny_run(corpus, **changes)
    engines = [StageEngine(run, StageId(stage)) for stage in range(3)]
    states = [engine.initial_state() for engine in engines]
    for index in range(4):
        plan = StepPlan(index * run.round_tokens, run.round_tokens, run.round_tokens)
        recorded = [
            RecordedStage.begin(engine, tmp_path / f"{index}-{engine.stage}", state, DOCUMENT, plan)
            for engine, state in zip(engines, states, strict=True)
        ]
        for number in range(index * run.round.microbatches, (index + 1) * run.round.microbatches):
            pipeline_pass(recorded, batch(run, corpus, number), number)
        for place, stage in enumerate(recorded):
            assert stage.step_if_due() is not None
            finished = stage.finish()
            assert (finished.num_tokens, finished.end.moments.step) == (run.round_tokens, index + 1)
            size = len(finished.pseudo_grad)
            merged = np.empty(size, dtype=np.float32)
            for part in merge.shard_slices(size, run.outer.num_shards):
                values = finished.pseudo_grad[part]
                one = merge.Contribution(Hotkey("a"), values, run.round_tokens, merge.norm(values))
                zero = np.zeros_like(values)
                merged[part], _ = merge.merge_shard(finished.start.params[part], zero, [one], run.outer)
            states[place] = finished.end.with_params(merged)
            stage.close()
    model = single_process(run, corpus, 4)
    for state, stage in zip(states, model.stages, strict=True):
        expected = torch.cat([item.detach().flatten() for item in stage.parameters()]).numpy()
        assert np.linalg.norm(state.params - expected) <= 1e-5 * np.linalg.norm(expected)


def test_every_cut_covers_the_model(corpus: Corpus) -> None:
    for num_stages in (1, 2, 3):
        blocks = [number for part in cut(tiny_run(corpus, **{"stages.num_stages": num_stages})) for number in part]
        assert blocks == [0, 1, 2]
