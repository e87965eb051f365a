"""One journalled operation, done again by an engine and held against what its entry says.

For a replica that comes back after a crash (``subnet.train.recorder``) and for validators (``subnet.verify.replay``).
Not here: which frames to replay, and from which state. Invariant: nothing but the engine changes.
"""

from __future__ import annotations

from torch import Tensor

from subnet.codec.tensors import tensors_digest, unpack
from subnet.errors import Diverged, Malformed, Refused
from subnet.train.engine import StageEngine
from subnet.train.journal import EntryKind, Frame, JournalEntry
from subnet.train.wire import WireFormat


def replay_frame(engine: StageEngine, frame: Frame, wire: WireFormat) -> str:
    """Do one journalled operation again; returns "" when it gives the same, else what differs.

    Reasons: "body", "input-digest", "order", "version", "output-mismatch", "loss", "learning-rate", "tokens",
    "diverged".
    """
    entry = frame.entry
    try:
        match entry.kind:
            case EntryKind.FORWARD:
                return _replay_forward(engine, entry, frame.body, wire)
            case EntryKind.BACKWARD:
                return _replay_backward(engine, entry, frame.body, wire)
            case EntryKind.STEP:
                return _replay_step(engine, entry)
    except Diverged:
        return "diverged"
    except Refused:
        return "body"


def _replay_forward(engine: StageEngine, entry: JournalEntry, body: bytes, wire: WireFormat) -> str:
    tensors, _ = unpack(body, wire.forward, max_bytes=wire.max_bytes)
    if tensors_digest(tensors) != entry.input_digest:
        return "input-digest"
    if entry.microbatch is None or entry.microbatch in engine.pending:
        return "order"
    tokens = tensors.pop("tokens")
    result = engine.forward(entry.microbatch, tokens, tensors or None)
    if result.version != entry.version:
        return "version"
    if result.loss != entry.loss:
        return "loss"
    digest = None if result.outputs is None else tensors_digest(result.outputs)
    return "" if digest == entry.output_digest else "output-mismatch"


def _replay_backward(engine: StageEngine, entry: JournalEntry, body: bytes, wire: WireFormat) -> str:
    if entry.microbatch is None or entry.microbatch not in engine.pending:
        return "order"
    grads: dict[str, Tensor] | None = None
    if wire.backward:
        grads, _ = unpack(body, wire.backward, max_bytes=wire.max_bytes)
        if tensors_digest(grads) != entry.input_digest:
            return "input-digest"
    elif body:
        raise Malformed("The last stage receives no gradients.")
    result = engine.backward(entry.microbatch, grads)
    if result.version != entry.version:
        return "version"
    if entry.num_tokens != engine.run.microbatch_tokens:
        return "tokens"
    digest = None if result.grads is None else tensors_digest(result.grads)
    return "" if digest == entry.output_digest else "output-mismatch"


def _replay_step(engine: StageEngine, entry: JournalEntry) -> str:
    if not engine.has_gradient:
        return "order"
    result = engine.step()
    if (result.version, result.num_tokens) != (entry.version, entry.num_tokens):
        return "tokens"
    return "" if result.learning_rate == entry.learning_rate else "learning-rate"
