"""When a validator sets weights, and whether the chain took them.

Not here: which (``incentives.weights``). Invariants: at most once per epoch and never within the rate limit; success is
what the chain holds afterwards, not what a call returned; weights are given by hotkey and looked up in the snapshot
that they are set from, so a reused uid never inherits them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from subnet.chain.base import Chain, ChainSnapshot, NeuronInfo
from subnet.log import Event, event
from subnet.types import Hotkey, Uid

VERSION_KEY = 1  # of the subnet's weights; raised when scores change their meaning
ALARM_TEMPOS = 2.0
TOLERANCE = 2e-3  # u16 rounding after max-upscaling, on a share of 1


def by_uid(weights: Mapping[Hotkey, float], snapshot: ChainSnapshot) -> dict[Uid, float]:
    """Weights as the chain takes them; hotkeys without a place are left out."""
    places = {known.hotkey: known.uid for known in snapshot.neurons}
    return {places[hotkey]: weight for hotkey, weight in weights.items() if hotkey in places and weight > 0}


def holds(neuron: NeuronInfo, wanted: Mapping[Uid, float]) -> bool:
    """Whether the chain has ``wanted`` as the weights of ``neuron``, up to its rounding."""
    total = sum(wanted.values())
    uids = set(wanted) | set(neuron.weights)
    return total > 0 and all(
        abs(neuron.weights.get(uid, 0.0) - wanted.get(uid, 0.0) / total) <= TOLERANCE for uid in uids
    )


class WeightSetter:
    """One validator's weights on one chain."""

    def __init__(self, chain: Chain, hotkey: Hotkey) -> None:
        self._chain = chain
        self._hotkey = hotkey
        self._done_epoch = -1
        self._last_success_block: int | None = None

    def is_due(self, snapshot: ChainSnapshot) -> bool:
        """Whether this epoch's weights are still to be set and the rate limit allows it."""
        me = snapshot.neuron(self._hotkey)
        if me is None or not me.validator_permit or self._done_epoch == snapshot.last_epoch_block:
            return False
        return not me.weights or snapshot.block - me.last_update_block >= snapshot.weights_rate_limit_blocks

    async def set(self, snapshot: ChainSnapshot, weights: Mapping[Hotkey, float]) -> bool:
        """Set weights and read them back; true when the chain holds them. Raises ``ChainError``."""
        wanted = by_uid(weights, snapshot)
        await self._chain.set_weights(wanted, VERSION_KEY)
        after = await self._chain.snapshot()
        me = after.neuron(self._hotkey)
        is_set = me is not None and holds(me, wanted)
        if is_set:
            self._done_epoch, self._last_success_block = snapshot.last_epoch_block, after.block
            event(Event.WEIGHTS_SET, block=after.block, num_uids=len(wanted))
        else:
            self._alarm(after)
        return is_set

    def _alarm(self, snapshot: ChainSnapshot) -> None:
        since = snapshot.block - (self._last_success_block or 0)
        if since > ALARM_TEMPOS * snapshot.tempo_blocks:
            event(Event.WEIGHTS_ALARM, level=logging.ERROR, blocks_since_success=since)
