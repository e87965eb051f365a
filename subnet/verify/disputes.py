"""Disputed shards: two owners published different results; recompute from the committed inputs and name who lied.

Not here: what happens to the shard (the old one stays, ``subnet.swarm.rounds``).
Invariants: only contributions that match their commitments are used; when the inputs cannot be had nobody is named.
Source: design.md section 4 ("Different: anyone recomputes from the committed inputs").
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from subnet.config import RunConfig
from subnet.errors import Refused, Unavailable
from subnet.net.base import PeerAddress, Peers
from subnet.net.blobs import shard_key
from subnet.records import ShardFinal
from subnet.swarm.view import DISPUTED, RoundView, RunView
from subnet.train import merge
from subnet.train.checkpoint import decode_state
from subnet.types import Digest, Hotkey, StageId

Vector = npt.NDArray[np.float32]

WRONG_SHARD = "wrong-shard"


def dispute_segment(shard: int) -> int:
    """The verdict's segment number for a shard: below zero, because it is no segment of a journal."""
    return -1 - shard


@dataclass(frozen=True)
class Disputes:
    """Recomputes disputed shards for one validator."""

    run: RunConfig
    peers: Peers
    orchestrator: PeerAddress
    address_of: Callable[[Hotkey], PeerAddress]

    async def liars(self, ledger: RunView, view: RoundView) -> list[tuple[Hotkey, int]]:
        """(owner, shard) of every published result of a closed round that is not what its inputs give."""
        found: list[tuple[Hotkey, int]] = []
        for (stage, shard), final in sorted(view.finals.items()):
            if final.basis != DISPUTED:
                continue
            try:
                right = await self._recompute(ledger, view, stage, shard)
            except (Refused, Unavailable):
                continue
            if right is not None:
                published = view.published[stage, shard]
                found += [(owner, shard) for owner, item in published.items() if item.params_digest != right]
        return found

    async def _recompute(self, ledger: RunView, view: RoundView, stage: StageId, shard: int) -> Digest | None:
        """Digest of the shard's parameters as an honest owner would have published them."""
        last = ledger.finals_of(stage).get(shard)
        if last is not None and last.round >= view.round:
            return None  # later rounds have moved on, and the momentum of that time is gone
        members = view.stage_members(stage)
        old = await self._start(view, members, stage, shard)
        if old is None:
            return None
        contributions = await asyncio.gather(*(self._contribution(view, hotkey, shard, len(old)) for hotkey in members))
        if None in contributions:
            return None
        momentum = await self._momentum(ledger, last, shard, len(old))
        result, _ = merge.merge_shard(old, momentum, [item for item in contributions if item], self.run.outer)
        return merge.shard_digest(result)

    async def _start(self, view: RoundView, members: tuple[Hotkey, ...], stage: StageId, shard: int) -> Vector | None:
        """The shard before the round, from any member whose start state is the agreed one."""
        for hotkey in members:
            query = {"round": str(view.round), "segment": "0"}
            try:
                body = await self._get(self.address_of(hotkey), "/v1/state", query)
                state, _ = decode_state(body)
            except (Refused, Unavailable):
                continue
            if state.params_root == view.document.params_roots[stage]:
                return state.params[merge.shard_slices(len(state.params), self.run.outer.num_shards)[shard]]
        return None

    async def _contribution(self, view: RoundView, hotkey: Hotkey, shard: int, size: int) -> merge.Contribution | None:
        commitment = view.commitments[hotkey]
        query = {"round": str(view.round), "shard": str(shard)}
        body = await self._get(self.address_of(hotkey), "/v1/shards", query)
        values = np.frombuffer(body, dtype="<f4").astype(np.float32) if len(body) == 4 * size else None
        if values is None or merge.shard_digest(values) != commitment.shard_digests[shard]:
            return None
        return merge.Contribution(hotkey, values, commitment.num_tokens, commitment.shard_norms[shard])

    async def _momentum(self, ledger: RunView, last: ShardFinal | None, shard: int, size: int) -> Vector:
        if last is None:
            return np.zeros(size, dtype=np.float32)
        key = shard_key(ledger.run_hash, last.round, last.stage, last.owners[0], shard, "momentum")
        body = await self._get(self.orchestrator, f"/v1/blobs/{key}", {})
        return np.frombuffer(body, dtype="<f4").astype(np.float32)

    async def _get(self, address: PeerAddress, path: str, query: dict[str, str]) -> bytes:
        timeout_s = self.run.custody.request_timeout_s
        return await self.peers.request(address, "GET", path, query=query or None, timeout_s=timeout_s)
