"""StageState: everything that one stage's training needs to go on, and the roots by which it is known.

Not here: files (``subnet.train.checkpoint``), the engine that fills and takes it.
Invariants: a state root covers parameters, inner optimiser and what is carried in flight; where nothing is carried, as
at every round edge, it depends on parameters and optimiser only; ``from_tensors(to_tensors(s))`` has the same roots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from subnet.codec.tensors import tensors_digest
from subnet.errors import Malformed
from subnet.hashing import EMPTY_ROOT, bytes_root, digest_of
from subnet.records import Record
from subnet.train.merge import little_endian, params_root
from subnet.train.optim import Moments
from subnet.types import Digest, Hotkey, MicrobatchId

Vector = npt.NDArray[np.float32]


class PendingHead(Record):
    """A microbatch whose forward is done and whose backward is not: what a snapshot says of it beside its tensors."""

    microbatch: MicrobatchId
    version: int
    attempt: int
    peer: Hotkey | None


@dataclass(frozen=True, eq=False)
class PendingInput:
    """A pending microbatch with the tensors of its forward."""

    head: PendingHead
    tokens: Tensor
    inputs: Mapping[str, Tensor] | None

    def tensors(self) -> dict[str, Tensor]:
        """Inputs and token ids together, as they came."""
        return {**(self.inputs or {}), "tokens": self.tokens}


@dataclass(frozen=True, eq=False)
class StageState:
    """A stage between two operations, right after an inner step or at a round edge.

    ``version`` counts inner steps of the round; ``stash`` holds the parameters of older versions that ``pending``
    microbatches still need.
    """

    params: Vector
    moments: Moments
    num_shards: int
    version: int = 0
    pending: tuple[PendingInput, ...] = ()
    stash: Mapping[int, Vector] | None = None

    def params_root(self) -> Digest:
        """Root of the parameters."""
        return params_root(self.params, self.num_shards)

    def optim_root(self) -> Digest:
        """Root of the inner optimiser's state."""
        first, second = (bytes_root(little_endian(part.numpy())) for part in (self.moments.first, self.moments.second))
        return digest_of([first, second, self.moments.step])

    def carry_root(self) -> Digest:
        """Root of what is in flight; ``EMPTY_ROOT`` when nothing is."""
        if not self.pending:
            return EMPTY_ROOT
        pending = [[item.head.plain(), tensors_digest(item.tensors())] for item in self.pending]
        stash = [[number, params_root(flat, self.num_shards)] for number, flat in sorted((self.stash or {}).items())]
        return digest_of([self.version, pending, stash])

    def root(self) -> Digest:
        """Root of the whole state."""
        return digest_of([self.params_root(), self.optim_root(), self.carry_root()])

    def with_params(self, params: Vector) -> StageState:
        """This optimiser state with other parameters, at a round edge: nothing in flight, version 0."""
        return StageState(params, self.moments, self.num_shards)

    def to_tensors(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Tensors and text for one safetensors body."""
        tensors = {"params": torch.from_numpy(self.params), "first": self.moments.first, "second": self.moments.second}
        for number, flat in (self.stash or {}).items():
            tensors[f"stash/{number}"] = torch.from_numpy(flat)
        text = {"step": str(self.moments.step), "version": str(self.version), "num_shards": str(self.num_shards)}
        for index, item in enumerate(self.pending):
            text[f"pending/{index}"] = item.head.encoded().decode()
            for name, tensor in item.tensors().items():
                tensors[f"pending/{index}/{name}"] = tensor
        return tensors, text

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], text: Mapping[str, str]) -> StageState:
        """A state from ``to_tensors``; raises ``Malformed``."""
        try:
            moments = Moments(tensors["first"], tensors["second"], int(text["step"]))
            pending, index = [], 0
            while f"pending/{index}" in text:
                head = PendingHead.model_validate_json(text[f"pending/{index}"], strict=True)
                prefix = f"pending/{index}/"
                held = {name.removeprefix(prefix): item for name, item in tensors.items() if name.startswith(prefix)}
                pending.append(PendingInput(head, held.pop("tokens"), held or None))
                index += 1
            stash = {
                int(name.removeprefix("stash/")): tensor.numpy()
                for name, tensor in tensors.items()
                if name.startswith("stash/")
            }
            state = cls(tensors["params"].numpy(), moments, int(text["num_shards"]), int(text["version"]))
        except (KeyError, ValueError):
            raise Malformed("A stage's state is not complete.") from None
        return replace(state, pending=tuple(pending), stash=stash or None)
