"""What a miner hands out on request: pseudo-gradient shards to its stage, journals and states to validators.

Not here: the pipeline's own routes (``subnet.replica.pipeline``).
Invariants: nothing of a round is shown before its commitment set is closed; only peers that the ledger knows in the
right role are served; files are named by numbers, never by a stranger's text.
"""

from __future__ import annotations

import json

from subnet.config import RunConfig
from subnet.errors import Forbidden, Malformed, Missing
from subnet.hashing import canonical_json
from subnet.net.base import Caps, Request, Response
from subnet.net.follower import LedgerFollower
from subnet.records import RoundDocument
from subnet.replica.site import Site
from subnet.swarm.view import RoundView
from subnet.train.journal import Journal, encode_frames
from subnet.train.merge import little_endian, shard_slices
from subnet.train.recorder import JOURNAL, FinishedRound, state_path
from subnet.train.wire import WireFormat
from subnet.types import Role, RoundId, StageId

KEPT_ROUNDS = 2  # pseudo-gradients stay until the next merge is over


class Shelf:
    """One miner's published goods."""

    def __init__(self, site: Site, follower: LedgerFollower) -> None:
        self._site = site
        self._follower = follower
        self._rounds: dict[RoundId, FinishedRound] = {}

    def offer(self, document: RoundDocument, finished: FinishedRound) -> None:
        """Keep a finished round's pseudo-gradient for the owners of its shards."""
        self._rounds[document.round] = finished
        for old in [number for number in self._rounds if number <= document.round - KEPT_ROUNDS]:
            del self._rounds[old]

    async def handle(self, request: Request, phase: str) -> Response:
        """``GET /v1/shards``, ``/v1/journal``, ``/v1/state`` and ``/v1/me``."""
        if request.method != "GET":
            raise Missing("There is no such route here.")
        match request.path:
            case "/v1/shards":
                return self._shard(request)
            case "/v1/journal":
                return await self._journal(request)
            case "/v1/state":
                return await self._state(request)
            case "/v1/me":
                return Response(200, json.dumps({"hotkey": self._site.hotkey, "phase": phase}).encode())
            case _:
                raise Missing("There is no such route here.")

    def _shard(self, request: Request) -> Response:
        number, shard = RoundId(_number(request, "round")), _number(request, "shard")
        self._closed_set(number)
        finished = self._rounds.get(number)
        if finished is None:
            raise Missing("That round's pseudo-gradient is not kept here.")
        slices = shard_slices(len(finished.pseudo_grad), self._site.run.outer.num_shards)
        if shard >= len(slices):
            raise Malformed("There is no shard of that number.")
        return Response(200, little_endian(finished.pseudo_grad[slices[shard]]))

    async def _journal(self, request: Request) -> Response:
        number, segment = self._audited(request)
        path = self._site.data_dir / "rounds" / str(number) / JOURNAL
        commitment = self._closed_set(number).commitments.get(self._site.hotkey)
        if not path.exists() or commitment is None or segment >= len(commitment.segments):
            raise Missing("That journal is not kept here.")
        part = commitment.segments[segment]

        def read() -> bytes:
            with Journal.open_read_only(path) as journal:
                entries = [frame.entry.plain() for frame in journal.frames()]
                head = canonical_json(entries) + b"\n"
                return head + encode_frames(journal.read(index) for index in range(part.first_entry, part.end_entry))

        return Response(200, await self._site.compute(read))

    async def _state(self, request: Request) -> Response:
        number, segment = self._audited(request)
        path = state_path(self._site.data_dir / "rounds" / str(number), segment)
        if not path.exists():
            raise Missing("That state is not kept here.")
        return Response(200, await self._site.compute(path.read_bytes))

    def _audited(self, request: Request) -> tuple[RoundId, int]:
        peer = self._follower.view.peers.get(request.sender)
        if peer is None or peer.registration.role is not Role.VALIDATOR:
            raise Forbidden("Only validators of this run may ask for that.")
        number = RoundId(_number(request, "round"))
        self._closed_set(number)
        return number, _number(request, "segment")

    def _closed_set(self, number: RoundId) -> RoundView:
        found = self._follower.view.round_view(number)
        if found is None or found.set_hash is None:
            raise Missing("That round's commitments are not closed yet.")
        return found


def _number(request: Request, name: str) -> int:
    text = request.query.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise Malformed(f"The query needs {name} as a number.")
    return int(text)


def request_caps(run: RunConfig) -> Caps:
    """Largest bodies that a miner takes, by path."""
    largest = max(WireFormat(run, StageId(stage)).max_bytes for stage in range(run.stages.num_stages))
    return {"/v1/forward": largest, "/v1/backward": largest}
