"""What people and tables look at: the run in one JSON object, and what one peer waits for.

Not here: decisions. Invariant: everything shown comes from the ledger's fold or from heartbeats; ``utilisation`` holds
figures of the run and of each miner (``subnet.orchestrate.efforts``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from subnet.net.messages import Heartbeat
from subnet.swarm.view import RunView
from subnet.types import Hotkey, Outcome, Phase, Role


def status(
    view: RunView, beats: Mapping[Hotkey, Heartbeat], utilisation: Mapping[str, Any], now_s: float
) -> dict[str, Any]:
    """The run as it stands."""
    current = view.round
    wire_bytes = sum(beat.wire_bytes for beat in beats.values())
    wire_tokens = sum(beat.wire_tokens for beat in beats.values())
    return {
        "run": view.run.name,
        "run_hash": view.run_hash,
        "round": view.last_round + 1 if current is None else current.round,
        "phase": view.phase,
        "reason": view.phase_reason,
        "deadline_s": view.deadline_s,
        "now_s": now_s,
        "closed_rounds": len(view.closed),
        "is_stopped": view.stopped is not None,
        "mean_loss": view.closed[-1].mean_loss if view.closed else None,
        "applied_first_stage": sum(beat.applied for hotkey, beat in beats.items() if view.peers[hotkey].stage == 0),
        "microbatch_tokens": view.run.microbatch_tokens,
        "bytes_per_token_per_boundary": wire_bytes / wire_tokens if wire_tokens else None,
        "utilisation": utilisation,
        "miners": [_miner(view, hotkey, beats.get(hotkey)) for hotkey in sorted(view.peers) if _is_miner(view, hotkey)],
        "verdicts": dict(Counter(item.verdict.outcome.value for item in view.verdicts)),
        "seq": view.seq,
        "head": view.head,
    }


def _is_miner(view: RunView, hotkey: Hotkey) -> bool:
    return view.peers[hotkey].registration.role is Role.MINER


def _miner(view: RunView, hotkey: Hotkey, beat: Heartbeat | None) -> dict[str, Any]:
    peer = view.peers[hotkey]
    mine = [item.verdict for item in view.verdicts if item.verdict.hotkey == hotkey]
    return {
        "hotkey": hotkey,
        "stage": peer.stage,
        "state": peer.state,
        "url": peer.registration.url,
        "passed": sum(verdict.outcome is Outcome.PASSED for verdict in mine),
        "failed": sum(verdict.outcome is Outcome.FAILED for verdict in mine),
        "beat": beat.plain() if beat else None,
    }


def me(view: RunView, hotkey: Hotkey) -> dict[str, Any]:
    """What ``hotkey`` waits for: the reason, whose turn it is, and the deadline."""
    peer, current = view.peers.get(hotkey), view.round
    if peer is None:
        return {"reason": "not-registered", "owner": hotkey, "deadline_s": None}
    answer = {"stage": peer.stage, "state": peer.state, "phase": view.phase, "deadline_s": view.deadline_s}
    if current is None or current.entry_of(hotkey) is None:
        is_ready = hotkey in view.ready
        return {
            **answer,
            "reason": "round-forming" if is_ready else "not-ready",
            "owner": view.owner if is_ready else hotkey,
        }
    if current.phase is Phase.COMMITTING and hotkey not in current.commitments:
        return {**answer, "reason": "commitment-due", "owner": hotkey}
    return {**answer, "reason": current.reason, "owner": view.owner}
