"""A validator's audits: follow the ledger, draw challenges, fetch the evidence, replay, publish verdicts.

The shell around ``subnet.verify.challenge`` (whom) and ``subnet.verify.replay`` (what is true).
Invariants: audits may lag behind training and never hold it up; a miner that does not hand out what it committed to
fails as ``unavailable`` after the deadline, but not for a round that it need not keep any more (after an outage of the
chain, say): that audit is missed, said to be, and drawn again; another validator's failed verdict is re-verified before
it can punish.
Source: design.md, section 7.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

import torch

from subnet.config import RunConfig
from subnet.data.corpus import Corpus
from subnet.errors import Malformed, Missing, Refused, Unavailable
from subnet.hashing import sha256
from subnet.log import Event, event
from subnet.net.auth import verify_stamp
from subnet.net.base import PeerAddress, Peers
from subnet.net.follower import LedgerFollower
from subnet.records import Verdict
from subnet.swarm.view import RoundView
from subnet.train.checkpoint import decode_state
from subnet.train.device import CPU
from subnet.train.journal import JournalEntry, decode_frames
from subnet.types import Digest, Hotkey, Outcome, RoundId
from subnet.verify.challenge import Challenge, challenges
from subnet.verify.continuity import merged_optim_root
from subnet.verify.disputes import WRONG_SHARD, Disputes, dispute_segment
from subnet.verify.replay import AuditResult, Claim, Evidence, audit_segment, fresh_optim_root
from subnet.verify.screen import suspects

ATTEMPTS = 5  # fetches of a segment before its miner fails as unavailable
UNAVAILABLE = "unavailable"
PAUSE_S = 2.0  # between them: longer than a miner needs to restart, all together

BeaconSource = Callable[[int], Awaitable[str]]  # block number -> its hash; waits until the block is final


@dataclass(frozen=True)
class AuditSite:
    """A validator's surroundings."""

    run: RunConfig
    hotkey: Hotkey
    orchestrator: PeerAddress
    peers: Peers
    corpus: Corpus
    executor: Executor  # one thread
    beacon: BeaconSource
    device: torch.device = CPU  # of the run's kind
    memory_bytes: float = math.inf  # of the device


