"""A thread that ends the program when its chain client is stuck in code that never returns.

The client's calls have deadlines, so a chain that is merely away costs nothing but events; what no deadline can end is
a thread inside native code. Not here: what counts as stuck (``Worker.vitals``), what ends the program (the caller).
Invariants: it works while the program's own event loop is busy; time is counted in ticks of its own, so a program that
was suspended is not taken for one that hangs; code that holds the interpreter's lock stops this thread as well, so the
interpreter itself is told to end the program, with all stacks, should the ticks stay away.
Source: bittensor-v11.md, section 6.
"""

from __future__ import annotations

import faulthandler
import threading
from collections.abc import Callable
from types import TracebackType

TICK_S = 1.0
FROZEN_AFTER_S = 300.0  # without a tick; native code of ours and of torch lets go of the lock within seconds


class Watchdog:
    """Asks ``find`` at every tick; calls ``bark``, once, with the first reason that it gives."""

    def __init__(
        self,
        find: Callable[[], str | None],
        bark: Callable[[str], None],
        *,
        tick_s: float = TICK_S,
        frozen_after_s: float = FROZEN_AFTER_S,
    ) -> None:
        self._find = find
        self._bark = bark
        self._tick_s = tick_s
        self._frozen_after_s = frozen_after_s
        self._is_called_off = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def _watch(self) -> None:
        while not self._is_called_off.wait(self._tick_s):
            faulthandler.dump_traceback_later(self._frozen_after_s, exit=True)
            reason = self._find()
            if reason is not None:
                self._bark(reason)
                return

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_called_off.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()
