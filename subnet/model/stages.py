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

from subnet.config import RunConfig, has_predictor
from subnet.hashing import draw
from subnet.model.boundary import dither_seed, make_boundary, roundtrip
from subnet.model.crossing import Entry, Exit, Predictor, first_basis
from subnet.model.decoder import Block, RMSNorm
from subnet.model.flops import balanced_cut
from subnet.types import MicrobatchId, StageId

Vector = npt.NDArray[np.float32]
ENDS = ("encode.weight", "decode.weight")
END_RATE = 0.1  # the ends of a boundary only mean something together: they move slowly, and without decay
LETTERS_STD = 0.5  # the predictor's own embedding feeds a nonlinearity, not the residual stream
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


def cut(run: RunConfig) -> tuple[range, ...]:
    """Block numbers of every stage: as configured, or balanced by FLOPs."""
    sizes = run.stages.blocks or balanced_cut(run)
    edges = [sum(sizes[:index]) for index in range(len(sizes) + 1)]
    return tuple(range(begin, end) for begin, end in pairwise(edges))


class StageModule(nn.Module):
    """One stage. All take token ids [B,T], all but the first what crossed; the last returns logits [B,T,V]."""

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
        self._initialise(run)

    def _initialise(self, run: RunConfig) -> None:
        residual = 1.0 / math.sqrt(2 * run.model.num_blocks)
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                continue  # gains stay at one
            scale = residual if name.endswith(("out.weight", "down.weight")) else 1.0
            std = LETTERS_STD if name.endswith("letters.weight") else run.model.init_std * scale
            generator = torch.Generator().manual_seed(draw(run.seed, "init", self._global_name(name)) >> 1)
            with torch.no_grad():
                parameter.normal_(0.0, std, generator=generator)
        if run.boundary.kind == "anchored":
            self._tie_ends(run)

    @torch.no_grad()
    def _tie_ends(self, run: RunConfig) -> None:
        """Both ends of a boundary begin with one basis, which they then learn apart."""
        places = {"exit": self.numbers[-1] + 1, "entry": self.numbers[0]}
        for end, place in places.items():
            if not hasattr(self, end):
                continue
            seed = draw(run.seed, "basis", place) >> 1
            basis_KD = first_basis(seed, run.model.width, run.boundary.dims)
            if end == "exit":
                self.exit.encode.weight.copy_(basis_KD)
            else:
                self.entry.decode.weight.copy_(basis_KD.T)

    def _global_name(self, name: str) -> str:
        """The parameter's name in the whole model: blocks are numbered from its first, whatever the cut."""
        head, _, rest = name.partition(".")
        if head in ("entry", "exit"):  # a boundary is known by the block behind it
            return f"{head}.{self.numbers[0] if head == 'entry' else self.numbers[-1] + 1}.{rest}"
        if head != "blocks":
            return name
        index, _, tail = rest.partition(".")
        return f"blocks.{self.numbers[int(index)]}.{tail}"

    def forward(self, tokens_BT: Tensor, crossed: Tensor | None, *, by_pass: bool = False) -> Tensor:
        """What crosses to the next stage, or logits [B,T,V] at the last. ``by_pass`` leaves the blocks out."""
        hidden_BTD = self.embed(tokens_BT) if self.is_first else self.entry(crossed, tokens_BT)
        for block in () if by_pass else self.blocks:
            hidden_BTD = block(hidden_BTD)
        return self.head(self.norm(hidden_BTD)) if self.is_last else self.exit(hidden_BTD, tokens_BT)  # type: ignore[no-any-return]


def parameter_layout(module: StageModule) -> tuple[ParameterSlot, ...]:
    """The flat vector's slots. Matrices decay; gains, tables of token ids and a boundary's ends do not."""
    slots, offset = [], 0
    for name, parameter in module.named_parameters():
        is_end = name.endswith(ENDS)
        decays = parameter.dim() > 1 and not name.endswith(TABLES) and not is_end
        is_hidden_matrix = decays and not name.startswith("head")
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

    def logits(self, tokens_BT: Tensor, *, microbatch: int = 0, skip: Sequence[int] = ()) -> Tensor:
        """Logits [B,T,V], without the blocks of stages in ``skip``. ``microbatch``: its id, which fixes the dither."""
        crossing: Tensor | None = None
        for number, stage in enumerate(self.stages):
            if crossing is not None:
                seed = dither_seed(self._run, MicrobatchId(microbatch), number)
                crossing = roundtrip(self._boundary, crossing, seed)
            crossing = stage(tokens_BT, crossing, by_pass=number in skip)
        assert crossing is not None
        return crossing

    def loss(self, tokens_BT1: Tensor, *, microbatch: int = 0, skip: Sequence[int] = ()) -> Tensor:
        """Mean nats per token of predicting ``tokens[:, 1:]``."""
        logits_BTV = self.logits(tokens_BT1[:, :-1], microbatch=microbatch, skip=skip)
        return token_loss(logits_BTV, tokens_BT1[:, 1:])

    def load_stages(self, flats: Sequence[Vector]) -> None:
        """Set all parameters from the stages' flat vectors."""
        for stage, flat in zip(self.stages, flats, strict=True):
            nn.utils.vector_to_parameters(torch.from_numpy(np.array(flat, dtype=np.float32)), stage.parameters())


def full_model(run: RunConfig) -> FullModel:
    """The whole model with the seed's initial parameters."""
    return FullModel(run)
