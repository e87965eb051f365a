"""Which records of peers deserve a place in the ledger. Pure checks, one per kind.

Not here: signatures (checked before), appending (``service``).
Invariants: a check changes nothing; the same record again is answered as the first time; another one in its place is
``OutOfTurn``; a record about a round, stage or shard that its author does not serve is refused.
"""

from __future__ import annotations

import math

from subnet.config import RunConfig
from subnet.errors import Forbidden, Malformed, OutOfTurn
from subnet.model.flops import largest_shard_bytes
from subnet.net.base import DEFAULT_CAP_BYTES, Caps, check_url, relayed_hotkey
from subnet.records import (
    Commitment,
    LossReport,
    PeerRegistered,
    Record,
    ReplicaReady,
    ShardPublished,
    Verdict,
)
from subnet.swarm.roster import shard_owners
from subnet.swarm.view import RoundView, RunView
from subnet.types import Hotkey, Phase, Role

# Tokens per second that a miner may claim: capacity steers routing, so a claim out of this world is refused.
MAX_TOKENS_PER_S = 1e9
# FLOP/s that a miner may claim as its peak: beyond any machine of today, so that no claim hides a run's MFU for good.
MAX_PEAK_FLOPS_PER_S = 1e17


def request_caps(run: RunConfig) -> Caps:
    """Largest bodies that the orchestrator takes, by path."""
    return {"/v1/blobs": largest_shard_bytes(run)}


def relayed_body_bytes(run: RunConfig) -> int:
    """Largest body that a relay carries: fp32 values of one microbatch bound what any boundary sends, with token ids,
    scales and envelope. Miners have the exact cap of each path."""
    positions = run.data.sequences * (run.model.seq_len + 1)
    return DEFAULT_CAP_BYTES + positions * (4 * run.model.width + 16)


def check(view: RunView, sender: Hotkey, record: Record) -> bool:
    """Whether ``record`` is to be appended; false when it stands in the ledger already. Raises ``Refused``."""
    match record:
        case PeerRegistered():
            return _registration(view, sender, record)
        case ReplicaReady():
            return _ready(view, sender, record)
        case LossReport():
            return _report(view, sender, record)
        case Commitment():
            return _commitment(view, sender, record)
        case ShardPublished():
            return _shard(view, sender, record)
        case Verdict():
            return _verdict(view, sender, record)
        case _:
            raise Malformed("Peers do not submit records of this kind.")


def _registration(view: RunView, sender: Hotkey, record: PeerRegistered) -> bool:
    if record.run_hash != view.run_hash:
        raise Forbidden(f"This orchestrator's run is {view.run_hash[:12]}, yours is {record.run_hash[:12]}.")
    expected = view.run.data.corpus_hash
    if record.corpus_hash != expected:
        raise Forbidden(
            f"The run's corpus has the hash {expected[:12]}, yours {record.corpus_hash[:12]}.",
            remedy="Use the same Python version as the run's owner, or the same files.",
        )
    if record.role is Role.MINER and record.device.partition(":")[0] != view.run.device:
        raise Forbidden(f"This run computes on {view.run.device}, and audits could not repeat another device's work.")
    if record.role is Role.ORCHESTRATOR:
        raise Forbidden("A run has one orchestrator, its owner.")
    if record.role is Role.MINER and not 0 < record.tokens_per_s <= MAX_TOKENS_PER_S:
        raise Malformed("A miner registers with its measured tokens per second.")
    if record.role is Role.MINER and not 0 < record.peak_flops_per_s <= MAX_PEAK_FLOPS_PER_S:
        raise Malformed("A miner registers with its measured peak in FLOP/s.")
    if relayed_hotkey(check_url(record.url)) not in (None, sender):
        raise Malformed("That address behind a relay is another peer's.")
    known = view.peers.get(sender)
    if known is not None and known.registration.role is not record.role:
        raise Forbidden("This hotkey is registered in another role.", remedy="Use another hotkey for this program.")
    return True


