"""The inner optimiser over one stage's parameters, AdamW, NAdam or Muon, with its state as flat vectors.

NAdam looks ahead along its momentum, the further the longer a stage waits for its gradients. Muon steps along the
orthogonalised momentum of every hidden matrix; all else stays with AdamW. Its steps are scaled so that one learning
rate serves both. torch's own Muon computes in bf16, which takes eight times as long as fp32 on a CPU; this one follows
the parameters' dtype.
Not here: when to step (``subnet.train.engine``), the outer optimiser (``subnet.train.merge``).
Invariants: the learning rate is a function of the tokens that the whole run has seen, never of local steps, so that
replicas of all stages agree on it; equal gradients in equal order give equal bits on one machine; a state taken out and
put back goes on bit for bit.
Sources: Muon, Jordan et al. 2024, and arXiv:2502.16982 for the scale; NAdam in a pipeline, arXiv:2505.01099.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from subnet.config import InnerConfig, RunConfig
from subnet.model.flops import stage_share
from subnet.model.stages import ParameterSlot
from subnet.types import StageId

MUON_MOMENTUM = 0.95
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # quintic that pushes singular values to about one within five iterations
NEWTON_SCHULZ_STEPS = 5
# Root mean square of an update per element, in learning rates. AdamW's is about 0.2 (arXiv:2502.16982, section 2.2);
# Muon bears more, where tables share its learning rate (docs/experiments.md).
UPDATE_RMS = 0.5
LONGER_MEMORY = 0.9  # share of 1 - beta1 that staleness may take away; 0.09 at a beta1 of 0.9 (arXiv:2505.01099)
MOMENTUM_DECAY = 4e-3  # how fast NAdam's look-ahead grows to beta1 (arXiv:2505.01099)
MOMENTUM_DECAY_BASE = 0.96  # fixed in torch.optim.NAdam


def learning_rate_at(inner: InnerConfig, tokens: float) -> float:
    """Linear warm-up, then constant, or linear decay to ``final_share`` where ``total_tokens`` is set.

    Linear to zero beats the usual cosine (arXiv:2502.15938; here by 2 % of the loss, with more decay of matrices).
    """
    if tokens < inner.warmup_tokens:
        return inner.learning_rate * max(tokens, 1.0) / inner.warmup_tokens
    if not inner.total_tokens:
        return inner.learning_rate
    span = max(inner.total_tokens - inner.warmup_tokens, 1)
    progress = min((tokens - inner.warmup_tokens) / span, 1.0)
    return inner.learning_rate * (1 - (1 - inner.final_share) * progress)


def stage_inner(run: RunConfig, stage: StageId) -> InnerConfig:
    """The inner optimiser's settings as they hold for one stage.

    ``clip_norm`` is meant for the gradient of the whole model. Its square, a sum over parameters, is shared out in
    proportion to them, so that a gradient which is spread evenly is clipped at the same size however the model is cut;
    among S equal stages that is the 1/sqrt(S) of node0. ``beta1`` under NAdam grows with the distance from the last
    stage, which sees no stale gradient: 0.9 + 0.09 (S-i)/S at stage i of 1..S for 0.9 (arXiv:2505.01099).
    """
    inner = run.inner
    changes = {"clip_norm": inner.clip_norm * math.sqrt(stage_share(run, stage))}
    if inner.optimizer == "nadam":
        num_stages = run.stages.num_stages
        distance = (num_stages - 1 - stage) / num_stages
        changes["beta1"] = 1 - (1 - inner.beta1) * (1 - LONGER_MEMORY * distance)
    return inner.model_copy(update=changes)


def momentum_product(beta1: float, step: int) -> Tensor:
    """Product of NAdam's momenta over ``step`` steps, with the bits that torch arrives at.

    It stops where a factor changes nothing any more: no later one, being nearer to 1, would. That comes within a few
    hundred steps, so a stranger's step costs nothing.
    """
    product = torch.tensor(1.0)
    for number in range(1, step + 1):
        factor = beta1 * (1.0 - 0.5 * MOMENTUM_DECAY_BASE ** (number * MOMENTUM_DECAY))
        before = product.item()
        if product.mul_(factor).item() == before:
            break
    return product


def orthogonalise(matrices_NRC: Tensor) -> Tensor:
    """Roughly the nearest matrix with orthonormal rows or columns, for each of N matrices [R, C]."""
    linear, cubic, quintic = NEWTON_SCHULZ
    is_tall = matrices_NRC.shape[-2] > matrices_NRC.shape[-1]
    found: Tensor = matrices_NRC.transpose(-1, -2) if is_tall else matrices_NRC
    found = found / (torch.linalg.matrix_norm(found, keepdim=True) + 1e-7)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = found @ found.mT
        found = linear * found + (cubic * gram + quintic * gram @ gram) @ found
    return found.transpose(-1, -2) if is_tall else found


@dataclass(frozen=True, eq=False)
class Moments:
    """First and second moments as flat fp32 vectors, and the number of steps taken.

    Muon has no second: zeros. NAdam's product of momenta follows from the step.
    """

    first: Tensor
    second: Tensor
    step: int

    @classmethod
    def zeros(cls, size: int) -> Moments:
        """The state before the first step."""
        return cls(torch.zeros(size), torch.zeros(size), 0)


def _elementwise(inner: InnerConfig, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """torch's optimiser for all that Muon does not step."""
    rate, betas = inner.learning_rate, (inner.beta1, inner.beta2)
    if inner.optimizer != "nadam":
        return torch.optim.AdamW(groups, lr=rate, betas=betas, eps=inner.eps, foreach=True)
    return torch.optim.NAdam(
        groups,
        lr=rate,
        betas=betas,
        eps=inner.eps,
        momentum_decay=MOMENTUM_DECAY,
        decoupled_weight_decay=True,
        foreach=True,
    )


