"""The seam to the chain: what a neuron reads from it and writes to it.

``live`` talks to subtensor through the SDK, ``memory`` is the twin for tests. Not here: which weights to set
(``incentives``), when (``subnet.chain.weights``).
Invariants: all reads of one decision come from one ``ChainSnapshot``, pinned to one block; every call has a deadline;
a chain that cannot be reached raises ``ChainUnreachable`` or ``DeadlineExceeded``, both retryable; one that says no
raises ``ChainRefused``, of which only ``ChainNotNow`` is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from subnet.types import Hotkey, Uid

MAX_COMMITMENT_BYTES = 128  # the largest Raw commitment of the runtime
RAO_PER_ALPHA = 10**9


@dataclass(frozen=True)
class NeuronInfo:
    """One place in the subnet. ``axon`` is "ip:port" or ""; shares (incentive, ...) are between 0 and 1."""

    uid: Uid
    hotkey: Hotkey
    coldkey: str
    axon: str
    validator_permit: bool
    stake_rao: int
    incentive: float
    dividends: float
    emission_rao: int
    last_update_block: int
    weights: Mapping[Uid, float]  # as it set them, adding up to 1; empty if it set none


@dataclass(frozen=True)
class ChainSnapshot:
    """The subnet at one block."""

    netuid: int
    block: int
    tempo_blocks: int
    last_epoch_block: int
    owner_hotkey: Hotkey
    owner_coldkey: str
    weights_rate_limit_blocks: int
    neurons: tuple[NeuronInfo, ...]
    commitments: Mapping[Hotkey, str]
    has_commit_reveal: bool = False  # weights are sealed when set, and appear an epoch or more later
    sealed_at_block: Mapping[Hotkey, int] = field(default_factory=dict)  # whose newest weights are still sealed

    def neuron(self, hotkey: Hotkey) -> NeuronInfo | None:
        """The place of ``hotkey``, or None."""
        return next((known for known in self.neurons if known.hotkey == hotkey), None)

    def burn_uid(self) -> Uid | None:
        """Where weight is burnt instead of paid: the owner's hotkey, else any hotkey of the owner's coldkey."""
        owner = self.neuron(self.owner_hotkey)
        if owner is not None:
            return owner.uid
        return next((known.uid for known in self.neurons if known.coldkey == self.owner_coldkey), None)


class Chain(Protocol):
    """One subnet on one chain, seen and acted on by one wallet. Raises ``ChainError`` and ``DeadlineExceeded``."""

    async def snapshot(self) -> ChainSnapshot:
        """The subnet now."""
        ...

    async def block_hash(self, number: int) -> str | None:
        """Hash of block ``number`` once it is final, else None."""
        ...

    async def register(self) -> None:
        """Buy this wallet's hotkey a place in the subnet."""
        ...

    async def serve_axon(self, ip: str, port: int) -> None:
        """Publish where this hotkey is reached."""
        ...

    async def set_weights(self, weights: Mapping[Uid, float], version_key: int) -> None:
        """Set (or commit) this validator's weights."""
        ...

    async def commit(self, text: str) -> None:
        """Publish up to ``MAX_COMMITMENT_BYTES`` of text under this hotkey."""
        ...

    async def close(self) -> None:
        """Let go of the chain."""
        ...
