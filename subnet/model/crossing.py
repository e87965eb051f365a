"""The learned ends of a boundary: the sender's exit, the receiver's entry, and predictors from token ids.

A learned exit makes of a hidden state ``dims`` numbers per token, each in -1..1; the entry behind it makes a hidden
state of those numbers and of what a small causal predictor says about the token ids, which both ends have. Exit
parameters belong to the sender's stage, entry parameters to the receiver's, each with its optimiser and merge group.
``none`` and ``int8`` carry the hidden state itself; their entries may have the same predictor, so that they are the
baseline of the learned ones.
Not here: what of it is put on the wire (``subnet.model.boundary``).
Shapes: B sequences, T positions, D width of the model, K dims of the boundary, V token ids, E embedding, W kernel.
Sources: arXiv:2604.11947 (resbm: encoder, decoder, truncated identity lane), arXiv:2606.05484 (anchor by token id).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from subnet.config import LEARNED, PREDICTOR_EMBEDDING, RunConfig, has_predictor
from subnet.model.decoder import RMSNorm


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
    """The sender's end: hidden state [B,T,D] to what crosses."""

    def __init__(self, run: RunConfig) -> None:
        super().__init__()
        boundary, width = run.boundary, run.model.width
        self.is_learned = boundary.kind in LEARNED
        self.has_lane = boundary.kind == "resbm"
        self.dims = boundary.dims
        if self.is_learned:
            self.norm = RMSNorm(width, run.model.norm_eps)
            self.encode = nn.Linear(width, boundary.dims, bias=False)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """[B,T,K] in -1..1, or the hidden state itself."""
        if not self.is_learned:
            return hidden_BTD
        normal_BTD = self.norm(hidden_BTD)
        code_BTK = self.encode(normal_BTD)
        if self.has_lane:
            code_BTK = code_BTK + normal_BTD[..., : self.dims]
        return torch.tanh(code_BTK)


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
            self.decode = nn.Linear(boundary.dims, width, bias=False)

    def forward(self, crossed: Tensor, tokens_BT: Tensor) -> Tensor:
        """The receiver's first hidden state."""
        hidden_BTD = crossed
        if self.is_learned:
            hidden_BTD = self.decode(crossed)
            if self.has_lane:
                hidden_BTD = hidden_BTD + F.pad(crossed, (0, self.padding))
        return hidden_BTD if self.predict is None else hidden_BTD + self.predict(tokens_BT)
