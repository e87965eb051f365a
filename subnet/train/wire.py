"""What a stage expects on its two boundaries: names, dtypes and shapes, from the RunConfig alone.

Not here: envelopes (``subnet.net.messages``) and the boundary's arithmetic (``subnet.model.boundary``).
Invariant: both ends derive the same specs, so a body that fits is the body that was meant.
"""

from __future__ import annotations

from subnet.codec.tensors import TensorSpec, max_body_bytes
from subnet.config import RunConfig
from subnet.data.batches import wire_token_dtype
from subnet.model.boundary import make_boundary
from subnet.types import StageId


class WireFormat:
    """Specs of the bodies that one stage receives, and that its journal holds."""

    def __init__(self, run: RunConfig, stage: StageId) -> None:
        sequences, length = run.data.sequences, run.model.seq_len
        boundary = make_boundary(run)
        tokens = TensorSpec(wire_token_dtype(run.model.vocab_size), (sequences, length + 1))
        self.forward: dict[str, TensorSpec] = {
            **(boundary.specs(sequences, length) if stage > 0 else {}),
            "tokens": tokens,
        }
        is_last = stage == run.stages.num_stages - 1
        self.backward: dict[str, TensorSpec] = {} if is_last else boundary.grad_specs(sequences, length)

    @property
    def max_bytes(self) -> int:
        """The largest body that either needs."""
        return max(max_body_bytes(self.forward), max_body_bytes(self.backward))
