"""The device of a run: the kind that its audits repeat, and nothing that is not there."""

from __future__ import annotations

import pytest
import torch

from subnet.config import RunConfig
from subnet.data.batches import tokens, wire_tokens
from subnet.errors import ConfigError
from subnet.train.device import CPU, find_device
from subnet.train.engine import StageEngine, StepPlan
from subnet.types import MicrobatchId, StageId
from tests.tiny import text_corpus, tiny_run

HAS_CUDA = torch.cuda.is_available()


def run_on(kind: str) -> RunConfig:
    return tiny_run(text_corpus(), device=kind)


@pytest.mark.parametrize("wanted", ["auto", "cpu"])
def test_a_run_on_cpus_finds_the_cpu(wanted: str) -> None:
    assert find_device(run_on("cpu"), wanted) == CPU


@pytest.mark.parametrize(
    ("kind", "wanted", "reason"),
    [
        ("cpu", "cuda", "computes on cpu"),
        ("cuda", "cpu", "computes on cuda"),
        ("cpu", "toaster", "no device of torch"),
        ("cpu", "cpu:1", "There is no cpu:1"),
    ],
)
def test_a_device_of_another_kind_is_refused(kind: str, wanted: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        find_device(run_on(kind), wanted)
    assert caught.value.advice


def test_a_run_that_compiles_needs_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match="there is no no-such-compiler here") as caught:
        find_device(tiny_run(text_corpus(), compiled=True))
    assert "CXX" in caught.value.advice


@pytest.mark.skipif(HAS_CUDA, reason="CUDA is there")
def test_cuda_where_there_is_none_is_told_with_a_remedy() -> None:
    with pytest.raises(ConfigError, match="torch sees 0 devices") as caught:
        find_device(run_on("cuda"))
    assert "CUDA build of torch" in caught.value.advice


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_CUDA, reason="no CUDA device")
@pytest.mark.parametrize("kind", ["none", "int8", "anchored"])
def test_cuda_computes_what_the_cpu_does_to_the_precision_of_bf16(kind: str) -> None:
    corpus = text_corpus()
    engines = []
    for device in ("cpu", "cuda"):
        run = tiny_run(corpus, device=device, **{"boundary.kind": kind, "stages.num_stages": 1})
        engine = StageEngine(run, StageId(0), find_device(run))
        engine.begin(engine.initial_state(), StepPlan(0, 1e9, 0))
        batch = wire_tokens(tokens(run, corpus, MicrobatchId(0)), run.model.vocab_size)
        loss = engine.forward(MicrobatchId(0), batch, None).loss
        engine.backward(MicrobatchId(0), None)
        engine.step()
        engines.append((loss, torch.from_numpy(engine.params()), engine.snapshot({}).moments.first))
    (loss, params, first), (cuda_loss, cuda_params, cuda_first) = engines
    assert cuda_loss == pytest.approx(loss, rel=1e-2)
    assert torch.linalg.vector_norm(cuda_params - params) <= 0.05 * torch.linalg.vector_norm(params)
    assert torch.linalg.vector_norm(cuda_first - first) <= 0.05 * torch.linalg.vector_norm(first)
