"""FLOPs per token: the model's by the formula of the PaLM paper, the boundaries' beside them, pay's as their sum."""

from __future__ import annotations

import pytest

from subnet.config import load_run_config
from subnet.model.flops import (
    boundary_flops_per_token,
    model_flops_per_token,
    stage_flops_per_token,
    stage_model_flops_per_token,
)
from subnet.model.stages import full_model
from subnet.types import StageId
from tests.tiny import text_corpus, tiny_run

LEARNED = {"boundary.kind": "anchored", "boundary.dims": 4, "boundary.predictor_width": 8}


def test_the_model_flops_of_the_tiny_run_by_hand() -> None:
    # A block of width 16: q and out 16x16 each, k and v 16x8 each, three matrices of 16x32; the head 16x256.
    matrices = 3 * (2 * 256 + 2 * 128 + 3 * 512) + 16 * 256
    assert matrices == 11_008
    assert model_flops_per_token(tiny_run(text_corpus())) == 6 * 11_008 + 12 * 3 * 16 * 16 == 75_264


@pytest.mark.parametrize("changes", [{}, {"stages.num_stages": 1}, LEARNED])
def test_stages_add_up_to_6n_and_12ldt_whatever_the_cut_and_the_boundary(changes: dict[str, object]) -> None:
    run = load_run_config("localnet").with_values(**changes)
    model, stages = run.model, [StageId(stage) for stage in range(run.stages.num_stages)]
    uncut = run.with_values(**{"boundary.kind": "none"})
    parameters = full_model(uncut).named_parameters()
    num = sum(item.numel() for _, item in parameters if item.dim() == 2) - model.vocab_size * model.width
    expected = 6 * num + 12 * model.num_blocks * model.width * model.seq_len
    assert sum(stage_model_flops_per_token(run, stage) for stage in stages) == expected
    assert model_flops_per_token(run) == expected


def test_boundary_ends_and_predictors_are_work_that_is_paid_and_no_model_flops() -> None:
    run = tiny_run(text_corpus(), **LEARNED)
    # Per predictor: 8 tokens of 32 channels to 8, and 8 to 16; a reader: 4 to 16 twice, and 16 to 16.
    predictor, reader, encoder, head = 8 * 32 * 8 + 8 * 16, 2 * 4 * 16 + 16 * 16, 4 * 16, 256 * 16
    entry, ending = predictor + reader, encoder + reader + predictor + head
    # The first stage has a predictor in place of the table.
    assert boundary_flops_per_token(run, StageId(0)) == 6 * (predictor + ending)
    assert boundary_flops_per_token(run, StageId(1)) == 6 * (entry + ending)
    assert boundary_flops_per_token(run, StageId(2)) == 6 * entry
    plain = tiny_run(text_corpus())
    for stage in (StageId(0), StageId(1), StageId(2)):
        assert boundary_flops_per_token(plain, stage) == 0
        model, ends = stage_model_flops_per_token(run, stage), boundary_flops_per_token(run, stage)
        assert model == stage_flops_per_token(plain, stage)
        assert stage_flops_per_token(run, stage) == model + ends
