"""COMMITTING and MERGING at one replica: publish a commitment, reduce the shards it owns, load what became final.

The arithmetic is ``subnet.train.merge``; who owns what and what is final stands in the ledger (design.md section 4).
Invariants: a shard is taken from its ledger event only; every contribution is checked against its commitment before it
is used; an owner that cannot get one contribution publishes nothing rather than something else.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from subnet.errors import Malformed, Missing, Refused, Unavailable
from subnet.log import Event, event
from subnet.net.blobs import shard_key
from subnet.records import Commitment, RoundDocument, ShardFinal, ShardPublished
from subnet.replica.site import Site
from subnet.swarm.roster import draw_owners
from subnet.swarm.view import RoundView
from subnet.train import merge
from subnet.types import Digest, Hotkey, StageId

Vector = npt.NDArray[np.float32]

FETCH_PAUSE_S = 0.2  # before a member that does not answer yet is asked again


class Shard(NamedTuple):
    """Parameters and outer momentum of one shard."""

    params: Vector
    momentum: Vector


@dataclass
class MergeMemory:
    """What a replica keeps from round to round: momentum and results of the shards that it reduced."""

    momentum: dict[tuple[int, Digest], Vector]
    results: dict[int, Shard]


class Merger:
    """One stage's merges at one replica."""

    def __init__(self, site: Site, stage: StageId, num_parameters: int) -> None:
        self._site = site
        self._stage = stage
        self._slices = merge.shard_slices(num_parameters, site.run.outer.num_shards)
        self._memory = MergeMemory({}, {})

    async def reduce_owned(self, round_view: RoundView, start: Vector, last: dict[int, ShardFinal]) -> None:
        """Reduce and publish every shard that this replica owns; a shard that cannot be reduced is left out.

        ``start``: the stage's flat parameters before the round. ``last``: the last final event of each shard, which
        names its outer momentum; a shard that never was final has zero momentum.
        """
        assert round_view.set_hash is not None
        self._memory.results.clear()
        members = round_view.stage_members(self._stage)
        owned = [
            shard
            for shard in range(len(self._slices))
            if self._site.hotkey in draw_owners(round_view.set_hash, self._stage, shard, members)
        ]
        await asyncio.gather(*(self._reduce(round_view, members, shard, start, last.get(shard)) for shard in owned))

    async def _reduce(
        self, view: RoundView, members: tuple[Hotkey, ...], shard: int, start: Vector, last: ShardFinal | None
    ) -> None:
        document = view.document
        try:
            momentum = await self._momentum(document, shard, last)
            contributions = await asyncio.gather(
                *(self._contribution(document, view.commitments[hotkey], hotkey, shard) for hotkey in members)
            )
        except (Refused, Unavailable) as error:
            event(Event.SHARD_DISPUTED, round=document.round, shard=shard, code=error.code)
            return
        outer, old = self._site.run.outer, start[self._slices[shard]]

        def work() -> Shard:
            return Shard(*merge.merge_shard(old, momentum, contributions, outer))

        result = self.reduced(shard, await self._site.compute(work))
        self._memory.results[shard] = result
        published = ShardPublished(
            round=document.round,
            stage=self._stage,
            shard=shard,
            params_digest=merge.shard_digest(result.params),
            momentum_digest=merge.shard_digest(result.momentum),
        )
        try:
            await self._publish(published, result)
        except Refused as error:  # the shard became final without this result, or the round has ended
            event(Event.REQUEST_REFUSED, round=document.round, shard=shard, code=error.code)

    def reduced(self, shard: int, result: Shard) -> Shard:
        """The result that is published; honest here."""
        del shard
        return result

    async def _momentum(self, document: RoundDocument, shard: int, last: ShardFinal | None) -> Vector:
        size = self._slices[shard].stop - self._slices[shard].start
        if last is None:
            return np.zeros(size, dtype=np.float32)
        kept = self._memory.momentum.get((shard, last.momentum_digest))
        if kept is not None:
            return kept
        return await self._fetch(document.run_hash, last, "momentum", last.momentum_digest)

    async def _contribution(
        self, document: RoundDocument, commitment: Commitment, hotkey: Hotkey, shard: int
    ) -> merge.Contribution:
        query = {"round": str(document.round), "shard": str(shard)}
        deadline_s = self._site.clock.now_s() + self._site.run.round.merging_timeout_s
        body: bytes | None = None
        while body is None:
            try:
                body = await self._site.peers.request(
                    self._site.address_of(hotkey), "GET", "/v1/shards", query=query, timeout_s=self._timeout_s
                )
            except (Unavailable, Missing):
                if self._site.clock.now_s() > deadline_s:
                    raise
                await asyncio.sleep(FETCH_PAUSE_S)
        values = _vector(body, self._slices[shard])
        if merge.shard_digest(values) != commitment.shard_digests[shard]:
            raise Malformed("A pseudo-gradient shard differs from its commitment.")
        if not merge.norm_agrees(values, commitment.shard_norms[shard]):
            raise Malformed("A pseudo-gradient shard's norm differs from the declared one.")
        return merge.Contribution(hotkey, values, commitment.num_tokens, commitment.shard_norms[shard])

    async def _publish(self, published: ShardPublished, result: Shard) -> None:
        """Bring a result to the orchestrator: the values first, then their digests; raises ``Refused``."""
        place = {"round": str(published.round), "stage": str(self._stage), "shard": str(published.shard)}
        for part, values in (("params", result.params), ("momentum", result.momentum)):
            await self._insist("PUT", "/v1/blobs", merge.little_endian(values), {**place, "part": part})
        await self._insist("POST", "/v1/shard", published.encoded(), None)

    async def _insist(self, method: str, path: str, body: bytes, query: dict[str, str] | None) -> None:
        """Ask until the orchestrator answers: one that is away comes back, and what it took stands."""
        while True:
            try:
                await self._site.peers.request(
                    self._site.orchestrator, method, path, body, query=query, timeout_s=self._timeout_s
                )
            except Unavailable:
                await asyncio.sleep(FETCH_PAUSE_S)
            else:
                return

    @property
    def _timeout_s(self) -> float:
        return self._site.run.custody.request_timeout_s

    async def load(self, run_hash: Digest, base: Vector, finals: dict[int, ShardFinal]) -> Vector:
        """Flat parameters after a merge: ``base`` with the shards of ``finals`` replaced; others stay, for everyone.

        Raises ``Missing`` when no owner's copy of a shard has the final digest.
        """
        merged = base.copy()
        for shard, final in sorted(finals.items()):
            own = self._memory.results.get(shard)
            if own is not None and merge.shard_digest(own.params) == final.params_digest:
                merged[self._slices[shard]] = own.params
                self._memory.momentum[shard, final.momentum_digest] = own.momentum
            elif merge.shard_digest(base[self._slices[shard]]) != final.params_digest:
                merged[self._slices[shard]] = await self._fetch(run_hash, final, "params", final.params_digest)
        wanted = {(shard, final.momentum_digest) for shard, final in finals.items()}
        self._memory.momentum = {key: kept for key, kept in self._memory.momentum.items() if key in wanted}
        return merged

    async def _fetch(self, run_hash: Digest, final: ShardFinal, part: str, digest: Digest) -> Vector:
        for owner in final.owners:
            key = shard_key(run_hash, final.round, self._stage, owner, final.shard, part)
            try:
                body = await self._site.peers.request(
                    self._site.orchestrator, "GET", f"/v1/blobs/{key}", timeout_s=self._timeout_s
                )
            except Missing:
                continue
            values = _vector(body, self._slices[final.shard])
            if merge.shard_digest(values) == digest:
                return values
        raise Missing(f"No copy of shard {final.shard} of round {final.round} has the digest that the ledger names.")


def _vector(body: bytes, place: slice) -> Vector:
    """A shard from raw little-endian fp32 bytes; raises ``Malformed`` on another size."""
    if len(body) != 4 * (place.stop - place.start):
        raise Malformed("A shard has another size than its slice.")
    return np.frombuffer(body, dtype="<f4").astype(np.float32, copy=False)
