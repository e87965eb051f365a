"""Time, as a seam: production reads the wall clock, tests and the simulator run hours in milliseconds.

``Clock`` is what components ask for the time; sleeping and timeouts go through asyncio, whose event loop is
``VirtualTimeLoop`` in tests: it never waits, it jumps to the next timer whenever nothing is ready to run.
Not here: deadlines (``subnet.swarm.deadlines``).
Invariants: ``now_s`` never runs backwards; under a ``VirtualTimeLoop`` it is the loop's own time, so that two runs of
one program see the same instants.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

# A round instant, so that virtual wall-clock times are readable in logs (2026-01-01T00:00:00Z).
VIRTUAL_EPOCH_S = 1_767_225_600.0


class Clock(Protocol):
    """What time is it? Raises nothing."""

    def now_s(self) -> float:
        """Seconds since the Unix epoch."""
        ...


class WallClock:
    """The machine's own clock, made monotonic by never returning less than before."""

    def __init__(self) -> None:
        self._wall_at_start_s = time.time()
        self._monotonic_at_start_s = time.monotonic()

    def now_s(self) -> float:
        """Seconds since the Unix epoch, unaffected by later steps of the system clock."""
        return self._wall_at_start_s + time.monotonic() - self._monotonic_at_start_s


class LoopClock:
    """The running event loop's time; virtual when the loop is."""

    def now_s(self) -> float:
        """Seconds since the Unix epoch as the loop counts them."""
        return VIRTUAL_EPOCH_S + asyncio.get_running_loop().time()


class Stopwatch:
    """Adds up how long things take, in seconds. Runs in one thread at a time; ``total_s`` can be read from any."""

    def __init__(self, timer: Callable[[], float] = time.perf_counter) -> None:
        self.total_s = 0.0
        self._timer = timer

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the body, however it ends."""
        began_s = self._timer()
        try:
            yield
        finally:
            self.total_s += self._timer() - began_s


class _JumpingSelector(selectors.DefaultSelector):
    """Never waits: where a real selector would sleep, it moves the loop's clock."""

    def __init__(self) -> None:
        super().__init__()
        self.elapsed_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Poll; with nothing ready, jump ahead by ``timeout``."""
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise RuntimeError("deadlock under virtual time: every task waits and no timer is set")
        self.elapsed_s += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only when every task waits for a timer."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._jumping.elapsed_s


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` to its end under virtual time, as ``asyncio.run`` does under real time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
