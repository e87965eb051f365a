"""Deadlines learnt from how long the same thing took before.

Not here: the instants themselves; they are in the ledger (``PhaseChanged.deadline_s``), so that everybody sees one.
Invariants: pure; a timeout lies between its floor and its cap; before ``MIN_SAMPLES`` it is the configured first one.
A phase that its deadline ended counts as a sample too: the timeout is at least twice the median, so that it doubles
until the work fits.
Source: design.md section 4 (median + k * MAD).
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

# Median + 6 MAD is about 4 standard deviations of a normal distribution (MAD = 0.6745 sigma).
NUM_MADS = 6.0
# With fewer samples a MAD says nothing.
MIN_SAMPLES = 3


class Durations:
    """Durations of one kind of wait, in seconds."""

    def __init__(self, first_s: float, *, floor_s: float, cap_s: float, samples_s: Iterable[float] = ()) -> None:
        self._first_s = first_s
        self._floor_s = floor_s
        self._cap_s = max(cap_s, floor_s)
        self._samples_s = list(samples_s)

    def observe(self, duration_s: float) -> None:
        """One more wait took ``duration_s``."""
        self._samples_s.append(duration_s)

    def timeout_s(self) -> float:
        """How long the next wait may take."""
        if len(self._samples_s) < MIN_SAMPLES:
            return self._first_s
        middle = median(self._samples_s)
        spread = median(abs(sample - middle) for sample in self._samples_s)
        learnt = middle + NUM_MADS * max(spread, middle / NUM_MADS)
        return min(max(learnt, self._floor_s), self._cap_s)