class Auditor:
    """One validator in one run."""

    def __init__(self, site: AuditSite, follower: LedgerFollower) -> None:
        self._site = site
        self._follower = follower
        self._disputes = Disputes(site.run, site.peers, site.orchestrator, follower.address_of)
        self._challenged: dict[Hotkey, RoundId] = {}
        self._verified: set[tuple[RoundId, Hotkey, int]] = set()

    async def run(self) -> None:
        """Audit every round until the run stops, then finish what is due."""
        number = RoundId(0)
        while await self._next_set(number):
            view = self._follower.view.round_view(number)
            if view is not None and view.set_hash is not None and not self._is_done(number):
                await self._audit_round(view)
            await self._reverify()
            number = RoundId(number + 1)

    def _is_done(self, number: RoundId) -> bool:
        """Whether this validator, before a restart, published verdicts on a round that is over."""
        verdicts = self._follower.view.verdicts
        return any(item.author == self._site.hotkey and item.verdict.round == number for item in verdicts)

    async def _next_set(self, number: RoundId) -> bool:
        """Wait until the commitment set of round ``number`` is closed; false when the run stopped before."""

        def is_due() -> bool:
            view = self._follower.view
            round_view = view.round_view(number)
            return (round_view is not None and round_view.set_hash is not None) or view.last_round >= number

        while not is_due():
            await self._follower.until(lambda view: is_due() or view.stopped is not None or self._has_doubts())
            if is_due():
                break
            await self._reverify()
            if self._follower.view.stopped is not None:
                return False
        return True

    async def _audit_round(self, view: RoundView) -> None:
        beacon = await self._beacon(view)
        members = [(hotkey, len(view.commitments[hotkey].segments)) for hotkey in view.members]
        drawn = challenges(
            beacon,
            self._site.hotkey,
            view.round,
            members,
            self._site.run.audit.window_rounds,
            self._last_challenged(view.round),
            suspects(view),
        )
        # Together, so that a miner that does not answer delays nobody else's audit.
        done = await asyncio.gather(*(self._audit(view, challenge, beacon) for challenge in drawn))
        self._challenged |= {one.hotkey: view.round for one, is_done in zip(drawn, done, strict=True) if is_done}
        await self._audit_merge(view, beacon)

    def _last_challenged(self, before: RoundId) -> dict[Hotkey, RoundId]:
        """Round of the last challenge of every replica: remembered, or, after a restart, read from own verdicts."""
        last: dict[Hotkey, RoundId] = {}
        for item in self._follower.view.verdicts:
            verdict = item.verdict
            if item.author == self._site.hotkey and verdict.round < before:
                last[verdict.hotkey] = max(last.get(verdict.hotkey, verdict.round), verdict.round)
        return last | self._challenged

    async def _audit_merge(self, view: RoundView, beacon: Digest) -> None:
        """Name the liar behind every disputed shard; one verdict per owner and round says enough."""
        await self._follower.until(lambda ledger: ledger.last_round >= view.round)
        named: set[Hotkey] = set()
        for owner, shard in await self._disputes.liars(self._follower.view, view):
            if owner not in named:
                named.add(owner)
                result = AuditResult(Outcome.FAILED, WRONG_SHARD, 0.0, 0, 0.0)
                await self._report(view, Challenge(owner, dispute_segment(shard)), beacon, result)

    async def _beacon(self, view: RoundView) -> Digest:
        """Randomness that nobody knew before the set closed: the hash of the block that the closing entry named."""
        assert view.set_hash is not None
        if view.beacon_block < 0:
            return view.set_hash
        return sha256((await self._site.beacon(view.beacon_block)).encode())

    # --- re-verification

    def _doubts(self) -> list[tuple[RoundId, Hotkey, int]]:
        """Failed verdicts of other validators that this one has not verified."""
        found = []
        for item in self._follower.view.verdicts:
            verdict = item.verdict
            key = (verdict.round, verdict.hotkey, verdict.segment)
            is_replayed = verdict.segment >= 0  # disputed shards are recomputed by every validator anyway
            if (
                is_replayed
                and verdict.outcome is Outcome.FAILED
                and item.author != self._site.hotkey
                and key not in self._verified
            ):
                found.append(key)
        return found

    def _has_doubts(self) -> bool:
        return bool(self._doubts())

    async def _reverify(self) -> None:
        for number, hotkey, segment in self._doubts():
            view = self._follower.view.round_view(number)
            self._verified.add((number, hotkey, segment))
            if view is not None and view.set_hash is not None and hotkey in view.members:
                await self._audit(view, Challenge(hotkey, segment), await self._beacon(view))

    # --- one audit

    async def _audit(self, view: RoundView, challenge: Challenge, beacon: Digest) -> bool:
        """Whether there is a verdict now."""
        self._verified.add((view.round, challenge.hotkey, challenge.segment))
        result = await self._result(view, challenge)
        if result is None:
            event(
                Event.AUDIT_MISSING,
                level=logging.WARNING,
                reason="past retention",
                round=view.round,
                hotkey=challenge.hotkey,
                segment=challenge.segment,
            )
            return False
        await self._report(view, challenge, beacon, result)
        return True

    def _is_past_retention(self, number: RoundId) -> bool:
        """Whether miners may have let go of a round (see ``Replica``)."""
        return self._follower.view.last_round >= number + self._site.run.round.retention_rounds

    async def _report(self, view: RoundView, challenge: Challenge, beacon: Digest, result: AuditResult) -> None:
        verdict = Verdict(
            round=view.round,
            hotkey=challenge.hotkey,
            segment=challenge.segment,
            outcome=result.outcome,
            reason=result.reason,
            error=result.error,
            num_microbatches=result.num_microbatches,
            cost_s=result.cost_s,
            beacon=beacon,
        )
        failed = result.outcome is Outcome.FAILED
        event(
            Event.AUDIT_FAILED if failed else Event.AUDIT_DONE,
            level=logging.WARNING if failed else logging.INFO,
            round=view.round,
            hotkey=challenge.hotkey,
            segment=challenge.segment,
            reason=result.reason,
            error=result.error,
        )
        await self._publish(verdict)

    async def _result(self, view: RoundView, challenge: Challenge) -> AuditResult | None:
        """None where nobody can tell any more."""
        evidence: Evidence | None = None
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(PAUSE_S)
            try:
                evidence = await self._fetch(view, challenge)
                break
            except (Unavailable, Missing):
                continue
            except Refused as error:
                return AuditResult(Outcome.FAILED, error.code, 0.0, 0, 0.0)
        if evidence is None and self._is_past_retention(view.round):
            return None
        if evidence is None:
            return AuditResult(Outcome.FAILED, UNAVAILABLE, 0.0, 0, 0.0)
        work = partial(
            audit_segment,
            self._site.run,
            self._site.corpus,
            self._claim(view, challenge, evidence),
            evidence,
            verify_stamp,
            self._site.device,
            self._site.memory_bytes,
        )
        return await asyncio.get_running_loop().run_in_executor(self._site.executor, work)

    def _claim(self, view: RoundView, challenge: Challenge, evidence: Evidence) -> Claim:
        hotkey = challenge.hotkey
        fresh = fresh_optim_root(self._site.run, len(evidence.start.params))
        merged = merged_optim_root(self._follower.view, view, hotkey)
        roots = {fresh} if merged is None else {fresh, merged}
        return Claim(hotkey, view.document, view.commitments[hotkey], challenge.segment, roots)

    async def _fetch(self, view: RoundView, challenge: Challenge) -> Evidence:
        """The journal, the segment's start state and the round's, from the miner that committed to them."""
        address = self._follower.address_of(challenge.hotkey)

        async def get(path: str, segment: int) -> bytes:
            query = {"round": str(view.round), "segment": str(segment)}
            timeout_s = self._site.run.custody.request_timeout_s
            return await self._site.peers.request(address, "GET", path, query=query, timeout_s=timeout_s)

        journal = await get("/v1/journal", challenge.segment)
        state, _ = decode_state(await get("/v1/state", challenge.segment))
        start = state if challenge.segment == 0 else decode_state(await get("/v1/state", 0))[0]
        head, _, frames = journal.partition(b"\n")
        try:
            plain = json.loads(head)
        except ValueError:
            raise Malformed("The journal's entries cannot be read.") from None
        if not isinstance(plain, list):
            raise Malformed("The journal's entries are not a list.")
        return Evidence([JournalEntry.from_plain(item) for item in plain], decode_frames(frames), state, start)

    async def _publish(self, verdict: Verdict) -> None:
        timeout_s = self._site.run.custody.request_timeout_s
        while True:
            try:
                await self._site.peers.request(
                    self._site.orchestrator, "POST", "/v1/verdict", verdict.encoded(), timeout_s=timeout_s
                )
            except Unavailable:
                await asyncio.sleep(PAUSE_S)
            except Refused as error:
                event(Event.REQUEST_REFUSED, level=logging.WARNING, path="/v1/verdict", code=error.code)
                return
            else:
                return
