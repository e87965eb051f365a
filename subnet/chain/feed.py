"""Looks at the chain at a steady, cheap pace, for everything in one program that needs to know where it stands.

Not here: what is made of a look. Invariants: at most one look at a time and one per ``MIN_PAUSE_S``; a chain that is
away makes events and no looks; every subscriber sees every look, or is waiting for the next.
Source: public endpoints allow about one request per second (bittensor-v11.md, section 4.2).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable
from enum import Enum

from subnet.chain.base import Chain, ChainSnapshot
from subnet.errors import ChainError, ChainRefused, Unavailable
from subnet.log import Event, event

MIN_PAUSE_S, MAX_PAUSE_S = 1.0, 60.0
LOOKS_PER_TEMPO = 10
NO_SUBNET = "subnet_not_exists"  # the SDK's class of it
GONE_LOOKS = 2  # the newest block may be taken back


class Pace(Enum):
    """How fresh a program needs the chain."""

    TEMPO = "a few looks per epoch"
    BLOCK = "about every block"


class ChainFeed:
    """The newest look at one subnet, and a way to wait for the next."""

    def __init__(self, chain: Chain, first: ChainSnapshot, pace: Pace = Pace.TEMPO) -> None:
        """``first``: seen just now."""
        self.chain = chain
        self.newest = first
        self._pace = pace
        self._seen_s = self._now_s()
        self._block_s: float | None = None
        self._anchor = (first.block, self._seen_s)  # when a block was first seen
        self._looked = asyncio.Event()  # set, and replaced, at every look

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()

    @property
    def pause_s(self) -> float:
        """Until the next look; as short as allowed while the length of a block is not known."""
        if self._block_s is None:
            return MIN_PAUSE_S
        blocks = self.newest.tempo_blocks / LOOKS_PER_TEMPO if self._pace is Pace.TEMPO else 1.0
        return min(max(blocks * self._block_s, MIN_PAUSE_S), MAX_PAUSE_S)

    @property
    def tempo_s(self) -> float | None:
        """Length of an epoch, as far as it is known."""
        return None if self._block_s is None else self._block_s * self.newest.tempo_blocks

    def expected_block(self) -> int:
        """Where the chain should stand now, rounded up: a chain that is away for us goes on for others."""
        if self._block_s is None:
            return self.newest.block
        return self.newest.block + math.ceil((self._now_s() - self._seen_s) / self._block_s)

    async def run(self, on_look: Callable[[ChainSnapshot], None]) -> None:
        """Look until cancelled, until ``on_look`` raises, or until the subnet itself is gone: ``ChainRefused``."""
        num_gone = 0
        while True:
            await asyncio.sleep(self.pause_s)
            try:
                snapshot = await self.chain.snapshot()
            except (ChainError, Unavailable) as error:
                event(Event.CHAIN_FAILED, level=logging.WARNING, code=error.code, reason=str(error))
                num_gone += isinstance(error, ChainRefused) and error.kind == NO_SUBNET
                if num_gone >= GONE_LOOKS:
                    raise
                continue
            num_gone = 0
            self._take(snapshot)
            on_look(snapshot)

    def _take(self, snapshot: ChainSnapshot) -> None:
        now_s, (block, at_s) = self._now_s(), self._anchor
        if snapshot.block > block:
            self._block_s = (now_s - at_s) / (snapshot.block - block)
            self._anchor = (snapshot.block, now_s)
        self.newest, self._seen_s = snapshot, now_s
        self._looked.set()
        self._looked = asyncio.Event()

    async def looks(self) -> AsyncIterator[ChainSnapshot]:
        """The newest look, then each that comes; those that come while the reader is busy are skipped."""
        while True:
            looked = self._looked
            yield self.newest
            await looked.wait()
