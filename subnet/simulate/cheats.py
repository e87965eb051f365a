"""Dishonest miners, for experiments and tests. Kept out of the production miner: each is the honest class with one lie.

Not here: how they are caught (``subnet.verify``). Invariant: apart from its lie, a cheat follows the protocol, so that
nothing but an audit (or silence) can tell it from an honest miner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from subnet.errors import ConfigError
from subnet.net.base import Request, Response
from subnet.replica.lifecycle import Replica
from subnet.replica.merging import Merger, Shard
from subnet.train.engine import BackwardResult, ForwardResult, StageEngine
from subnet.train.recorder import FinishedRound, RecordedStage
from subnet.types import MicrobatchId

SCALE = 10.0  # by how much the scaling cheat inflates its pseudo-gradient
SILENT_AFTER = 12  # requests that the silent cheat answers before it falls silent: some way into the first rounds


def _noise(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of the same names, dtypes, shapes and rough scale that carry nothing."""
    fake = {}
    for name, tensor in tensors.items():
        if tensor.dtype.is_floating_point:
            fake[name] = torch.rand_like(tensor) * tensor.abs().mean() * 2
        else:
            fake[name] = torch.randint_like(tensor, -127, 128)
    return fake


class NoiseEngine(StageEngine):
    """Sends noise instead of activations."""

    def forward(
        self, microbatch: MicrobatchId, tokens_BT: Tensor, inputs: Mapping[str, Tensor] | None
    ) -> ForwardResult:
        """The honest result with its outputs (or, at the last stage, its loss) replaced."""
        result = super().forward(microbatch, tokens_BT, inputs)
        if result.outputs is None:
            return replace(result, loss=(result.loss or 0.0) * 0.9)
        return replace(result, outputs=_noise(result.outputs))


class RandomGradsEngine(StageEngine):
    """Returns random gradients upstream."""

    def backward(self, microbatch: MicrobatchId, grads: Mapping[str, Tensor] | None) -> BackwardResult:
        """The honest result with its gradients replaced."""
        result = super().backward(microbatch, grads)
        return result if result.grads is None else replace(result, grads=_noise(result.grads))


class ScaledStage(RecordedStage):
    """Inflates its pseudo-gradient to pull the merge its way."""

    def finish(self) -> FinishedRound:
        """The honest round with ``SCALE`` times its pseudo-gradient."""
        finished = super().finish()
        return replace(finished, pseudo_grad=(finished.pseudo_grad * np.float32(SCALE)).astype(np.float32))


class WrongShardMerger(Merger):
    """Publishes a shard that is not the mean of the contributions."""

    def reduced(self, shard: int, result: Shard) -> Shard:
        """The honest shard, shifted."""
        return Shard(result.params + np.float32(0.01), result.momentum)


class NoiseReplica(Replica):
    """``noise``"""

    engine_class = NoiseEngine


class RandomGradsReplica(Replica):
    """``random-grads``"""

    engine_class = RandomGradsEngine


class ScaledReplica(Replica):
    """``scaled-pseudo-grad``"""

    recorded_class = ScaledStage


class WrongShardReplica(Replica):
    """``wrong-shard``"""

    merger_class = WrongShardMerger


class SilentReplica(Replica):
    """``silence``: the port stays open and nothing is ever said again, as when a machine hangs."""

    answered = 0

    async def handle(self, request: Request) -> Response:
        """Answer for a while, then never again."""
        self.answered += 1
        await self._hang_if_silent()
        return await super().handle(request)

    async def _post_once(self, path: str, body: bytes) -> None:
        await self._hang_if_silent()
        await super()._post_once(path, body)

    async def _hang_if_silent(self) -> None:
        if self.answered > SILENT_AFTER:
            await asyncio.Event().wait()


KINDS: dict[str, type[Replica]] = {
    "noise": NoiseReplica,
    "random-grads": RandomGradsReplica,
    "scaled-pseudo-grad": ScaledReplica,
    "wrong-shard": WrongShardReplica,
    "silence": SilentReplica,
}


def replica_class(kind: str) -> type[Replica]:
    """The replica that cheats by ``kind``; raises ``ConfigError`` for an unknown one."""
    if kind not in KINDS:
        raise ConfigError(f"There is no cheat {kind!r}; known: {', '.join(KINDS)}.")
    return KINDS[kind]
