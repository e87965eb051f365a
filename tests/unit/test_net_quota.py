"""Token buckets: bursts, refill, large bodies, bounded memory."""

from __future__ import annotations

import pytest

from subnet.errors import Unavailable
from subnet.net.quota import Quotas


def test_a_burst_then_the_rate() -> None:
    quotas = Quotas(requests_per_s=2, burst_requests=3)
    for _ in range(3):
        quotas.charge("a", 0, 0.0)
    with pytest.raises(Unavailable):
        quotas.charge("a", 0, 0.0)
    quotas.charge("b", 0, 0.0)
    quotas.charge("a", 0, 0.5)
    with pytest.raises(Unavailable):
        quotas.charge("a", 0, 0.5)
    with pytest.raises(Unavailable):
        quotas.charge("a", 0, 0.4)  # a clock that runs backwards gives nothing


def test_bytes_and_a_body_larger_than_the_burst() -> None:
    quotas = Quotas(bytes_per_s=10, burst_bytes=100)
    quotas.charge("a", 250, 0.0)
    with pytest.raises(Unavailable):
        quotas.charge("a", 1, 15.0)
    quotas.charge("a", 1, 15.2)


def test_memory_is_bounded_and_the_oldest_is_forgotten() -> None:
    quotas = Quotas(burst_requests=1, requests_per_s=0.001, max_keys=3)
    for key in "abcd":
        quotas.charge(key, 0, 0.0)
    assert len(quotas) == 3
    with pytest.raises(Unavailable):
        quotas.charge("d", 0, 0.0)
    quotas.charge("a", 0, 0.0)
