"""The learned ends of a boundary: the sender's exit, the receiver's entry, and predictors from token ids.

``anchored`` sends ``dims`` numbers per token that are made to say what the token ids do not: the exit guesses the next
token from them and from a small causal predictor of the ids, and what that guess loses is part of the sender's loss.
So the numbers mean something before the receiver has learnt to read them; the receiver begins by adding nothing to its
own predictor, as if nothing crossed, and reads slowly, for the sender's language changes. Ends that begin at random
disturb the receiver for longer than they help it (docs/experiments.md).
``resbm`` sends the first ``dims`` channels and a learned part of all. ``none`` and ``int8`` carry the hidden state
itself; their entries may have the same predictor, so that they are the baseline of the learned ones.
Exit parameters belong to the sender's stage, entry parameters to the receiver's, each with its optimiser and merge
group. Not here: what of it is put on the wire (``subnet.model.boundary``).
Shapes: B sequences, T positions, D width of the model, K dims of the boundary, V token ids, E embedding, W kernel.
Sources: arXiv:2604.11947 (resbm), arXiv:2606.05484 (anchor by token id), arXiv:1901.08164 (a loss of the sender's own).
"""

from __future__ import annotations

import warnings

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import skip_init

from subnet.config import PREDICTOR_EMBEDDING, RunConfig, has_predictor
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


class Reader(nn.Module):
    """What a code [B,T,K] says of a hidden state [B,T,D]: a linear map, and one hidden layer beside it."""

    def __init__(self, run: RunConfig) -> None:
        super().__init__()
        dims, width = run.boundary.dims, run.model.width
        self.read = _linear(dims, width)
        self.unfold = _linear(dims, width)
        self.refold = nn.Linear(width, width, bias=False)

    def forward(self, code_BTK: Tensor) -> Tensor:
        """Zero before the first step."""
        return self.read(code_BTK) + self.refold(F.silu(self.unfold(code_BTK)))  # type: ignore[no-any-return]


class Guess(nn.Module):
    """The next token, as a code and the token ids tell it."""

    def __init__(self, run: RunConfig) -> None:
        super().__init__()
        self.reader = Reader(run)
        self.predict = Predictor(run)
        self.norm = RMSNorm(run.model.width, run.model.norm_eps)
        self.head = nn.Linear(run.model.width, run.model.vocab_size, bias=False)

    def forward(self, code_BTK: Tensor, tokens_BT: Tensor) -> Tensor:
        """Logits [B,T,V]."""
        return self.head(self.norm(self.reader(code_BTK) + self.predict(tokens_BT)))  # type: ignore[no-any-return]


class Exit(nn.Module):
    """The sender's end: hidden state [B,T,D] to what crosses, [B,T,K] or the hidden state itself."""

    def __init__(self, run: RunConfig) -> None:
        super().__init__()
        self.kind, self.dims = run.boundary.kind, run.boundary.dims
        if self.kind in ("anchored", "resbm"):
            self.encode = _linear(run.model.width, self.dims)
        self.guess = Guess(run) if self.kind == "anchored" else None
        if self.kind == "anchored":
            self.norm = RMSNorm(run.model.width, run.model.norm_eps)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """What crosses, before it is put into digits. A token's code of ``anchored`` has a mean square of one."""
        if self.kind == "anchored":
            code_BTK: Tensor = self.encode(self.norm(hidden_BTD))
            return F.rms_norm(code_BTK, (self.dims,)) if self.dims else code_BTK
        if self.kind == "resbm":
            return self.encode(hidden_BTD) + hidden_BTD[..., : self.dims]  # type: ignore[no-any-return]
        return hidden_BTD


class Entry(nn.Module):
    """The receiver's end: what crossed, and the token ids, to a hidden state [B,T,D]."""

    def __init__(self, run: RunConfig) -> None:
        super().__init__()
        self.kind, self.padding = run.boundary.kind, run.model.width - run.boundary.dims
        self.predict = Predictor(run) if has_predictor(run.boundary) else None
        if self.kind == "anchored":
            self.reader = Reader(run)
        if self.kind == "resbm":
            self.decode = _linear(run.boundary.dims, run.model.width)

    def forward(self, crossed: Tensor, tokens_BT: Tensor) -> Tensor:
        """The receiver's first hidden state."""
        hidden_BTD = crossed
        if self.kind == "anchored":
            hidden_BTD = self.reader(crossed)
        if self.kind == "resbm":
            hidden_BTD = self.decode(crossed) + F.pad(crossed, (0, self.padding))
        return hidden_BTD if self.predict is None else hidden_BTD + self.predict(tokens_BT)


def _linear(inputs: int, outputs: int) -> nn.Linear:
    """A matrix that may have no rows or columns, of which torch warns."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Initializing zero-element tensors")
        return skip_init(nn.Linear, inputs, outputs, bias=False)  # type: ignore[no-untyped-call, no-any-return]
