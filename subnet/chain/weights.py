"""When a validator sets weights, and whether the chain took them.

Not here: which (``incentives.weights``). Invariants: at most once per epoch and never within the rate limit; success is
what the chain holds afterwards, in the open or as a sealed commit, not what a call returned; weights are given by
hotkey and looked up in the snapshot that they are set from, so a reused uid never inherits them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from subnet.chain.base import Chain, ChainSnapshot, NeuronInfo
from subnet.errors import ChainError
from subnet.log import Event, event
from subnet.types import Hotkey, Uid

VERSION_KEY = 1  # of the subnet's weights; raised when scores change their meaning
ALARM_TEMPOS = 2.0
TOLERANCE = 2e-3  # u16 rounding after max-upscaling, on a share of 1


def by_uid(weights: Mapping[Hotkey, float], snapshot: ChainSnapshot) -> dict[Uid, float]:
    """Weights as the chain takes them. What a hotkey without a place would get is burnt; so is all if nobody is left.

    Raises ``ChainError`` if there is nobody left and no place to burn.
    """
    places = {known.hotkey: known.uid for known in snapshot.neurons}
    wanted = {hotkey: weight for hotkey, weight in weights.items() if weight > 0}
    found = {places[hotkey]: weight for hotkey, weight in wanted.items() if hotkey in places}
    lost = sum(weight for hotkey, weight in wanted.items() if hotkey not in places)
    burn = snapshot.burn_uid()
    if burn is not None and (lost > 0 or not found):
        found[burn] = found.get(burn, 0.0) + (lost or 1.0)
    if not found:
        raise ChainError(
            "Nobody has weight, and the subnet's owner has no place to burn it at.",
            remedy="The owner must register a hotkey of its coldkey.",
        )
    return found


def holds(neuron: NeuronInfo, wanted: Mapping[Uid, float]) -> bool:
    """Whether the chain has ``wanted`` as the weights of ``neuron``, up to its rounding."""
    total = sum(wanted.values())
    uids = set(wanted) | set(neuron.weights)
    return total > 0 and all(
        abs(neuron.weights.get(uid, 0.0) - wanted.get(uid, 0.0) / total) <= TOLERANCE for uid in uids
    )


@dataclass(frozen=True)
class _Attempt:
    """Weights that were sent, and the snapshot that they were made from."""

    wanted: Mapping[Uid, float]
    made_from: ChainSnapshot

    def is_held(self, snapshot: ChainSnapshot, hotkey: Hotkey) -> bool:
        """Whether the chain holds them now, for those they were meant for. Of sealed ones it only tells when they came.

        A uid that changed hands while they were on their way takes them to somebody else: they are not held.
        """
        meant = {known.uid: known.hotkey for known in self.made_from.neurons if known.uid in self.wanted}
        holders = {known.uid: known.hotkey for known in snapshot.neurons if known.uid in self.wanted}
        if meant != holders:
            return False
        if snapshot.has_commit_reveal:
            return snapshot.sealed_at_block.get(hotkey, -1) > self.made_from.block
        me = snapshot.neuron(hotkey)
        return me is not None and me.last_update_block > self.made_from.block and holds(me, self.wanted)


class WeightSetter:
    """One validator's weights on one chain."""

    def __init__(self, chain: Chain, hotkey: Hotkey) -> None:
        self._chain = chain
        self._hotkey = hotkey
        self._done_epoch = -1
        self._tried: _Attempt | None = None  # sent, and not seen on chain yet
        self._sealed: _Attempt | None = None  # on chain, and not opened yet
        self._quiet_since_block: int | None = None  # last success or alarm; at first, the first look

    def look(self, snapshot: ChainSnapshot) -> bool:
        """Take note of what the chain holds, and raise the alarm if need be; whether this epoch's weights are due.

        They are due if they are still to be set, the rate limit allows it, and this validator has its permit.
        """
        if self._tried is not None and self._tried.is_held(snapshot, self._hotkey):
            self._took(self._tried, snapshot)
        self._look_whether_opened(snapshot)
        self.alarm_if_overdue(snapshot)
        return self.is_due(snapshot)

    def is_due(self, snapshot: ChainSnapshot) -> bool:
        """As ``look``, which see, but without taking note."""
        me = snapshot.neuron(self._hotkey)
        if me is None or not me.validator_permit or self._done_epoch == snapshot.last_epoch_block:
            return False
        if snapshot.has_commit_reveal:
            if snapshot.sealed_at_block.get(self._hotkey, -1) >= snapshot.last_epoch_block:
                return False  # by this process before it was restarted
        elif not me.weights:
            return True  # the chain limits the rate from the first weights on
        return snapshot.block - me.last_update_block >= snapshot.weights_rate_limit_blocks

    async def set(self, snapshot: ChainSnapshot, weights: Mapping[Hotkey, float]) -> bool:
        """Set weights and read them back; true when the chain holds them: in the open, or sealed until their epoch.

        Raises ``ChainError`` and ``DeadlineExceeded``. After a refusal that repeating cannot heal, the next epoch is
        the next time; after anything else, whenever ``look`` says so.
        """
        wanted = by_uid(weights, snapshot)
        attempt = self._tried = _Attempt(wanted, snapshot)
        try:
            await self._chain.set_weights(wanted, VERSION_KEY)
        except ChainError as error:
            if not error.retryable:
                self._done_epoch, self._tried = snapshot.last_epoch_block, None
            raise
        after = await self._chain.snapshot()
        is_set = attempt.is_held(after, self._hotkey)
        if is_set:
            self._took(attempt, after)
        return is_set

    def _took(self, attempt: _Attempt, after: ChainSnapshot) -> None:
        self._tried, self._done_epoch = None, attempt.made_from.last_epoch_block
        self._quiet_since_block = after.block
        self._sealed = attempt if after.has_commit_reveal else None
        event(Event.WEIGHTS_SET, block=after.block, num_uids=len(attempt.wanted), is_sealed=after.has_commit_reveal)

    def _look_whether_opened(self, snapshot: ChainSnapshot) -> None:
        """Sealed weights that are gone without having become ours were lost: the chain could not open them."""
        me, sealed = snapshot.neuron(self._hotkey), self._sealed
        if sealed is None or me is None or snapshot.sealed_at_block.get(self._hotkey, -1) > sealed.made_from.block:
            return
        self._sealed = None
        if not holds(me, sealed.wanted):
            event(Event.WEIGHTS_ALARM, level=logging.ERROR, reason="sealed weights were not revealed")

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
