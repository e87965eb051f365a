"""The learned ends of a boundary: the sender's exit, the receiver's entry, and predictors from token ids.

A learned exit makes of a hidden state ``dims`` numbers per token; the entry behind it makes a hidden state of them.
``anchored`` sends the innovation, what a small causal predictor does not know from the token ids, in an orthonormal
basis; the receiver starts with the same basis and adds what its own predictor says. So the first step sees the hidden
state's projection, and its gradient goes back the same way: random ends that are not tied at the start learn nothing
(docs/experiments.md). ``resbm`` adds a learned part to the first ``dims`` channels. Exit parameters belong to the
sender's stage, entry parameters to the receiver's, each with its optimiser and merge group. ``none`` and ``int8`` carry
the hidden state itself; their entries may have the same predictor, so that they are the baseline of the learned ones.
Not here: what of it is put on the wire (``subnet.model.boundary``).
Shapes: B sequences, T positions, D width of the model, K dims of the boundary, V token ids, E embedding, W kernel.
Sources: arXiv:2604.11947 (resbm), arXiv:2606.05484 (basis and anchor by token id).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import skip_init

from subnet.config import LEARNED, PREDICTOR_EMBEDDING, RunConfig, has_predictor


class Predictor(nn.Module):
    """What the token ids alone say about a hidden state: a table, and a causal kernel with one hidden layer."""

    def __init__(self, run: RunConfig) -> None:
        super().__init__()
        vocab_size, width, hidden_width = run.model.vocab_size, run.model.width, run.boundary.predictor_width
        self.kernel = run.boundary.predictor_kernel
        self.table = nn.Embedding(vocab_size, width)
        if self.kernel:
            self.letters = nn.Embedding(vocab_size, PREDICTOR_EMBEDDING)
            self.window = nn.Linear(self.kernel * PREDICTOR_EMBEDDING, hidden_width, bias=False)
            self.mix = nn.Linear(hidden_width, width, bias=False)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """A hidden state [B,T,D]; position t depends on tokens up to t."""
        predicted_BTD = self.table(tokens_BT)
        if self.kernel:
            padded = F.pad(self.letters(tokens_BT), (0, 0, self.kernel - 1, 0))
            windows_BTEW = padded.unfold(1, self.kernel, 1)
            predicted_BTD = predicted_BTD + self.mix(F.gelu(self.window(windows_BTEW.flatten(2))))
        return predicted_BTD  # type: ignore[no-any-return]


class Exit(nn.Module):
    """The sender's end: hidden state [B,T,D] to what crosses, [B,T,K] or the hidden state itself."""

    def __init__(self, run: RunConfig) -> None:
        super().__init__()
        boundary = run.boundary
        self.is_learned = boundary.kind in LEARNED
        self.has_lane = boundary.kind == "resbm"
        self.dims = boundary.dims
        self.expect = Predictor(run) if boundary.kind == "anchored" else None
        if self.is_learned:
            self.encode = skip_init(nn.Linear, run.model.width, boundary.dims, bias=False)  # type: ignore[no-untyped-call]

    def forward(self, hidden_BTD: Tensor, tokens_BT: Tensor) -> Tensor:
        """What crosses, before it is put into digits."""
        if not self.is_learned:
            return hidden_BTD
        if self.expect is not None:
            hidden_BTD = hidden_BTD - self.expect(tokens_BT)
        code_BTK: Tensor = self.encode(hidden_BTD)
        return code_BTK + hidden_BTD[..., : self.dims] if self.has_lane else code_BTK


class Entry(nn.Module):
    """The receiver's end: what crossed, and the token ids, to a hidden state [B,T,D]."""

    def __init__(self, run: RunConfig) -> None:
        super().__init__()
        boundary, width = run.boundary, run.model.width
        self.is_learned = boundary.kind in LEARNED
        self.has_lane = boundary.kind == "resbm"
        self.padding = width - boundary.dims
        self.predict = Predictor(run) if has_predictor(boundary) else None
        if self.is_learned:
            self.decode = skip_init(nn.Linear, boundary.dims, width, bias=False)  # type: ignore[no-untyped-call]

    def forward(self, crossed: Tensor, tokens_BT: Tensor) -> Tensor:
        """The receiver's first hidden state."""
        hidden_BTD = crossed
        if self.is_learned:
            hidden_BTD = self.decode(crossed)
            if self.has_lane:
                hidden_BTD = hidden_BTD + F.pad(crossed, (0, self.padding))
        return hidden_BTD if self.predict is None else hidden_BTD + self.predict(tokens_BT)


def first_basis(seed: int, width: int, dims: int) -> Tensor:
    """Orthonormal rows [K,D]: waves of a cosine transform, drawn and with signs drawn by ``seed``.

    No factorisation: its rounding differs between machines, and all peers must begin with the same bits.
    """
    generator = torch.Generator().manual_seed(seed)
    waves = torch.randperm(width, generator=generator)[:dims].sort().values.double()
    signs = torch.randint(0, 2, (width,), generator=generator).double() * 2 - 1
    angles = torch.outer(waves, torch.arange(width, dtype=torch.float64) + 0.5) * (math.pi / width)
    norms = torch.where(waves > 0, math.sqrt(2 / width), math.sqrt(1 / width))
    return (angles.cos() * norms[:, None] * signs).float()
