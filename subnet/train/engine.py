"""The engine of one stage: forward, backward, inner step. No network, no files, one thread.

A backward uses the parameters of its forward. Parameters live in one flat tensor; a step clones it, re-points the
module's parameters into the clone and updates there, while graphs of older forwards hold aliases of the old storage.
Of the first ``max_graphs`` microbatches in flight the graph is kept, of others only the input: their forward is
computed again at their backward, by the same operations on the same parameters, so that nothing but time differs.
Not here: the journal (``subnet.train.recorder``), what to do next (``subnet.replica``).
Invariants: equal operations in equal order give equal bits on one machine; the accumulated gradient is the
token-weighted sum over microbatches of the gradient of each one's mean loss; a step divides it by all their tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.func import functional_call

from subnet.codec.tensors import DTYPES
from subnet.config import RunConfig
from subnet.errors import Diverged
from subnet.model.boundary import dither_seed, make_boundary
from subnet.model.stages import StageModule, parameter_layout, token_loss
from subnet.train.device import CPU, autocast, compile_stage, download, upload
from subnet.train.optim import InnerOptimizer, Moments, learning_rate_at, stage_inner
from subnet.train.state import PendingHead, PendingInput, StageState
from subnet.train.wire import WireFormat
from subnet.types import MicrobatchId, StageId

Vector = npt.NDArray[np.float32]
Leaves = dict[str, Tensor]


@dataclass(frozen=True)
class StepPlan:
    """When to step in a round. All in predicted tokens.

    run_tokens: of the whole run before the round. step_tokens: of this replica per inner step. run_step_tokens: of the
    whole run per inner step.
    """

    run_tokens: float
    step_tokens: float
    run_step_tokens: float


@dataclass(frozen=True)
class ForwardResult:
    """``outputs`` in wire form (None at the last stage), ``loss`` in nats per token (last stage only)."""

    outputs: dict[str, Tensor] | None
    loss: float | None
    version: int


@dataclass(frozen=True)
class BackwardResult:
    """``grads`` in wire form (None at the first stage); ``staleness``: steps taken since the forward."""

    grads: dict[str, Tensor] | None
    version: int
    staleness: int


@dataclass(frozen=True)
class StepResult:
    """One inner step."""

    version: int
    num_tokens: int
    learning_rate: float
    grad_norm: float


@dataclass(frozen=True, eq=False)
class _Graph:
    """A forward with its graph: ``crossing`` goes on to the next stage, ``loss`` is the stage's own."""

    crossed: Tensor | None
    crossing: Tensor | None
    loss: Tensor | None


@dataclass(frozen=True, eq=False)
class _Pending:
    """A forward whose backward is to come. ``graph`` is None where it was not kept."""

    graph: _Graph | None
    leaves: Leaves
    outputs: dict[str, Tensor] | None
    version: int
    tokens: Tensor
    inputs: Mapping[str, Tensor] | None


