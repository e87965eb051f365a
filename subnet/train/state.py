"""StageState: everything that one stage's training needs to go on, and the roots by which it is known.

Not here: files (``subnet.train.checkpoint``), the engine that fills and takes it.
Invariants: a state root covers parameters, inner optimiser and what is carried in flight; where nothing is carried, as
at every round edge, it depends on parameters and optimiser only; ``from_tensors(to_tensors(s))`` has the same roots.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from subnet.codec.tensors import NAMES, tensors_digest
from subnet.errors import Malformed
from subnet.hashing import EMPTY_ROOT, bytes_root, canonical_json, digest_of
from subnet.records import Record
from subnet.train.merge import little_endian, params_root
from subnet.train.optim import Moments
from subnet.types import Digest, Hotkey, MicrobatchId

Vector = npt.NDArray[np.float32]

STASH, PENDING, HEADS = "stash/", "pending/", "heads"
MAX_STEPS = 1 << 31  # an inner step takes milliseconds at least: no run gets there


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
    microbatches still need. Nobody changes a state's arrays in place: its roots are computed once.
    """

    params: Vector
    moments: Moments
    num_shards: int
    version: int = 0
    pending: tuple[PendingInput, ...] = ()
    stash: Mapping[int, Vector] | None = None

    @cached_property
    def params_root(self) -> Digest:
        """Root of the parameters."""
        return params_root(self.params, self.num_shards)

    @cached_property
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

    @cached_property
    def root(self) -> Digest:
        """Root of the whole state."""
        return digest_of([self.params_root, self.optim_root, self.carry_root()])

    def with_params(self, params: Vector) -> StageState:
        """This optimiser state with other parameters, at a round edge: nothing in flight, version 0."""
        return StageState(params, self.moments, self.num_shards)

    def to_tensors(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Tensors and text for one safetensors body."""
        tensors = {"params": torch.from_numpy(self.params), "first": self.moments.first, "second": self.moments.second}
        for number, flat in (self.stash or {}).items():
            tensors[f"{STASH}{number}"] = torch.from_numpy(flat)
        text = {"step": str(self.moments.step), "version": str(self.version), "num_shards": str(self.num_shards)}
        if self.pending:  # stacked: a body's header is bounded, however many microbatches are in flight
            heads = canonical_json([item.head.plain() for item in self.pending])
            tensors[HEADS] = torch.frombuffer(bytearray(heads), dtype=torch.uint8)
            parts = [item.tensors() for item in self.pending]
            for name in parts[0]:
                tensors[PENDING + name] = torch.stack([part[name] for part in parts])
        return tensors, text

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], text: Mapping[str, str]) -> StageState:
        """A state from ``to_tensors``, also from a stranger's; raises ``Malformed``."""
        try:
            step, version, num_shards = (int(text[name]) for name in ("step", "version", "num_shards"))
            params, first, second = (_vector(tensors[name]) for name in ("params", "first", "second"))
            stash = {
                int(name.removeprefix(STASH)): _vector(tensor).numpy()
                for name, tensor in tensors.items()
                if name.startswith(STASH)
            }
        except (KeyError, ValueError):
            raise Malformed("A stage's state is not complete.") from None
        sizes = {len(params), len(first), len(second), *(len(flat) for flat in stash.values())}
        is_sound = 0 <= step < MAX_STEPS and 0 <= version < MAX_STEPS and len(sizes) == 1
        if not is_sound or not 1 <= num_shards <= len(params):
            raise Malformed("A stage's state is not of one piece.")
        pending = _pending(tensors)
        return cls(params.numpy(), Moments(first, second, step), num_shards, version, pending, stash or None)


def _vector(tensor: Tensor) -> Tensor:
    """A flat fp32 tensor; raises ``ValueError``."""
    if tensor.dtype is not torch.float32 or tensor.dim() != 1:
        raise ValueError("not a flat fp32 vector")
    return tensor


def _pending(tensors: Mapping[str, Tensor]) -> tuple[PendingInput, ...]:
    """What is in flight in a body's tensors; raises ``Malformed``."""
    stacks = {name.removeprefix(PENDING): item for name, item in tensors.items() if name.startswith(PENDING)}
    if HEADS not in tensors and not stacks:
        return ()
    try:
        plain = json.loads(tensors[HEADS].to(torch.uint8).numpy().tobytes())
    except (KeyError, ValueError, RecursionError):
        raise Malformed("The microbatches in flight cannot be read.") from None
    if not isinstance(plain, list) or not all(isinstance(item, dict) for item in plain):
        raise Malformed("The microbatches in flight are not a list.")
    is_whole = all(item.dim() and len(item) == len(plain) and item.dtype in NAMES for item in stacks.values())
    if not plain or "tokens" not in stacks or not is_whole:
        raise Malformed("The microbatches in flight are not complete.")
    found = []
    for index, item in enumerate(plain):
        held = {name: stack[index].clone() for name, stack in stacks.items()}
        found.append(PendingInput(PendingHead.from_plain(item), held.pop("tokens"), held or None))
    return tuple(found)
