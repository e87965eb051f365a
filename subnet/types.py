"""Ids and enumerations that every part of Liquid shares.

Not here: records (``subnet.records``), configuration (``subnet.config``), tensors.
Invariants: ids are NewTypes, so that a uid is never passed where a hotkey belongs; state of any kind is keyed by
hotkey, because the chain reuses uids.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NewType

Hotkey = NewType("Hotkey", str)  # ss58 address of the key that signs for a neuron
Uid = NewType("Uid", int)  # place of a neuron in the subnet at one block; reused after pruning
StageId = NewType("StageId", int)  # 0 is the stage that embeds tokens
RoundId = NewType("RoundId", int)  # counts merges, from 0
MicrobatchId = NewType("MicrobatchId", int)  # counts over the whole run; fixes the microbatch's tokens
Digest = NewType("Digest", str)  # sha256 as 64 lower-case hex digits


class Role(StrEnum):
    """Which of the three programs a peer runs."""

    MINER = "miner"
    VALIDATOR = "validator"
    ORCHESTRATOR = "orchestrator"


class Phase(StrEnum):
    """State inside a round."""

    FORMING = "forming"
    TRAINING = "training"
    COMMITTING = "committing"
    MERGING = "merging"


class PeerState(StrEnum):
    """Where a miner stands between registration and departure."""

    REGISTERED = "registered"  # known, not yet assigned a stage
    SYNCING = "syncing"  # assigned, fetching or rebuilding its state
    ACTIVE = "active"  # proved its parameters' root; eligible for rosters
    LOST = "lost"  # missed heartbeats; keeps its place
    RETIRED = "retired"  # said good-bye


class MicrobatchClass(StrEnum):
    """How the ledger accounts for a microbatch once its round is closed."""

    COMPLETE = "complete"  # every stage applied it exactly once
    PARTIAL = "partial"  # some stages did not apply it
    DUPLICATE = "duplicate"  # some stage applied it by two replicas or more
    RELEASED = "re-leased"  # no merged journal contains it; leased again


class Outcome(StrEnum):
    """What an audit found."""

    PASSED = "passed"
    FAILED = "failed"
