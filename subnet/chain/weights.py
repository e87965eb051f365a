"""When a validator sets weights, and whether the chain took them.

Not here: which (``incentives.weights``). Invariants: at most once per epoch and never within the rate limit; success is
what the chain holds afterwards, not what a call returned; weights are given by hotkey and looked up in the snapshot
that they are set from, so a reused uid never inherits them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from subnet.chain.base import Chain, ChainSnapshot, NeuronInfo
from subnet.errors import ChainRefused
from subnet.log import Event, event
from subnet.types import Hotkey, Uid

VERSION_KEY = 1  # of the subnet's weights; raised when scores change their meaning
ALARM_TEMPOS = 2.0
TOLERANCE = 2e-3  # u16 rounding after max-upscaling, on a share of 1


def by_uid(weights: Mapping[Hotkey, float], snapshot: ChainSnapshot) -> dict[Uid, float]:
    """Weights as the chain takes them. What a hotkey without a place would get is burnt; so is all if nobody is left.

    Raises ``ChainRefused`` if there is nobody left and no place to burn.
    """
    places = {known.hotkey: known.uid for known in snapshot.neurons}
    wanted = {hotkey: weight for hotkey, weight in weights.items() if weight > 0}
    found = {places[hotkey]: weight for hotkey, weight in wanted.items() if hotkey in places}
    lost = sum(weight for hotkey, weight in wanted.items() if hotkey not in places)
    burn = snapshot.burn_uid()
    if burn is not None and (lost > 0 or not found):
        found[burn] = found.get(burn, 0.0) + (lost or 1.0)
    if not found:
        raise ChainRefused("Nobody has weight, and the subnet's owner has no place to burn it at.")
    return found


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
        self._quiet_since_block: int | None = None  # last success or alarm; at first, the first look

    def is_due(self, snapshot: ChainSnapshot) -> bool:
        """Whether this epoch's weights are still to be set and the rate limit allows it."""
        me = snapshot.neuron(self._hotkey)
        if me is None or not me.validator_permit or self._done_epoch == snapshot.last_epoch_block:
            return False
        is_first = not me.weights and not snapshot.has_commit_reveal  # sealed weights are not seen for an epoch
        return is_first or snapshot.block - me.last_update_block >= snapshot.weights_rate_limit_blocks

    async def set(self, snapshot: ChainSnapshot, weights: Mapping[Hotkey, float]) -> bool:
        """Set weights and read them back; true when the chain holds them. Raises ``ChainError``, ``DeadlineExceeded``.

        Where weights are sealed, what is read back is that a new commit of this hotkey waits to be opened.
        """
        self.alarm_if_overdue(snapshot)
        wanted = by_uid(weights, snapshot)
        await self._chain.set_weights(wanted, VERSION_KEY)
        after = await self._chain.snapshot()
        is_set = self._took(snapshot, after, wanted)
        if is_set:
            self._done_epoch, self._quiet_since_block = snapshot.last_epoch_block, after.block
            event(Event.WEIGHTS_SET, block=after.block, num_uids=len(wanted))
        return is_set

    def _took(self, before: ChainSnapshot, after: ChainSnapshot, wanted: Mapping[Uid, float]) -> bool:
        now = after.neuron(self._hotkey)
        if now is None:
            return False
        if after.has_commit_reveal:
            return after.sealed_at_block.get(self._hotkey, -1) > before.block
        return holds(now, wanted)

    def alarm_if_overdue(self, snapshot: ChainSnapshot) -> bool:
        """Raise the alarm, once in ``ALARM_TEMPOS``, if for that long no weights were set, for whatever reason."""
        if self._quiet_since_block is None:
            self._quiet_since_block = snapshot.block
        since = snapshot.block - self._quiet_since_block
        is_overdue = since > ALARM_TEMPOS * snapshot.tempo_blocks
        if is_overdue:
            self._quiet_since_block = snapshot.block
            event(Event.WEIGHTS_ALARM, level=logging.ERROR, blocks_without_success=since)
        return is_overdue