def _current(view: RunView, sender: Hotkey, number: int) -> RoundView:
    current = view.round
    if current is None or current.round != number:
        raise OutOfTurn(f"Round {number} is not open.")
    if current.entry_of(sender) is None:
        raise Forbidden("The sender is not on this round's roster.")
    return current


def _ready(view: RunView, sender: Hotkey, record: ReplicaReady) -> bool:
    peer = view.peers.get(sender)
    if peer is None or peer.stage is None or peer.stage != record.stage:
        raise Forbidden("The sender is not registered for that stage.")
    if view.round is not None or record.round != view.last_round:
        raise OutOfTurn(f"Replicas prove their state after round {view.last_round}, between rounds.")
    return view.ready.get(sender) != record


def _report(view: RunView, sender: Hotkey, record: LossReport) -> bool:
    current = _current(view, sender, record.round)
    entry = current.entry_of(sender)
    assert entry is not None
    if entry.stage != view.run.stages.num_stages - 1:
        raise Forbidden("Only last-stage replicas report losses.")
    ids = set(current.document.microbatches())
    if not record.items or any(item.microbatch not in ids or not math.isfinite(item.loss) for item in record.items):
        raise Malformed("A loss report names microbatches of its round and finite losses.")
    return any(current.losses.get(item.microbatch) != item for item in record.items)


def _commitment(view: RunView, sender: Hotkey, record: Commitment) -> bool:
    current = _current(view, sender, record.round)
    entry = current.entry_of(sender)
    assert entry is not None
    known = current.commitments.get(sender)
    if known is not None:
        if known == record:
            return False
        raise OutOfTurn("This replica has committed to something else in this round.")
    if current.phase is not Phase.COMMITTING:
        raise OutOfTurn(f"The round is {current.phase}; commitments are taken while it is committing.")
    if record.stage != entry.stage or record.document != current.document.record_digest():
        raise Malformed("The commitment is for another stage or round document.")
    num_shards = view.run.outer.num_shards
    if len(record.shard_digests) != num_shards or len(record.shard_norms) != num_shards:
        raise Malformed(f"A commitment has {num_shards} shards.")
    ids, applied = set(current.document.microbatches()), record.applied
    if list(applied) != sorted(set(applied)) or not set(applied) <= ids:
        raise Malformed("Applied microbatches are ascending, distinct and of the round.")
    if record.num_tokens != len(applied) * view.run.microbatch_tokens:
        raise Malformed("The commitment's tokens are not those of its microbatches.")
    edges = [0, *(part.end_entry for part in record.segments)]
    if [part.first_entry for part in record.segments] != edges[:-1] or edges[-1] != record.num_entries:
        raise Malformed("The commitment's segments do not cover its journal.")
    return True


def _shard(view: RunView, sender: Hotkey, record: ShardPublished) -> bool:
    current = _current(view, sender, record.round)
    if sender not in shard_owners(view, record.round, record.stage, record.shard):
        raise Forbidden("The sender does not own that shard.")
    known = current.published.get((record.stage, record.shard), {}).get(sender)
    if known is not None and known != record:
        raise OutOfTurn("This owner has published another result for the shard.")
    if known is None and (record.stage, record.shard) in current.finals:
        raise OutOfTurn("The shard is final already.")
    return known is None


def _verdict(view: RunView, sender: Hotkey, record: Verdict) -> bool:
    peer = view.peers.get(sender)
    if peer is None or peer.registration.role is not Role.VALIDATOR:
        raise Forbidden("Only registered validators publish verdicts.")
    audited = view.round_view(record.round)
    if audited is None or audited.set_hash is None or record.hotkey not in audited.members:
        raise OutOfTurn("There is no commitment of that replica in that round.")
    for known in view.verdicts:
        same = (known.verdict.round, known.verdict.hotkey, known.verdict.segment)
        if known.author == sender and same == (record.round, record.hotkey, record.segment):
            return False
    return True
