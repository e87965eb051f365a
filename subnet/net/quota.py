"""How much one sender may ask: token buckets for requests and bytes, per hotkey (or per host for the unsigned).

Not here: size caps of single bodies (``subnet.net.base``), the decision who may send at all (the handlers).
Invariants: memory is bounded however many keys appear; only a request whose signature holds is charged to its hotkey,
so that nobody spends another's quota; over quota is ``Unavailable``: the same request is welcome later.
Source: design.md, section 9.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from subnet.errors import Unavailable

REQUESTS_PER_S = 500.0  # an honest neighbour sends under ten small microbatches a second, each in two requests
BURST_REQUESTS = 2_000.0  # four seconds' worth: a peer that comes back resends what it holds at once
BYTES_PER_S = 256.0 * 1024 * 1024  # 2 Gbit/s, more than a home link carries
BURST_BYTES = 4 * BYTES_PER_S
MAX_KEYS = 4096  # sixteen times the neurons of a subnet; the one seen longest ago is forgotten first


@dataclass(slots=True)
class _Bucket:
    requests: float
    num_bytes: float
    at_s: float


class Quotas:
    """The buckets of one server."""

    def __init__(
        self,
        *,
        requests_per_s: float = REQUESTS_PER_S,
        burst_requests: float = BURST_REQUESTS,
        bytes_per_s: float = BYTES_PER_S,
        burst_bytes: float = BURST_BYTES,
        max_keys: int = MAX_KEYS,
    ) -> None:
        self._requests_per_s = requests_per_s
        self._burst_requests = burst_requests
        self._bytes_per_s = bytes_per_s
        self._burst_bytes = burst_bytes
        self._max_keys = max_keys
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def charge(self, key: str, num_bytes: int, now_s: float) -> None:
        """Charge one request of ``num_bytes``; raises ``Unavailable`` and charges nothing when ``key`` is over quota.

        A body larger than the burst passes when the bucket is full, and is paid off before the next one.
        """
        bucket = self._refilled(key, now_s)
        if bucket.requests < 1 or bucket.num_bytes < min(num_bytes, self._burst_bytes):
            raise Unavailable("This sender is over its quota here.", remedy="Send less often.")
        bucket.requests -= 1
        bucket.num_bytes -= num_bytes

    def _refilled(self, key: str, now_s: float) -> _Bucket:
        bucket = self._buckets.pop(key, None) or _Bucket(self._burst_requests, self._burst_bytes, now_s)
        elapsed_s = max(0.0, now_s - bucket.at_s)
        bucket.requests = min(self._burst_requests, bucket.requests + elapsed_s * self._requests_per_s)
        bucket.num_bytes = min(self._burst_bytes, bucket.num_bytes + elapsed_s * self._bytes_per_s)
        bucket.at_s = max(bucket.at_s, now_s)
        self._buckets[key] = bucket
        if len(self._buckets) > self._max_keys:
            self._buckets.popitem(last=False)
        return bucket
