"""Follows the ledger: long-polls the orchestrator, checks every link, folds, and wakes whoever waits for a change.

Not here: what the entries mean (``subnet.swarm.ledger``).
Invariants: an entry is folded once and in order; a ledger that forks from what was seen is refused with
``LedgerCorrupt`` and never folded; an orchestrator that is away is asked again for ever, training goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from subnet.errors import LedgerCorrupt, Missing, Refused, Unavailable
from subnet.log import Event, event
from subnet.net.base import PeerAddress, Peers
from subnet.records import LedgerEntry, parse_lines
from subnet.swarm.ledger import fold
from subnet.swarm.view import RunView
from subnet.types import Hotkey

POLL_S = 10.0  # how long the orchestrator may hold a poll open
SLACK_S = 5.0  # what a poll may take beyond that
PAUSE_S = 0.5  # before an orchestrator that is away is asked again


class LedgerFollower:
    """One process's copy of the ledger and its fold."""

    def __init__(self, peers: Peers, orchestrator: PeerAddress) -> None:
        self.view = RunView()
        self.entries: list[LedgerEntry] = []
        self._peers = peers
        self._orchestrator = orchestrator
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Follow until cancelled; raises ``LedgerCorrupt`` on a fork."""
        while True:
            try:
                await self.poll(POLL_S)
            except (Unavailable, Refused) as error:
                event(Event.REQUEST_FAILED, level=logging.DEBUG, peer="orchestrator", code=error.code)
                await asyncio.sleep(PAUSE_S)

    async def poll(self, wait_s: float) -> int:
        """Fetch what is new, waiting up to ``wait_s`` seconds for it; returns the number of new entries."""
        after = self.entries[-1].seq if self.entries else -1
        query = {"after": str(after), "wait_s": str(wait_s)}
        body = await self._peers.request(
            self._orchestrator, "GET", "/v1/ledger", query=query, timeout_s=wait_s + SLACK_S
        )
        new = parse_lines(body)
        if new:
            self.view = fold(new, self.view)  # checks every link
            self.entries.extend(new)
            self._changed.set()
            self._changed = asyncio.Event()
        return len(new)

    async def until(self, condition: Callable[[RunView], bool], timeout_s: float | None = None) -> bool:
        """Wait until ``condition`` holds for the view; false when ``timeout_s`` passed first."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition(self.view):
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def changed_since(self, seq: int) -> None:
        """Wait until the ledger goes beyond entry ``seq``."""
        await self.until(lambda view: view.seq != seq)

    async def reaches(self, seq: int, timeout_s: float) -> bool:
        """Wait until entry ``seq`` is here."""
        return await self.until(lambda view: view.seq >= seq, timeout_s)

    def address_of(self, hotkey: Hotkey) -> PeerAddress:
        """Where a peer is reached now: a roster is frozen, but who restarts may register under another address.

        Raises ``Missing`` for a peer that never registered.
        """
        peer = self.view.peers.get(hotkey)
        if peer is None:
            raise Missing("That peer never registered with this run.")
        return PeerAddress(hotkey, peer.registration.url)

    def prefix(self, seq: int, head: str) -> list[LedgerEntry]:
        """The entries ``[0, seq]``; raises ``LedgerCorrupt`` when the last one's hash is not ``head``."""
        if not 0 <= seq < len(self.entries) or self.entries[seq].hash != head:
            raise LedgerCorrupt("The ledger here does not contain the head that the owner committed on chain.")
        return self.entries[: seq + 1]
