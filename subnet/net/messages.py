"""Requests and replies that nobody stores, and the body that carries tensors between neighbours.

Not here: records that are signed and kept (``subnet.records``), the tensor container (``subnet.codec.tensors``).
Invariants: strict decoding, as for all records; a tensor body is one safetensors file whose metadata holds the
envelope and nothing else, and whose tensors have the digest that the envelope states; an envelope of another protocol
is refused.
Source: design.md, section 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from subnet.errors import Malformed
from subnet.hashing import canonical_json
from subnet.records import PROTOCOL, Record, RoundEffort, decode
from subnet.types import Digest, Hotkey, MicrobatchId, Phase, RoundId, StageId

if TYPE_CHECKING:
    from torch import Tensor

    from subnet.codec.tensors import TensorSpec

ENVELOPE_FIELD = "envelope"


class Envelope(Record):
    """What goes with boundary tensors. ``stage`` is the receiver's; ``path`` names the senders, first stage first.

    ``version`` is the sender's parameter version, ``digest`` the ``tensors_digest`` of the tensors beside it.
    """

    protocol: int
    run_hash: Digest
    round: RoundId
    microbatch: MicrobatchId
    attempt: int
    stage: StageId
    version: int
    path: tuple[Hotkey, ...]
    digest: Digest


class ForwardReply(Record):
    """Accepted, or busy; ``queue`` is the number of microbatches that wait."""

    accepted: bool
    queue: int


class BackwardReply(Record):
    """Whether the gradient was (or had been) applied; if not, why."""

    applied: bool
    reason: str


class NeighbourStatus(Record):
    """What a replica holds, told to its neighbours; the answer is the other side's."""

    round: RoundId
    held: tuple[MicrobatchId, ...]
    queue: int


class Heartbeat(Record):
    """A replica's state, told to the orchestrator. ``applied`` and ``wire_*`` (sent, both
    ways) count since the program started; ``wire_bytes`` / ``wire_tokens`` is bytes per token and boundary.
    ``effort`` is that of the last round whose TRAINING it has finished."""

    round: RoundId
    phase: Phase
    is_drained: bool
    held: int
    applied: int
    queue: int
    tokens_per_s: float
    loss: float | None
    wire_bytes: int
    wire_tokens: int
    staleness_max: int
    effort: RoundEffort | None


class HeartbeatReply(Record):
    """Where the ledger stands."""

    seq: int
    head: Digest


class RunInfo(Record):
    """What a newcomer must know first. ``relay`` is where the orchestrator's relay takes miners: an address, or a path
    at the orchestrator's own; empty: it has none."""

    run: dict[str, Any]
    run_hash: Digest
    owner: Hotkey
    protocol: int
    relay: str = ""


class ProbeRequest(Record):
    """Asks the orchestrator to try the address that a miner is about to publish."""

    url: str


class ProbeReply(Record):
    """Whether the miner was reached there."""

    is_reachable: bool


class ProbeChallenge(Record):
    """What the orchestrator asks there."""

    url: str
    nonce: str

    def signed_bytes(self, hotkey: Hotkey) -> bytes:
        """What the miner signs."""
        return canonical_json({"probe": self.nonce, "url": self.url, "hotkey": hotkey})


class ProbeAnswer(Record):
    """The miner's signature."""

    signature: str


class BlobStored(Record):
    """Under which key a blob lies."""

    key: str
    digest: Digest


class Appended(Record):
    """The ledger entry that a signed record became."""

    seq: int
    hash: Digest


def pack_body(envelope: Envelope, tensors: Mapping[str, Tensor]) -> bytes:
    """One body of envelope and tensors. ``envelope.digest`` must be ``tensors_digest(tensors)``."""
    from subnet.codec import tensors as codec  # here, so that programs without tensors load no torch

    return codec.pack(tensors, {ENVELOPE_FIELD: envelope.encoded().decode()})


def unpack_body(body: bytes, specs: Mapping[str, TensorSpec], *, max_bytes: int) -> tuple[Envelope, dict[str, Tensor]]:
    """Envelope and tensors; raises ``TooLarge``, ``Malformed`` and ``NotFinite``."""
    from subnet.codec import tensors as codec  # as above

    tensors, metadata = codec.unpack(body, specs, max_bytes=max_bytes)
    if set(metadata) != {ENVELOPE_FIELD}:
        raise Malformed("A tensor body's metadata must hold an envelope and nothing else.")
    envelope = decode(Envelope, metadata[ENVELOPE_FIELD].encode())
    if envelope.protocol != PROTOCOL:
        raise Malformed("The envelope is of another protocol version.")
    if envelope.digest != codec.tensors_digest(tensors):
        raise Malformed("The tensors do not have the digest that their envelope states.")
    return envelope, tensors
