"""The inner optimiser: torch's AdamW over one stage's parameters, with its state as flat vectors.

Not here: when to step (``subnet.train.engine``), the outer optimiser (``subnet.train.merge``).
Invariant: the learning rate is a function of the tokens that the whole run has seen, never of local steps, so that
replicas of all stages agree on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from subnet.config import InnerConfig


def learning_rate_at(inner: InnerConfig, tokens: float) -> float:
    """Linear warm-up, then constant, or cosine decay to ``final_share`` where ``total_tokens`` is set."""
    if tokens < inner.warmup_tokens:
        return inner.learning_rate * max(tokens, 1.0) / inner.warmup_tokens
    if not inner.total_tokens:
        return inner.learning_rate
    span = max(inner.total_tokens - inner.warmup_tokens, 1)
    progress = min((tokens - inner.warmup_tokens) / span, 1.0)
    share = inner.final_share + (1 - inner.final_share) * 0.5 * (1 + math.cos(math.pi * progress))
    return inner.learning_rate * share


@dataclass(frozen=True, eq=False)
class Moments:
    """AdamW's state: first and second moments as flat fp32 vectors, and the number of steps taken."""

    first: Tensor
    second: Tensor
    step: int

    @classmethod
    def zeros(cls, size: int) -> Moments:
        """The state before the first step."""
        return cls(torch.zeros(size), torch.zeros(size), 0)


class InnerOptimizer:
    """AdamW whose parameters may be re-pointed to new storage between steps."""

    def __init__(self, inner: InnerConfig, parameters: Sequence[nn.Parameter], decays: Sequence[bool]) -> None:
        self._parameters = list(parameters)
        groups = [
            {
                "params": [item for item, flag in zip(parameters, decays, strict=True) if flag is wanted],
                "weight_decay": inner.weight_decay if wanted else 0.0,
            }
            for wanted in (True, False)
        ]
        self._adamw = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=inner.learning_rate,
            betas=(inner.beta1, inner.beta2),
            eps=inner.eps,
            foreach=True,
        )

    def step(self, learning_rate: float) -> None:
        """One step on the parameters' ``grad``."""
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate
        self._adamw.step()

    def moments(self) -> Moments:
        """A copy of the state."""
        state = self._adamw.state
        if not state:
            return Moments.zeros(sum(item.numel() for item in self._parameters))
        first = torch.cat([state[item]["exp_avg"].flatten() for item in self._parameters])
        second = torch.cat([state[item]["exp_avg_sq"].flatten() for item in self._parameters])
        return Moments(first, second, int(state[self._parameters[0]]["step"]))

    def load(self, moments: Moments) -> None:
        """Take over a state."""
        self._adamw.state.clear()
        if not moments.step:
            return
        offset = 0
        for item in self._parameters:
            place = slice(offset, offset + item.numel())
            self._adamw.state[item] = {
                "step": torch.tensor(float(moments.step)),
                "exp_avg": moments.first[place].clone().view_as(item),
                "exp_avg_sq": moments.second[place].clone().view_as(item),
            }
            offset = place.stop
