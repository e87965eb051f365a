"""What a running neuron must know about itself on chain: its place, its permit, its run's owner.

Not here: looking (``feed``), ending the program (whoever catches). Invariants: a change that ends the program is
believed only when two looks at different blocks agree, since the newest block may be taken back; all is keyed by
hotkey, and a uid that changed hands is another neuron; a change is said once.
"""

from __future__ import annotations

import logging

from subnet.chain.base import ChainSnapshot
from subnet.errors import LiquidError, NotRegistered, OwnerChanged
from subnet.log import Event, event
from subnet.types import Hotkey, Uid


class Standing:
    """One hotkey's standing, look by look."""

    def __init__(self, first: ChainSnapshot, hotkey: Hotkey, *, remedy: str, is_validator: bool, axon: str) -> None:
        """``remedy``: how this hotkey is registered; ``axon``: the owner's that this program relies on, or ""."""
        self._hotkey = hotkey
        self._remedy = remedy
        self._is_validator = is_validator
        self._owner = first.owner_hotkey
        self._axon = axon
        self._uid: Uid | None = None
        self._has_permit = True
        self._doubt: tuple[type[LiquidError], int] | None = None  # what the look before said, and at which block
        self.look(first)

    def look(self, snapshot: ChainSnapshot) -> None:
        """Say what changed. Raises ``NotRegistered`` when the hotkey has lost its place for good, ``OwnerChanged``
        when the run has another owner or orchestrator than this program was started for."""
        trouble = self._trouble(snapshot)
        if trouble is None:
            self._doubt = None
            self._say(snapshot)
            return
        before, self._doubt = self._doubt, (type(trouble), snapshot.block)
        if before is not None and before[0] is type(trouble):
            if before[1] < snapshot.block:
                name = Event.DEREGISTERED if isinstance(trouble, NotRegistered) else Event.OWNER_CHANGED
                event(name, level=logging.ERROR, block=snapshot.block, hotkey=self._hotkey, reason=trouble.message)
                raise trouble
            self._doubt = before

    def _trouble(self, snapshot: ChainSnapshot) -> LiquidError | None:
        if snapshot.neuron(self._hotkey) is None:
            return NotRegistered(
                f"Hotkey {self._hotkey} has lost its place in subnet {snapshot.netuid}"
                + ("" if self._uid is None else f": uid {self._uid} is now {self._holder(snapshot)}"),
                remedy=self._remedy,
            )
        if snapshot.owner_hotkey != self._owner:
            return OwnerChanged(
                f"The owner hotkey of subnet {snapshot.netuid} is now {snapshot.owner_hotkey}, not {self._owner}."
            )
        owner = snapshot.neuron(self._owner)
        if self._axon and owner is not None and owner.axon not in ("", self._axon):
            return OwnerChanged(f"The orchestrator has moved from {self._axon} to {owner.axon}.")
        return None

    def _holder(self, snapshot: ChainSnapshot) -> str:
        holder = next((known.hotkey for known in snapshot.neurons if known.uid == self._uid), None)
        return f"{holder}'s." if holder else "nobody's."

    def _say(self, snapshot: ChainSnapshot) -> None:
        me = snapshot.neuron(self._hotkey)
        assert me is not None
        if self._uid is not None and me.uid != self._uid:
            event(Event.UID_CHANGED, block=snapshot.block, was=self._uid, uid=me.uid)
        self._uid = me.uid
        if self._is_validator and me.validator_permit != self._has_permit:
            if me.validator_permit:
                event(Event.PERMIT_GAINED, block=snapshot.block, uid=me.uid)
            else:
                event(Event.PERMIT_LOST, level=logging.WARNING, block=snapshot.block, uid=me.uid, effect="no weights")
            self._has_permit = me.validator_permit
