"""Rate and delay per link, for experiments: a token bucket, and ``Peers`` whose requests pass through it.

``Link`` is the model: pure, it is told the time and says when a message has arrived. ``ShapedPeers`` puts it around any
``Peers`` of the same process, so that a swarm under virtual time can have home links.
Not here: the kernel's own shaping between network namespaces (``scripts/bench_wan_net.py``); losses and crashes
(``subnet.net.memory``). A message is one piece here: no packets, no window that grows, no acknowledgements.
Invariants: messages of one link never overtake one another; over any interval a link lets through at most its burst and
rate times time; a request and its answer together meet the caller's deadline or end with ``DeadlineExceeded``.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass

from subnet.clock import Clock
from subnet.errors import DeadlineExceeded
from subnet.net.base import PeerAddress, Peers
from subnet.types import Hotkey

HEADER_BYTES = 600  # of a signed request: request line, four signature headers, lengths; an answer has about 150


@dataclass(frozen=True)
class LinkShape:
    """One peer's uplink. The default is no limit at all."""

    rate_bytes_per_s: float = math.inf
    delay_s: float = 0.0  # one way, after the last byte has left
    burst_bytes: float = 0.0  # what an idle link lets through at once

    def __post_init__(self) -> None:
        if not self.rate_bytes_per_s > 0 or self.delay_s < 0 or self.burst_bytes < 0:
            raise ValueError("A link needs a positive rate, and a delay and a burst that are not negative.")


class Link:
    """One uplink's queue. First come, first served."""

    def __init__(self, shape: LinkShape) -> None:
        self.shape = shape
        self._busy_until_s = -math.inf  # when all that was sent would have left without the burst

    def backlog_s(self, now_s: float) -> float:
        """How long a message that comes now waits before its first byte leaves."""
        return max(0.0, self._busy_until_s - now_s - self._burst_s)

    @property
    def _burst_s(self) -> float:
        return self.shape.burst_bytes / self.shape.rate_bytes_per_s

    def arrival_s(self, now_s: float, num_bytes: int) -> float:
        """Put a message on the link at ``now_s`` and return when its last byte arrives."""
        start_s = max(now_s, self._busy_until_s)
        self._busy_until_s = start_s + num_bytes / self.shape.rate_bytes_per_s
        return max(now_s, self._busy_until_s - self._burst_s) + self.shape.delay_s


class ShapedNetwork:
    """The uplinks of all peers of one process. A peer that was not given one has no limit."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._links: dict[Hotkey, Link] = {}

    def shape(self, hotkey: Hotkey, shape: LinkShape) -> None:
        """Give a peer an uplink, or another one; what is under way stays under way."""
        self._links[hotkey] = Link(shape)

    def link(self, hotkey: Hotkey) -> Link:
        """A peer's uplink."""
        return self._links.setdefault(hotkey, Link(LinkShape()))

    async def carry(self, sender: Hotkey, num_bytes: int) -> None:
        """Return when a message of ``sender`` has arrived."""
        now_s = self._clock.now_s()
        await asyncio.sleep(self.link(sender).arrival_s(now_s, num_bytes) - now_s)


class ShapedPeers:
    """``Peers`` of one peer behind its uplink; the answer comes through the other side's uplink."""

    def __init__(self, inner: Peers, hotkey: Hotkey, network: ShapedNetwork) -> None:
        self._inner = inner
        self._hotkey = hotkey
        self._network = network

    async def request(
        self,
        to: PeerAddress,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        query: Mapping[str, str] | None = None,
        timeout_s: float,
    ) -> bytes:
        """See ``Peers``."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._network.carry(self._hotkey, HEADER_BYTES + len(body))
                answer = await self._inner.request(to, method, path, body, query=query, timeout_s=timeout_s)
                await self._network.carry(to.hotkey, len(answer))
        except TimeoutError:
            raise DeadlineExceeded(f"No answer to {method} {path} within {timeout_s:g} s.") from None
        return answer

    async def aclose(self) -> None:
        """See ``Peers``."""
        await self._inner.aclose()
