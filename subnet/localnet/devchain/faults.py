"""Switches that make the chain misbehave the way real endpoints do, for tests of its clients.

A switch acts from the moment it is set until it is cleared. Closing connections is an act, not a switch: see
`rpc.Server.close_connections`. Nothing here corrupts state; after clearing all switches the chain goes on as if
blocks had only been late.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Faults:
    """silent: requests are read and never answered, subscriptions get nothing
    stalled: timer mode produces no blocks
    pool_rejection: every transaction is refused with this text, e.g. "Custom error: 6"
    """

    silent: bool = False
    stalled: bool = False
    pool_rejection: str | None = None
