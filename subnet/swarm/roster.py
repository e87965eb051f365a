"""Who is in: liveness, stage assignment, the roster of a round, the owners of a shard.

Not here: when a round opens (``rounds``), who gets which microbatch (``router``).
Invariants: pure; a peer keeps its stage for the whole run; a roster holds only replicas that proved the agreed
parameters' root of their stage and whom no confirmed audit bars; rosters are sorted by (stage, hotkey).
Source: design.md sections 4 and 5.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from subnet.config import RunConfig
from subnet.hashing import EMPTY_ROOT, draw
from subnet.records import RosterEntry
from subnet.swarm.view import RunView
from subnet.types import Digest, Hotkey, Outcome, PeerState, Phase, Role, RoundId, StageId

# design.md section 7: another validator re-verifies before anybody is punished.
CONFIRMATIONS = 2
# Status intervals allowed for the trip of a heartbeat on top of the missed ones.
SLACK_INTERVALS = 1.0


@dataclass(frozen=True)
class LiveReport:
    """The last heartbeat of a peer; ``heard_s`` is the instant of the last signed request of any kind."""

    heard_s: float
    round: int = -1
    phase: Phase = Phase.FORMING
    is_drained: bool = False
    held: int = 0
    applied: int = 0


def liveness_window_s(run: RunConfig) -> float:
    """Silence after which a peer counts as lost."""
    return (run.custody.missed_statuses + SLACK_INTERVALS) * run.custody.status_interval_s


def alive(live: Mapping[Hotkey, LiveReport], run: RunConfig, now_s: float) -> frozenset[Hotkey]:
    """Peers heard within the liveness window."""
    window_s = liveness_window_s(run)
    return frozenset(hotkey for hotkey, report in live.items() if now_s - report.heard_s <= window_s)


def is_miner(view: RunView, hotkey: Hotkey) -> bool:
    """Whether ``hotkey`` registered as a miner and has not said good-bye."""
    peer = view.peers.get(hotkey)
    return peer is not None and peer.registration.role is Role.MINER and peer.state is not PeerState.RETIRED


def assign_stage(view: RunView, run: RunConfig) -> StageId:
    """The stage for one more miner: least capacity present, then fewest replicas, then the lowest."""
    stages = [StageId(stage) for stage in range(run.stages.num_stages)]
    capacity, num = dict.fromkeys(stages, 0.0), Counter[StageId]()
    for hotkey, peer in view.peers.items():
        if peer.stage in capacity and is_miner(view, hotkey) and peer.state is not PeerState.LOST:
            capacity[peer.stage] += peer.registration.tokens_per_s
            num[peer.stage] += 1
    return min(stages, key=lambda stage: (capacity[stage], num[stage], stage))


def agreed_root(view: RunView, stage: StageId) -> Digest | None:
    """The parameters' root that replicas of ``stage`` must hold now.

    Where the ledger does not fix it (before the first merge of every shard) it is the one that most replicas declared,
    of equals the one declared first; None without any.
    """
    if view.params_roots and view.params_roots[stage] != EMPTY_ROOT:
        return view.params_roots[stage]
    votes: Counter[Digest] = Counter()
    for ready in view.ready.values():  # in the order of the ledger, and a Counter keeps it
        if ready.stage == stage:
            votes[ready.params_root] += 1
    return max(votes, key=lambda root: votes[root]) if votes else None


def is_ready(view: RunView, hotkey: Hotkey) -> bool:
    """Whether ``hotkey`` proved the agreed parameters after the round closed last."""
    ready, peer = view.ready.get(hotkey), view.peers.get(hotkey)
    if ready is None or peer is None or peer.stage is None:
        return False
    if ready.stage != peer.stage or ready.round != view.last_round:
        return False
    return ready.params_root == agreed_root(view, ready.stage)


def is_barred(view: RunView, hotkey: Hotkey) -> bool:
    """Whether a failed audit of ``hotkey`` in the pay window was confirmed by a second validator (if there is one)."""
    num_validators = sum(peer.registration.role is Role.VALIDATOR for peer in view.peers.values())
    since = view.last_round - view.run.pay.window_rounds
    authors: dict[tuple[RoundId, int], set[Hotkey]] = {}
    for item in view.verdicts:
        verdict = item.verdict
        if verdict.hotkey == hotkey and verdict.outcome is Outcome.FAILED and verdict.round > since:
            authors.setdefault((verdict.round, verdict.segment), set()).add(item.author)
    return any(len(found) >= min(CONFIRMATIONS, num_validators) for found in authors.values())


def make_roster(view: RunView, live: Collection[Hotkey]) -> tuple[RosterEntry, ...]:
    """Ready miners among ``live`` that are not barred, sorted by (stage, hotkey); capacities as registered."""
    entries = []
    for hotkey in sorted(live):
        if is_miner(view, hotkey) and is_ready(view, hotkey) and not is_barred(view, hotkey):
            peer = view.peers[hotkey]
            assert peer.stage is not None
            registration = peer.registration
            entries.append(
                RosterEntry(hotkey=hotkey, url=registration.url, stage=peer.stage, capacity=registration.tokens_per_s)
            )
    return tuple(sorted(entries, key=lambda entry: (entry.stage, entry.hotkey)))


def thin_stages(view: RunView, roster: Sequence[RosterEntry], run: RunConfig, at_least: int) -> tuple[StageId, ...]:
    """Stages with fewer than ``at_least`` replicas, not counting on barred ones; one is always needed."""
    num = Counter(entry.stage for entry in roster)
    barred = Counter(peer.stage for hotkey, peer in view.peers.items() if is_barred(view, hotkey))
    stages = [StageId(stage) for stage in range(run.stages.num_stages)]
    return tuple(stage for stage in stages if num[stage] < max(at_least - barred[stage], 1))


def awaited(view: RunView, live: Collection[Hotkey]) -> frozenset[Hotkey]:
    """Live miners that FORMING still waits for: those of the last roster; before the first round, all of them."""
    last = view.rounds.get(view.last_round)
    before = {entry.hotkey for entry in last.document.roster} if last is not None else set(view.peers)
    return frozenset(
        hotkey for hotkey in live if hotkey in before and is_miner(view, hotkey) and not is_ready(view, hotkey)
    )


def forming_deadline_s(view: RunView, run: RunConfig, roster: Sequence[RosterEntry]) -> float | None:
    """When FORMING stops waiting for more replicas: counted from when every stage had one; None until then."""
    if thin_stages(view, roster, run, 1):
        return None
    first_s: dict[StageId, float] = {}
    for entry in roster:
        ready_s = view.ready_s[entry.hotkey]
        first_s[entry.stage] = min(first_s.get(entry.stage, ready_s), ready_s)
    return max(view.forming_since_s, *first_s.values()) + run.round.forming_timeout_s


def is_formed(
    view: RunView, run: RunConfig, roster: Sequence[RosterEntry], live: Collection[Hotkey], now_s: float
) -> bool:
    """Whether the next round can open: everybody awaited is ready and no stage is thin, or the deadline has come."""
    deadline_s = forming_deadline_s(view, run, roster)
    if deadline_s is None:
        return False
    if now_s >= deadline_s:
        return True
    return not thin_stages(view, roster, run, run.round.min_replicas) and not awaited(view, live)


def draw_owners(seed: Digest, stage: StageId, shard: int, members: Sequence[Hotkey]) -> tuple[Hotkey, ...]:
    """Who reduces a shard: two members of the stage drawn by ``seed``, one if it has one; order of members is free."""
    return tuple(sorted(members, key=lambda hotkey: (draw(seed, "owner", stage, shard, hotkey), hotkey))[:2])


def shard_owners(view: RunView, round_id: RoundId, stage: StageId, shard: int) -> tuple[Hotkey, ...]:
    """Owners of a shard in a round whose commitment set is closed; empty otherwise, and for a shard that is none."""
    found = view.round_view(round_id)
    if found is None or found.set_hash is None or not 0 <= shard < view.run.outer.num_shards:
        return ()
    return draw_owners(found.set_hash, stage, shard, found.stage_members(stage))
