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
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from subnet.config import RunConfig, has_predictor
from subnet.hashing import draw
from subnet.model.boundary import dither_seed, make_boundary, rounded, roundtrip
from subnet.model.crossing import Entry, Exit, Predictor
from subnet.model.decoder import Block, RMSNorm
from subnet.model.flops import balanced_cut
from subnet.types import MicrobatchId, StageId

Vector = npt.NDArray[np.float32]
ENDS = ("exit.encode.", "entry.reader.", "entry.decode.")
END_RATE = 0.1  # the ends of a boundary only mean something together: they move slowly, and without decay
LETTERS_STD = 0.5  # the predictor's own embedding feeds a nonlinearity, not the residual stream
ENCODE_STD = 0.1  # an anchored code is normalised: its encoder's scale only matters beside a step of the optimiser
TABLES = ("embed.weight", "table.weight", "letters.weight")  # rows by token id


@dataclass(frozen=True)
class ParameterSlot:
    """Where one parameter lies in its stage's flat vector. ``decays``: whether weight decay applies.

    ``is_hidden_matrix``: a matrix from one hidden state to another: no table of token ids, not the head, no end of a
    boundary. ``rate``: its share of the learning rate.
    """

    name: str
    shape: tuple[int, ...]
    offset: int
    size: int
    decays: bool
    is_hidden_matrix: bool
    rate: float = 1.0


class StageResult(NamedTuple):
    """``crossing`` goes on to the next stage, before it is put into digits; None at the last one.

    ``logits`` [B,T,V] of the next tokens: the last stage's prediction, or an anchored exit's guess; None elsewhere.
    """

    crossing: Tensor | None
    logits: Tensor | None


def cut(run: RunConfig) -> tuple[range, ...]:
    """Block numbers of every stage: as configured, or balanced by FLOPs."""
    sizes = run.stages.blocks or balanced_cut(run)
    edges = [sum(sizes[:index]) for index in range(len(sizes) + 1)]
    return tuple(range(begin, end) for begin, end in pairwise(edges))


class StageModule(nn.Module):
    """One stage. All take token ids [B,T], all but the first what crossed."""

    def __init__(self, run: RunConfig, stage: StageId) -> None:
        super().__init__()
        model = run.model
        self.numbers = cut(run)[stage]
        self.is_first, self.is_last = stage == 0, stage == run.stages.num_stages - 1
        if self.is_first:
            self.embed = Predictor(run) if has_predictor(run.boundary) else nn.Embedding(model.vocab_size, model.width)
        else:
            self.entry = Entry(run)
        self.blocks = nn.ModuleList(Block(model) for _ in self.numbers)
        if self.is_last:
            self.norm = RMSNorm(model.width, model.norm_eps)
            self.head = nn.Linear(model.width, model.vocab_size, bias=False)
        else:
            self.exit = Exit(run)
        self._boundary = make_boundary(run)
        self._initialise(run)

    @torch.no_grad()
    def _initialise(self, run: RunConfig) -> None:
        residual = 1.0 / math.sqrt(2 * run.model.num_blocks)
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                continue  # gains stay at one
            scale = residual if name.endswith(("out.weight", "down.weight")) else 1.0
            std = _own_std(run, name)
            generator = torch.Generator().manual_seed(draw(run.seed, "init", self._global_name(name)) >> 1)
            parameter.normal_(0.0, run.model.init_std * scale if std is None else std, generator=generator)

    def _global_name(self, name: str) -> str:
        """The parameter's name in the whole model: blocks are numbered from its first, whatever the cut."""
        head, _, rest = name.partition(".")
        if head in ("entry", "exit"):  # a boundary is known by the block behind it
            return f"{head}.{self.numbers[0] if head == 'entry' else self.numbers[-1] + 1}.{rest}"
        if head != "blocks":
            return name
        index, _, tail = rest.partition(".")
        return f"blocks.{self.numbers[int(index)]}.{tail}"

    def forward(self, tokens_BT: Tensor, crossed: Tensor | None, *, by_pass: bool = False) -> StageResult:
        """One stage's work. ``by_pass`` leaves the blocks out."""
        hidden_BTD = self.embed(tokens_BT) if self.is_first else self.entry(crossed, tokens_BT)
        for block in () if by_pass else self.blocks:
            hidden_BTD = block(hidden_BTD)
        if self.is_last:
            return StageResult(None, self.head(self.norm(hidden_BTD)))
        crossing = self.exit(hidden_BTD)
        if self.exit.guess is None:
            return StageResult(crossing, None)
        return StageResult(crossing, self.exit.guess(rounded(self._boundary, crossing), tokens_BT))


def _own_std(run: RunConfig, name: str) -> float | None:
    """Standard deviation at the start of what does not begin as the model's other matrices do."""
    if name.endswith("letters.weight"):
        return LETTERS_STD
    if run.boundary.kind != "anchored":
        return None
    if name.endswith(("reader.read.weight", "reader.refold.weight")):
        return 0.0
    if name.endswith("reader.unfold.weight"):
        return 1 / math.sqrt(max(run.boundary.dims, 1))
    return ENCODE_STD if name.endswith("encode.weight") else None


def parameter_layout(module: StageModule) -> tuple[ParameterSlot, ...]:
    """The flat vector's slots. Matrices decay; gains, tables of token ids and a boundary's ends do not."""
    slots, offset = [], 0
    for name, parameter in module.named_parameters():
        is_end = name.startswith(ENDS)
        decays = parameter.dim() > 1 and not name.endswith(TABLES) and not is_end
        is_hidden_matrix = decays and not name.endswith("head.weight")
        rate = END_RATE if is_end else 1.0
        slots.append(
            ParameterSlot(name, tuple(parameter.shape), offset, parameter.numel(), decays, is_hidden_matrix, rate)
        )
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
        self._run = run

    def losses(self, tokens_BT1: Tensor, *, microbatch: int = 0, skip: Sequence[int] = ()) -> list[Tensor]:
        """Mean nats per token of predicting ``tokens[:, 1:]``: of every anchored exit's guess, and last the model's.

        The blocks of stages in ``skip`` are left out. ``microbatch``: its id, which fixes the dither.
        """
        crossed: Tensor | None = None
        losses = []
        for number, stage in enumerate(self.stages):
            crossing, logits = stage(tokens_BT1[:, :-1], crossed, by_pass=number in skip)
            if crossing is not None:
                seed = dither_seed(self._run, MicrobatchId(microbatch), number + 1)
                crossed = roundtrip(self._boundary, crossing, seed)
            if logits is not None:
                losses.append(token_loss(logits, tokens_BT1[:, 1:]))
        return losses

    def loss(self, tokens_BT1: Tensor, *, skip: Sequence[int] = ()) -> Tensor:
        """The model's own: mean nats per token."""
        return self.losses(tokens_BT1, skip=skip)[-1]

    def load_stages(self, flats: Sequence[Vector]) -> None:
        """Set all parameters from the stages' flat vectors."""
        for stage, flat in zip(self.stages, flats, strict=True):
            nn.utils.vector_to_parameters(torch.from_numpy(np.array(flat, dtype=np.float32)), stage.parameters())


def full_model(run: RunConfig) -> FullModel:
    """The whole model with the seed's initial parameters."""
    return FullModel(run)
