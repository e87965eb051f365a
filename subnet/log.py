"""Events: decisions and incidents under names from one list, for people (a line) and machines (JSON lines).

Not here: the ledger, which is agreed and permanent; events are one process's own diary.
Invariants: an event's name is a member of ``Event``; fields are plain values; nothing here raises into its caller.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from enum import StrEnum
from typing import TextIO

LOGGER = logging.getLogger("liquid")


class Event(StrEnum):
    """Names of all events."""

    STARTED = "started"
    STOPPED = "stopped"
    CONFIG_IGNORED = "config.ignored"
    REQUEST_REFUSED = "request.refused"
    REQUEST_FAILED = "request.failed"
    TASK_FAILED = "task.failed"
    CHAIN_FAILED = "chain.failed"
    CHAIN_RESTORED = "chain.restored"
    CHAIN_STUCK = "chain.stuck"
    DEREGISTERED = "chain.deregistered"
    OWNER_CHANGED = "chain.owner-changed"
    PERMIT_LOST = "chain.permit-lost"
    PERMIT_GAINED = "chain.permit-gained"
    UID_CHANGED = "chain.uid-changed"
    WEIGHTS_SET = "weights.set"
    WEIGHTS_ALARM = "weights.alarm"
    PEER_CHANGED = "peer.changed"
    RELAY_USED = "relay.used"
    RELAY_UP = "relay.up"
    RELAY_DOWN = "relay.down"
    PROBED = "probed"
    ROUND_OPENED = "round.opened"
    PHASE_CHANGED = "phase.changed"
    ROUND_CLOSED = "round.closed"
    STATE_RESTORED = "state.restored"
    STATE_SYNCED = "state.synced"
    MICROBATCH_RESENT = "microbatch.resent"
    MICROBATCH_LATE = "microbatch.late"
    SHARD_MERGED = "shard.merged"
    SHARD_DISPUTED = "shard.disputed"
    AUDIT_DONE = "audit.done"
    AUDIT_FAILED = "audit.failed"
    AUDIT_MISSING = "audit.missing"
    DIVERGED = "diverged"


class _Lines(logging.Formatter):
    def __init__(self, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = getattr(record, "fields", {})
        if self._as_json:
            head = {"time_s": round(record.created, 3), "level": record.levelname.lower(), "event": record.getMessage()}
            return json.dumps({**head, **fields}, default=str)
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        tail = " ".join(f"{name}={_short(value)}" for name, value in fields.items())
        text = f"{clock} {record.levelname[0]} {record.getMessage()} {tail}".rstrip()
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    return text if len(text) <= 120 else text[:117] + "..."


def configure_logging(*, level: int = logging.INFO, as_json: bool = False, stream: TextIO | None = None) -> None:
    """Send events to ``stream`` (standard error by default)."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Lines(as_json))
    LOGGER.handlers[:] = [handler]
    LOGGER.setLevel(level)
    LOGGER.propagate = False


def event(name: Event, *, level: int = logging.INFO, exc_info: bool = False, **fields: object) -> None:
    """Record that ``name`` happened."""
    LOGGER.log(level, name.value, extra={"fields": fields}, exc_info=exc_info)
