"""Switches that make the chain misbehave the way real endpoints do, for tests of its clients.

A switch acts from the moment it is set until it is cleared, and is off after a restart. Closing connections and
replacing a block are acts, not switches: see `rpc.Server.close_connections` and `chain.DevChain.reorg`. Nothing here
corrupts state; after clearing all switches the chain goes on as if blocks had only been late.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any


@dataclass
class Faults:
    """silent: requests are read and never answered, subscriptions get nothing
    stalled: timer mode produces no blocks
    pool_rejection: every transaction is refused with this text, e.g. "Custom error: 6"
    unfinalised: blocks are produced but the final block stays where it is, as far as the history reaches
    no_inclusion: blocks take no transactions; those wait in the pool, and may expire there
    lag_s: every answer and notification leaves so much later, in order
    """

    silent: bool = False
    stalled: bool = False
    pool_rejection: str | None = None
    unfinalised: bool = False
    no_inclusion: bool = False
    lag_s: float = 0.0

    def switch(self, name: str, value: Any) -> Any:
        """Sets a switch, or clears it with None; returns what it was. ValueError says which switch takes what."""
        if name not in vars(self):
            raise ValueError(f"the switches are {', '.join(vars(self))}")
        before, off = getattr(self, name), vars(Faults())[name]
        value = off if value is None else value
        if isinstance(off, bool) and not isinstance(value, bool):
            raise ValueError(f"{name} is true or false")
        if isinstance(off, float):
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not math.isfinite(value) or value < 0:
                raise ValueError(f"{name} is a number of at least 0")
        if off is None and not isinstance(value, str | None):
            raise ValueError(f"{name} is a text")
        setattr(self, name, value)
        return before

    def switch_text(self, text: str) -> None:
        """``NAME=VALUE``, the value in JSON or else as it stands; ``NAME`` alone is true."""
        name, _, given = text.partition("=")
        try:
            value = json.loads(given or "true")
        except ValueError:
            value = given
        self.switch(name, value)
