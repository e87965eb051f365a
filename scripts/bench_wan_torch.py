"""The other systems of the ``wan`` bench: torch's 1F1B and GPipe over gloo, dense or with our boundary in their stages.

The model is ours with the same cut, microbatches and padding. Dense: the boundary crosses as bf16. Compressed: the end
of a stage's module packs what our boundary sends, bit for bit, into one tensor, and the start of the next unpacks it;
the gradient's way back does the same, so that torch sends tensors of the same size as we do (without token ids, which
every rank reads for itself, and without signatures).
Not here: the hosts (``bench_wan_net``), our own arm (``bench_wan_ours``).
Invariant: packed bits are only copied between the two ends, never computed with.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from subnet.codec.tensors import TensorSpec
from subnet.config import RunConfig, load_run_config
from subnet.data.batches import tokens
from subnet.data.corpus import load_corpus
from subnet.model.boundary import make_boundary
from subnet.model.stages import StageModule, token_loss
from subnet.types import MicrobatchId, StageId

SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I8": torch.int8, "U8": torch.uint8}
WORD = 4  # bytes of the fp32 container


class OneWay:
    """What crosses in one direction, as the bits of one fp32 tensor."""

    def __init__(self, specs: Mapping[str, TensorSpec], pack: Callable[[Tensor], Mapping[str, Tensor]]) -> None:
        self._specs, self._pack = specs, pack
        self.num_bytes = sum(DTYPES[spec.dtype].itemsize * math.prod(spec.shape) for spec in specs.values())

    def pack(self, values: Tensor, words: int) -> Tensor:
        """Bits of what the boundary sends for ``values``, in ``words`` fp32 numbers."""
        packed = self._pack(values)
        bits = torch.cat([packed[name].contiguous().view(torch.uint8).flatten() for name in self._specs])
        return F.pad(bits, (0, words * WORD - len(bits))).view(torch.float32)

    def tensors(self, words: Tensor) -> dict[str, Tensor]:
        """The boundary's tensors in those bits."""
        bits, place, packed = words.detach().contiguous().view(torch.uint8), 0, {}
        for name, spec in self._specs.items():
            size = DTYPES[spec.dtype].itemsize * math.prod(spec.shape)
            packed[name] = bits[place : place + size].clone().view(DTYPES[spec.dtype]).view(spec.shape)
            place += size
        return packed


class Crossing:
    """Our boundary as torch's schedules can send it: tensors of one size and dtype there and back."""

    def __init__(self, run: RunConfig) -> None:
        boundary, shape = make_boundary(run), (run.data.sequences, run.model.seq_len)
        # The dither's seed does not matter to speed.
        self.there = OneWay(boundary.specs(*shape), boundary.pack)
        self.back = OneWay(boundary.grad_specs(*shape), lambda grad: boundary.pack_grad(grad, run.seed))
        self.unpack, self.unpack_grad = boundary.unpack, boundary.unpack_grad
        self.words = -(-max(self.there.num_bytes, self.back.num_bytes) // WORD)


class _Pack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, crossing: Crossing) -> Tensor:
        ctx.crossing = crossing
        return crossing.there.pack(values.detach(), crossing.words)

    @staticmethod
    def backward(ctx: Any, *words: Tensor) -> tuple[Tensor, None]:
        return ctx.crossing.unpack_grad(ctx.crossing.back.tensors(words[0])), None


class _Unpack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, words: Tensor, crossing: Crossing) -> Tensor:
        ctx.crossing = crossing
        return crossing.unpack(crossing.there.tensors(words)).clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.crossing.back.pack(grads[0], ctx.crossing.words), None


class Wrapped(nn.Module):
    """A stage between torch's sends. ``crossing``: None sends bf16."""

    def __init__(self, stage: StageModule, crossing: Crossing | None) -> None:
        super().__init__()
        self.stage = stage
        self.crossing = crossing
        self.token_ids: list[Tensor] = []

    def forward(self, inputs: Tensor) -> Tensor:
        """What the next rank gets, or logits."""
        # A schedule takes forwards in the order of microbatches, and every rank reads the token ids for itself.
        crossed = None if self.stage.is_first else self._enter(inputs)
        # The guess of an anchored exit is computed as ours is, and not learnt from: its loss is no torch schedule's.
        result, logits = self.stage(self.token_ids.pop(0), crossed)
        return logits if self.stage.is_last else self._leave(result)

    def _enter(self, received: Tensor) -> Tensor:
        if self.crossing is None:
            return received.float()
        entered: Tensor = _Unpack.apply(received, self.crossing)  # type: ignore[no-untyped-call]
        return entered

    def _leave(self, result: Tensor) -> Tensor:
        if self.crossing is None:
            return result.bfloat16()
        left: Tensor = _Pack.apply(result, self.crossing)  # type: ignore[no-untyped-call]
        return left