class StageEngine:
    """One stage of the model with its inner optimiser. What goes in and comes out lies on the CPU."""

    def __init__(self, run: RunConfig, stage: StageId, device: torch.device = CPU) -> None:
        self.run, self.stage, self.device = run, stage, device
        self.boundary = make_boundary(run)
        self.module = StageModule(run, stage).to(device)
        if run.compiled:
            compile_stage(run, self.module)
        self.layout = parameter_layout(self.module)
        self.num_parameters = sum(slot.size for slot in self.layout)
        self._parameters = dict(self.module.named_parameters())
        self._inner = stage_inner(run, stage)
        self._optimizer = InnerOptimizer(self._inner, list(self._parameters.values()), self.layout)
        self._plan = StepPlan(0.0, math.inf, 0.0)
        self._flat = torch.cat([item.detach().flatten() for item in self._parameters.values()])
        self._grad = torch.zeros_like(self._flat)
        self._grad_views = self._views(self._grad)
        self._pending: dict[MicrobatchId, _Pending] = {}
        self.max_graphs: float = math.inf
        self.version = 0
        self._round_tokens = 0
        self._step_tokens = 0
        self._point(self._flat)

    # --- parameters

    def _views(self, flat: Tensor) -> list[Tensor]:
        return [flat[slot.offset : slot.offset + slot.size].view(slot.shape) for slot in self.layout]

    def _point(self, flat: Tensor) -> None:
        """Make ``flat`` the module's storage. Graphs that alias the storage before stay as they are."""
        self._flat = flat
        for parameter, view in zip(self._parameters.values(), self._views(flat), strict=True):
            parameter.data = view
        self._leaves = self._aliases(flat)

    def _aliases(self, flat: Tensor) -> Leaves:
        views = self._views(flat)
        return {slot.name: view.detach().requires_grad_() for slot, view in zip(self.layout, views, strict=True)}

    def _on_device(self, flat: Vector) -> Tensor:
        return torch.from_numpy(np.array(flat, dtype=np.float32)).to(self.device)

    def params(self) -> Vector:
        """A copy of the flat parameters."""
        return np.array(self._flat.cpu().numpy())

    def initial_state(self) -> StageState:
        """The seed's parameters and a fresh optimiser, as every peer computes them."""
        fresh = torch.cat([item.detach().flatten() for item in StageModule(self.run, self.stage).parameters()])
        return StageState(fresh.numpy(), Moments.zeros(self.num_parameters), self.run.outer.num_shards)

    def warm_up(self) -> None:
        """Before the first ``begin``: one microbatch of zeros there and back, so that a compiled stage is compiled."""
        wire, first = WireFormat(self.run, self.stage), MicrobatchId(0)
        inputs, grads = (
            {name: torch.zeros(spec.shape, dtype=DTYPES[spec.dtype]) for name, spec in specs.items()}
            for specs in (wire.forward, wire.backward)
        )
        tokens_BT = inputs.pop("tokens")
        self.forward(first, tokens_BT, inputs or None)
        self.backward(first, grads or None)

    # --- start and restore

    def begin(self, state: StageState, plan: StepPlan) -> None:
        """Take over ``state``: at a round's start, or in its middle with microbatches in flight."""
        self._plan = plan
        self._pending.clear()
        self._grad.zero_()
        self._optimizer.load(state.moments)
        self._point(self._on_device(state.params))
        self.version, self._round_tokens, self._step_tokens = state.version, 0, 0
        stash = {number: self._aliases(self._on_device(flat)) for number, flat in (state.stash or {}).items()}
        for item in state.pending:
            leaves = self._leaves if item.head.version == self.version else stash[item.head.version]
            self._forward(item.head.microbatch, item.tokens, item.inputs, leaves, item.head.version)

    def resume_tokens(self, applied: int) -> None:
        """After ``begin`` in a round's middle: predicted tokens that were applied in the round before the state."""
        self._round_tokens = applied

    # --- operations

    @property
    def pending(self) -> tuple[MicrobatchId, ...]:
        """Microbatches whose forward is done and whose backward is not, in the order of their forwards."""
        return tuple(self._pending)

    def tokens_of(self, microbatch: MicrobatchId) -> Tensor:
        """Token ids [B,T+1] of a pending microbatch, as they came."""
        return self._pending[microbatch].tokens

    def outputs_of(self, microbatch: MicrobatchId) -> dict[str, Tensor] | None:
        """What a pending microbatch's forward gave."""
        return self._pending[microbatch].outputs

    def forward(
        self, microbatch: MicrobatchId, tokens_BT: Tensor, inputs: Mapping[str, Tensor] | None
    ) -> ForwardResult:
        """Compute one microbatch (tokens [B,T+1]); raises ``Diverged`` when the loss isn't finite."""
        return self._forward(microbatch, tokens_BT, inputs, self._leaves, self.version)

    def _forward(
        self,
        microbatch: MicrobatchId,
        tokens_BT: Tensor,
        inputs: Mapping[str, Tensor] | None,
        leaves: Leaves,
        version: int,
    ) -> ForwardResult:
        graph = self._compute(tokens_BT, inputs, leaves)
        own = None if graph.loss is None else graph.loss.item()
        if own is not None and not math.isfinite(own):
            raise Diverged(f"The loss of microbatch {microbatch} is not finite.")
        outputs = None if graph.crossing is None else download(self.boundary.pack(graph.crossing))
        num_graphs = sum(item.graph is not None for item in self._pending.values())
        kept = graph if num_graphs < self.max_graphs else None
        self._pending[microbatch] = _Pending(kept, leaves, outputs, version, tokens_BT, inputs)
        return ForwardResult(outputs, own if self.module.is_last else None, version)

    def _compute(self, tokens_BT: Tensor, inputs: Mapping[str, Tensor] | None, leaves: Leaves) -> _Graph:
        token_ids = upload({"tokens": tokens_BT}, self.device)["tokens"].to(torch.int64)
        crossed = None
        if inputs is not None:
            crossed = self.boundary.unpack(upload(inputs, self.device)).detach().requires_grad_()
        with autocast(self.device):
            crossing, logits = functional_call(self.module, leaves, (token_ids[:, :-1], crossed))
        crossing = None if crossing is None else crossing.float()
        return _Graph(crossed, crossing, None if logits is None else token_loss(logits, token_ids[:, 1:]))

    def backward(self, microbatch: MicrobatchId, grads: Mapping[str, Tensor] | None) -> BackwardResult:
        """Take the gradient of a pending microbatch (None at the last stage) and accumulate the parameters'."""
        pending = self._pending.pop(microbatch)
        graph = pending.graph or self._compute(pending.tokens, pending.inputs, pending.leaves)
        wanted = [*pending.leaves.values()]
        if graph.crossed is not None:
            wanted.append(graph.crossed)
        upstream = None if grads is None else self.boundary.unpack_grad(upload(grads, self.device))
        ways = [(item, grad) for item, grad in ((graph.crossing, upstream), (graph.loss, None)) if item is not None]
        found = torch.autograd.grad([item for item, _ in ways], wanted, [grad for _, grad in ways])
        num_tokens = pending.tokens[:, 1:].numel()
        torch._foreach_add_(self._grad_views, list(found[: len(pending.leaves)]), alpha=num_tokens)
        self._round_tokens += num_tokens
        self._step_tokens += num_tokens
        sent = None
        if graph.crossed is not None:
            sent = download(self.boundary.pack_grad(found[-1], dither_seed(self.run, microbatch, self.stage)))
        return BackwardResult(sent, pending.version, self.version - pending.version)

    def should_step(self) -> bool:
        """Whether the next multiple of this replica's tokens per step is reached."""
        return self._step_tokens > 0 and self._round_tokens >= (self.version + 1) * self._plan.step_tokens - 0.5

    @property
    def has_gradient(self) -> bool:
        """Whether anything was accumulated since the last step."""
        return self._step_tokens > 0

    def step(self) -> StepResult:
        """One inner step on what was accumulated; raises ``Diverged`` when the gradient isn't finite."""
        assert self._step_tokens > 0
        self._grad.div_(self._step_tokens)
        grad_norm = float(torch.linalg.vector_norm(self._grad))
        if not math.isfinite(grad_norm):
            raise Diverged("The gradient is not finite.")
        clip = self._inner.clip_norm
        if clip and grad_norm > clip:
            self._grad.mul_(clip / grad_norm)
        seen = self._plan.run_tokens + (self.version + 1) * self._plan.run_step_tokens
        rate = learning_rate_at(self._inner, seen)
        self._point(self._flat.clone())
        for parameter, view in zip(self._parameters.values(), self._grad_views, strict=True):
            parameter.grad = view
        self._optimizer.step(rate)
        for parameter in self._parameters.values():
            parameter.grad = None
        self._grad.zero_()
        num_tokens, self._step_tokens = self._step_tokens, 0
        self.version += 1
        return StepResult(self.version, num_tokens, rate, grad_norm)

    def forget_pending(self) -> None:
        """Drop all microbatches in flight."""
        self._pending.clear()

    def snapshot(self, heads: Mapping[MicrobatchId, PendingHead]) -> StageState:
        """The state right after a step. ``heads``: who sent each pending microbatch, and at which attempt."""
        assert self._step_tokens == 0
        pending = tuple(PendingInput(heads[number], item.tokens, item.inputs) for number, item in self._pending.items())
        stash: dict[int, Vector] = {}
        for item in self._pending.values():
            if item.version != self.version and item.version not in stash:
                stash[item.version] = (
                    torch.cat([leaf.detach().flatten() for leaf in item.leaves.values()]).cpu().numpy()
                )
        return StageState(
            self.params(), self._optimizer.moments(), self.run.outer.num_shards, self.version, pending, stash or None
        )