class InnerOptimizer:
    """One stage's optimiser; its parameters may be re-pointed to new storage between steps.

    ``inner``: as it holds for the stage.
    """

    def __init__(self, inner: InnerConfig, parameters: Sequence[nn.Parameter], slots: Sequence[ParameterSlot]) -> None:
        self._inner = inner
        self._slots = list(zip(parameters, slots, strict=True))
        is_muon = inner.optimizer == "muon"
        self._matrices = [item for item, slot in self._slots if is_muon and slot.is_hidden_matrix]
        rest = [(item, slot) for item, slot in self._slots if not (is_muon and slot.is_hidden_matrix)]
        groups = [
            {
                "params": [item for item, slot in rest if (slot.decays, slot.rate) == (decays, rate)],
                "weight_decay": inner.weight_decay if decays else 0.0,
                "rate": rate,
            }
            for decays, rate in sorted({(slot.decays, slot.rate) for _, slot in rest}, reverse=True)
        ]
        self._elementwise = _elementwise(inner, groups)
        self._num_steps = 0
        self._momentum = {item: torch.zeros_like(item) for item in self._matrices}

    def step(self, learning_rate: float) -> None:
        """One step on the parameters' ``grad``."""
        for group in self._elementwise.param_groups:
            group["lr"] = learning_rate * group["rate"]
        self._elementwise.step()
        self._step_matrices(learning_rate)
        self._num_steps += 1

    @torch.no_grad()
    def _step_matrices(self, learning_rate: float) -> None:
        """Muon with Nesterov momentum; matrices of one shape are orthogonalised together."""
        by_shape: dict[torch.Size, list[nn.Parameter]] = {}
        for item in self._matrices:
            by_shape.setdefault(item.shape, []).append(item)
        for shape, items in by_shape.items():
            ahead = []
            for item in items:
                assert item.grad is not None
                momentum = self._momentum[item].lerp_(item.grad, 1 - MUON_MOMENTUM)
                ahead.append(item.grad.lerp(momentum, MUON_MOMENTUM))
            scale = UPDATE_RMS * math.sqrt(max(shape))
            for item, direction in zip(items, orthogonalise(torch.stack(ahead)), strict=True):
                item.mul_(1 - learning_rate * self._inner.weight_decay).sub_(direction, alpha=learning_rate * scale)

    def moments(self) -> Moments:
        """A copy of the state."""
        if not self._num_steps:
            return Moments.zeros(sum(slot.size for _, slot in self._slots))
        first, second = [], []
        for item, _ in self._slots:
            state = self._elementwise.state.get(item)
            first.append((self._momentum[item] if state is None else state["exp_avg"]).flatten())
            second.append((torch.zeros_like(item) if state is None else state["exp_avg_sq"]).flatten())
        return Moments(torch.cat(first).cpu(), torch.cat(second).cpu(), self._num_steps)

    def load(self, moments: Moments) -> None:
        """Take over a state."""
        self._elementwise.state.clear()
        self._num_steps = moments.step
        extra = {}
        if self._inner.optimizer == "nadam":
            extra["mu_product"] = momentum_product(self._inner.beta1, moments.step)
        for item, slot in self._slots:
            place = slice(slot.offset, slot.offset + slot.size)
            first = moments.first[place].clone().view_as(item).to(item.device)
            if item in self._momentum:
                self._momentum[item] = first
            elif moments.step:
                self._elementwise.state[item] = {
                    "step": torch.tensor(float(moments.step)),
                    "exp_avg": first,
                    "exp_avg_sq": moments.second[place].clone().view_as(item).to(item.device),
                    **{name: tensor.clone() for name, tensor in extra.items()},
                }
