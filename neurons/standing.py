"""What a program has on chain and how it may lose it: its place, the subnet's owner, and a client that cannot end.

Not here: weights (``subnet.chain.weights``), what a program does otherwise. ``check`` is pure.
Invariants: a chain that cannot be reached is no loss: training goes on without it for as long as it takes; a lost place
ends the program with ``ConfigError`` (restarting does not help), a new owner with ``Superseded`` (restarting does).
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from neurons.settings import NeuronConfig
from subnet.chain.base import Chain, ChainSnapshot
from subnet.errors import ChainError, ConfigError, Superseded, Unavailable
from subnet.log import Event, event
from subnet.types import Hotkey

EXIT_STUCK = 75  # EX_TEMPFAIL of sysexits.h: the same program works again in a new process
LOOK_S = 12.0  # between looks of a program that needs the chain for nothing else: one block of a public chain


def how_to_register(config: NeuronConfig) -> str:
    """What to type."""
    wallet = config.wallet
    return (
        f"Register it: btcli subnets register --netuid {config.netuid} "
        f"--wallet-name {wallet.name} --hotkey {wallet.hotkey} --network {config.endpoint}"
    )


def check(config: NeuronConfig, hotkey: Hotkey, owner: Hotkey | None, snapshot: ChainSnapshot) -> None:
    """Raises ``ConfigError`` without a place, ``Superseded`` where ``owner`` (if given) owns the subnet no more."""
    if snapshot.neuron(hotkey) is None:
        raise ConfigError(
            f"Hotkey {hotkey} has no place in subnet {config.netuid} on {config.endpoint} at block {snapshot.block}.",
            remedy=how_to_register(config),
        )
    if owner is not None and snapshot.owner_hotkey != owner:
        raise Superseded(
            f"Subnet {config.netuid} has a new owner, {snapshot.owner_hotkey}; this program follows {owner}."
        )


async def keep_standing(
    config: NeuronConfig, chain: Chain, hotkey: Hotkey, owner: Hotkey | None, look_s: float = LOOK_S
) -> None:
    """Look at the chain for as long as all is well; raises as ``check`` does."""
    while True:
        await asyncio.sleep(look_s)
        try:
            snapshot = await chain.snapshot()
        except (ChainError, Unavailable) as error:
            event(Event.CHAIN_FAILED, level=logging.DEBUG, code=error.code)
        else:
            check(config, hotkey, owner, snapshot)


def end_stuck(reason: str) -> None:
    """End this process at once, for a ``Watchdog``: whatever holds it up, it is started again by a supervisor."""
    event(Event.STOPPED, level=logging.CRITICAL, reason=reason, exit_code=EXIT_STUCK)
    sys.stderr.flush()
    os._exit(EXIT_STUCK)