def padded(work: Callable[..., Any], pad_s: float, counts: dict[str, int]) -> Callable[..., Any]:
    """``work`` that takes at least ``pad_s``; counts calls, and those that took longer by themselves."""

    def run(*args: Any, **kwargs: Any) -> Any:
        began_s = time.perf_counter()
        result = work(*args, **kwargs)
        rest_s = pad_s - (time.perf_counter() - began_s)
        counts["calls"] = counts.get("calls", 0) + 1
        if rest_s > 0:
            time.sleep(rest_s)
        else:
            counts["late"] = counts.get("late", 0) + 1
        return result

    return run


class Rank:
    """One rank of the pipeline, through all arms."""

    def __init__(self, run: RunConfig, forward_s: float, backward_s: float) -> None:
        self.run, self.pads = run, (forward_s, backward_s)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.corpus = load_corpus(run.data.source, run.data.held_out_share)
        self.crossing = Crossing(run)
        self.counts: dict[str, int] = {}
        self.next_microbatch = 0

    def _pipeline(self, module: nn.Module, is_dense: bool) -> PipelineStage:
        sequences, seq_len, width = self.run.data.sequences, self.run.model.seq_len, self.run.model.width
        ids = torch.zeros(sequences, seq_len, dtype=torch.long)
        crossing = torch.zeros(sequences, seq_len, width, dtype=torch.bfloat16)
        crossing = (crossing if is_dense else torch.zeros(self.crossing.words)).requires_grad_()
        logits = torch.zeros(sequences, seq_len, self.run.model.vocab_size, requires_grad=True)
        stage = PipelineStage(
            module,
            self.rank,
            self.world,
            torch.device("cpu"),
            input_args=(ids if self.rank == 0 else crossing,),
            output_args=(logits if self.rank == self.world - 1 else crossing,),
        )
        for name, pad_s in zip(("forward_one_chunk", "backward_one_chunk"), self.pads, strict=True):
            setattr(stage, name, padded(getattr(stage, name), pad_s, self.counts))
        return stage

    def _batch(self, num_microbatches: int) -> Tensor:
        first, self.next_microbatch = self.next_microbatch, self.next_microbatch + num_microbatches
        ids = range(first, self.next_microbatch)
        return torch.cat([torch.from_numpy(tokens(self.run, self.corpus, MicrobatchId(number))) for number in ids])

    def arm(self, kind: str, schedule: str, num_microbatches: int, steps: int) -> dict[str, Any]:
        """Train ``steps`` steps; returns when each began and ended on this rank, and what it cost."""
        # Dense hidden states need no learned ends.
        run = self.run.with_values(**{"boundary.kind": "none"}) if kind == "dense" else self.run
        module = StageModule(run, StageId(self.rank))
        wrapped = Wrapped(module, None if kind == "dense" else self.crossing)
        stage = self._pipeline(wrapped, kind == "dense")
        made = SCHEDULES[schedule](stage, n_microbatches=num_microbatches, loss_fn=token_loss)
        optimizer = torch.optim.AdamW(module.parameters(), lr=self.run.inner.learning_rate)
        self.counts.clear()
        began_s, ended_s, losses_seen, cpu_s = [], [], [], 0.0
        for _ in range(steps):
            batch, losses = self._batch(num_microbatches), []
            wrapped.token_ids = list(batch[:, :-1].split(self.run.data.sequences))
            dist.barrier()
            began_s.append(time.monotonic())
            cpu_at_start_s = time.process_time()
            if self.rank == 0:
                made.step(batch[:, :-1])
            elif self.rank == self.world - 1:
                made.step(target=batch[:, 1:], losses=losses, return_outputs=False)
                losses_seen.append(torch.stack(losses).mean().item())
            else:
                made.step()
            optimizer.step()
            optimizer.zero_grad()
            ended_s.append(time.monotonic())
            cpu_s += time.process_time() - cpu_at_start_s
            dist.barrier()
        figures = {"began_s": began_s, "ended_s": ended_s, "losses": losses_seen, "cpu_s": cpu_s}
        return {"arm": f"{kind}_{schedule}", "rank": self.rank, **figures, **self.counts}


def rank_program(plan: dict[str, Any]) -> None:
    """Run every arm of ``plan`` as the rank that the environment names; one JSON line for each."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    os.environ.update(RANK=str(plan["rank"]), WORLD_SIZE=str(plan["world"]))
    os.environ.update(MASTER_ADDR=plan["master"], MASTER_PORT=str(plan["port"]))
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=plan["timeout_s"]))
    rank = Rank(load_run_config(plan["run"]), plan["forward_s"], plan["backward_s"])
    for kind, schedule, num_microbatches, steps in plan["arms"]:
        print(json.dumps(rank.arm(kind, schedule, num_microbatches, steps)), flush=True)
    dist.destroy_process_group()
