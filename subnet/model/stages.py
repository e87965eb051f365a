"""The cut of the decoder into stages, and the whole model as the chain of its stages.

Not here: what crosses between them (``subnet.model.boundary``), how one is trained (``subnet.train``).
Invariants: a block's initial parameters depend on the seed and the block's number only, never on the cut; all modules
exist from the constructor on, so that flat parameter vectors never shift; the flat order is ``named_parameters`` order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from subnet.config import RunConfig
from subnet.hashing import draw
from subnet.model.boundary import make_boundary, roundtrip
from subnet.model.decoder import Block, RMSNorm
from subnet.model.flops import balanced_cut
from subnet.types import StageId

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True)
class ParameterSlot:
    """Where one parameter lies in its stage's flat vector. ``decays``: whether weight decay applies.

    ``is_block_matrix``: a matrix between hidden states, not a table of tokens.
    """

    name: str
    shape: tuple[int, ...]
    offset: int
    size: int
    decays: bool
    is_block_matrix: bool


def cut(run: RunConfig) -> tuple[range, ...]:
    """Block numbers of every stage: as configured, or balanced by FLOPs."""
    sizes = run.stages.blocks or balanced_cut(run)
    edges = [sum(sizes[:index]) for index in range(len(sizes) + 1)]
    return tuple(range(begin, end) for begin, end in pairwise(edges))


class StageModule(nn.Module):
    """One stage. The first takes token ids [B,T], the others hidden states; the last returns logits [B,T,V]."""

    def __init__(self, run: RunConfig, stage: StageId) -> None:
        super().__init__()
        model = run.model
        self.numbers = cut(run)[stage]
        self.is_first, self.is_last = stage == 0, stage == run.stages.num_stages - 1
        if self.is_first:
            self.embed = nn.Embedding(model.vocab_size, model.width)
        self.blocks = nn.ModuleList(Block(model) for _ in self.numbers)
        if self.is_last:
            self.norm = RMSNorm(model.width, model.norm_eps)
            self.head = nn.Linear(model.width, model.vocab_size, bias=False)
        self._initialise(run)

    def _initialise(self, run: RunConfig) -> None:
        residual = 1.0 / math.sqrt(2 * run.model.num_blocks)
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                continue  # gains stay at one
            scale = residual if name.endswith(("out.weight", "down.weight")) else 1.0
            generator = torch.Generator().manual_seed(draw(run.seed, "init", self._global_name(name)) >> 1)
            with torch.no_grad():
                parameter.normal_(0.0, run.model.init_std * scale, generator=generator)

    def _global_name(self, name: str) -> str:
        """The parameter's name in the whole model: blocks are numbered from its first, whatever the cut."""
        head, _, rest = name.partition(".")
        if head != "blocks":
            return name
        index, _, tail = rest.partition(".")
        return f"blocks.{self.numbers[int(index)]}.{tail}"

    def forward(self, inputs: Tensor) -> Tensor:
        """Hidden states [B,T,D], or logits [B,T,V] at the last stage."""
        hidden_BTD = self.embed(inputs) if self.is_first else inputs
        for block in self.blocks:
            hidden_BTD = block(hidden_BTD)
        return self.head(self.norm(hidden_BTD)) if self.is_last else hidden_BTD


def parameter_layout(module: StageModule) -> tuple[ParameterSlot, ...]:
    """The flat vector's slots. Matrices decay; gains and the embedding do not."""
    slots, offset = [], 0
    for name, parameter in module.named_parameters():
        decays = parameter.dim() > 1 and not name.startswith("embed")
        is_block_matrix = decays and not name.startswith("head")
        slots.append(ParameterSlot(name, tuple(parameter.shape), offset, parameter.numel(), decays, is_block_matrix))
        offset += parameter.numel()
    return tuple(slots)


def token_loss(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Mean cross-entropy in nats per token."""
    return F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten())


class FullModel(nn.Module):
    """All stages in one process, with the boundary's arithmetic between them: the twin of the network."""

    def __init__(self, run: RunConfig) -> None:
        super().__init__()
        self.stages = nn.ModuleList(StageModule(run, StageId(stage)) for stage in range(run.stages.num_stages))
        self._boundary = make_boundary(run)

    def logits(self, tokens_BT: Tensor, *, skip: Sequence[int] = ()) -> Tensor:
        """Logits [B,T,V]; stages in ``skip`` hand their input on (a boundary keeps the width)."""
        hidden = tokens_BT
        for number, stage in enumerate(self.stages):
            if number and number - 1 not in skip:
                hidden = roundtrip(self._boundary, hidden)
            hidden = hidden if number in skip else stage(hidden)
        return hidden

    def loss(self, tokens_BT1: Tensor, *, skip: Sequence[int] = ()) -> Tensor:
        """Mean nats per token of predicting ``tokens[:, 1:]``."""
        return token_loss(self.logits(tokens_BT1[:, :-1], skip=skip), tokens_BT1[:, 1:])

    def load_stages(self, flats: Sequence[Vector]) -> None:
        """Set all parameters from the stages' flat vectors."""
        for stage, flat in zip(self.stages, flats, strict=True):
            nn.utils.vector_to_parameters(torch.from_numpy(np.array(flat, dtype=np.float32)), stage.parameters())


def full_model(run: RunConfig) -> FullModel:
    """The whole model with the seed's initial parameters."""
    return FullModel(run)
