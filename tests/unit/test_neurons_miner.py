"""What a miner measures of its machine at start."""

from __future__ import annotations

import torch

from neurons.miner import measure_peak_flops_per_s
from subnet.orchestrate.submissions import MAX_PEAK_FLOPS_PER_S


def test_the_peak_is_measured_quickly_and_is_that_of_a_machine() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        peaks = [measure_peak_flops_per_s() for _ in range(2)]
    finally:
        torch.set_num_threads(threads)
    assert 1e8 < min(peaks) <= max(peaks) < MAX_PEAK_FLOPS_PER_S
    assert max(peaks) < 3 * min(peaks)
