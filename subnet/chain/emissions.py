"""What a finished epoch left on chain: the raw facts from which its pay is worked out, read at pinned blocks.

An epoch ends in one block: before the block's transactions the chain counts the votes and pays out everything pending.
So who was paid stands in the state one block earlier, what was paid in the block's own state and events.
Not here: who earned what (``subnet.watch.emissions``). Not part of the seam ``Chain``, whose snapshots are of now.
Invariants: only final blocks are read; amounts are whole rao; what the node has forgotten raises ``StateGone``.
Source: storage items and events of pallet_subtensor, alike in the runtime of spec 461 and on the development chain.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from subnet.errors import ChainError
from subnet.types import Hotkey, Uid

T = TypeVar("T")

PALLET = "SubtensorModule"
U16_MAX = 65535
MECHANISMS_STRIDE = 4096  # events name a subnet as mechanism * 4096 + netuid
PAID_EVENT = "IncentiveAlphaEmittedToMiners"
POTS = ("PendingServerEmission", "PendingValidatorEmission", "PendingOwnerCut")
FORGOTTEN = ("no block at height", "State discarded")  # how the SDK says that a node lacks a block or its state


class StateGone(ChainError):
    """The node no longer has the state of a block."""

    code = "state_gone"
    retryable = False
    remedy = "Name an archive node with --subtensor.network."


class Reads(Protocol):
    """Where reads run: ``subnet.chain.live.LiveChain``. Raises ``ChainError`` and ``DeadlineExceeded``."""

    async def read(self, what: str, work: Callable[[Any], Awaitable[T]]) -> T:
        """Run ``work`` on the SDK's client under a deadline."""
        ...


@dataclass(frozen=True)
class Pots:
    """Alpha that waits for the end of the epoch, in rao."""

    miners: int
    validators: int
    owner: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.miners + self.validators + self.owner


@dataclass(frozen=True)
class Place:
    """A neuron as the epoch found it.

    ``assigned_rao`` is what consensus gave this uid (``Emission``), ``event_rao`` its part for mining according to the
    event. Shares are within 0..1. Where ``is_replaced``, the block's transactions gave the uid away: ``assigned_rao``
    and shares were erased with it and are None.
    """

    uid: Uid
    hotkey: Hotkey
    is_owners: bool
    is_replaced: bool
    is_voter: bool  # has a permit, and weights that are recent enough
    stake_before_rao: int
    stake_after_rao: int
    registered_block: int
    last_update_block: int
    assigned_rao: int | None
    event_rao: int
    incentive: float | None
    consensus: float | None
    trust: float | None
    dividends: float | None


@dataclass(frozen=True)
class EpochFacts:
    """One finished epoch. ``accrued`` is what its last block added to ``pending``; None where that cannot be seen."""

    netuid: int
    epoch: int  # counts the subnet's finished epochs, from 1
    block: int  # the one that paid
    previous_block: int  # the one that paid before, or in which the subnet began
    owner_hotkey: Hotkey
    owner_stake_change_rao: int
    alpha_out_change_rao: int
    pending: Pots
    accrued: Pots | None
    places: tuple[Place, ...]
    weights: Mapping[Uid, Mapping[Uid, int]]


@dataclass(frozen=True)
class Tip:
    """The subnet now."""

    netuid: int
    block: int
    epoch: int  # finished ones
    last_epoch_block: int
    tempo_blocks: int
    block_time_s: float
    pending: Pots


class _At:
    """Storage of the subnet's pallet at one block."""

    def __init__(self, client: Any, netuid: int, block: int) -> None:
        self._client = client
        self._netuid = netuid
        self._block = block

    async def one(self, item: str) -> Any:
        return await self._client.query((PALLET, item), [self._netuid], block=self._block)

    async def many(self, item: str, keys: Sequence[list[Any]]) -> list[Any]:
        return list(await self._client.query_batch((PALLET, item), list(keys), block=self._block)) if keys else []

    async def pots(self) -> Pots:
        return Pots(*[int(await self.one(item)) for item in POTS])

    async def by_uid(self, item: str, count: int) -> list[Any]:
        return await self.many(item, [[self._netuid, uid] for uid in range(count)])

    async def stakes(self, hotkeys: Sequence[str]) -> list[int]:
        return [int(rao) for rao in await self.many("TotalHotkeyAlpha", [[hotkey, self._netuid] for hotkey in hotkeys])]

    async def paid_to_miners(self) -> list[int]:
        """By uid; mechanisms add up."""
        total: list[int] = []
        for record in await self._client.query(("System", "Events"), [], block=self._block) or []:
            if record["module_id"] != PALLET or record["event_id"] != PAID_EVENT:
                continue
            if record["attributes"]["netuid"] % MECHANISMS_STRIDE == self._netuid:
                emissions = record["attributes"]["emissions"]
                total += [0] * (len(emissions) - len(total))
                for uid, rao in enumerate(emissions):
                    total[uid] += int(rao)
        return total


class EpochReader:
    """Reads epochs of one subnet."""

    def __init__(self, reads: Reads, netuid: int) -> None:
        self._reads = reads
        self._netuid = netuid

    async def tip(self) -> Tip:
        """The newest final block."""
        return await self._reads.read("newest epoch", self._tip)

    async def epoch(self, block: int) -> EpochFacts:
        """The epoch that ended in ``block``; raises ``StateGone``."""
        try:
            return await self._reads.read("epoch", lambda client: self._epoch(client, block))
        except ChainError as error:
            if any(text in error.message for text in FORGOTTEN):
                raise StateGone(f"The node no longer has the state around block {block}.") from None
            raise

    async def _tip(self, client: Any) -> Tip:
        block = await client.finalized_block()
        now = _At(client, self._netuid, block)
        if not await now.one("NetworksAdded"):
            raise ChainError(f"There is no subnet {self._netuid} on this chain.")
        return Tip(
            netuid=self._netuid,
            block=block,
            epoch=int(await now.one("SubnetEpochIndex")),
            last_epoch_block=int(await now.one("LastEpochBlock")),
            tempo_blocks=int(await now.one("Tempo")),
            block_time_s=float(await client.block_time()),
            pending=await now.pots(),
        )

    async def _epoch(self, client: Any, block: int) -> EpochFacts:
        before, after = (_At(client, self._netuid, number) for number in (block - 1, block))
        previous_block = int(await before.one("LastEpochBlock"))
        owner_hotkey = Hotkey(await before.one("SubnetOwnerHotkey"))
        pending = await before.pots()
        (owner_before,), (owner_after,) = [await at.stakes([owner_hotkey]) for at in (before, after)]
        places = await self._places(before, after, block, owner_hotkey)
        # Sealed weights are opened by the epoch itself; plain ones that the block's transactions set came too late.
        voted = after if await before.one("CommitRevealWeightsEnabled") else before
        rows = await voted.by_uid("Weights", len(places))
        return EpochFacts(
            netuid=self._netuid,
            epoch=int(await after.one("SubnetEpochIndex")),
            block=block,
            previous_block=previous_block,
            owner_hotkey=owner_hotkey,
            owner_stake_change_rao=owner_after - owner_before,
            alpha_out_change_rao=int(await after.one("SubnetAlphaOut")) - int(await before.one("SubnetAlphaOut")),
            pending=pending,
            accrued=await self._accrued(client, block, previous_block, pending),
            places=places,
            weights={Uid(uid): {Uid(int(to)): int(value) for to, value in row} for uid, row in enumerate(rows) if row},
        )

    async def _accrued(self, client: Any, block: int, previous_block: int, pending: Pots) -> Pots | None:
        """One block's alpha: what the block before the last added. The last one's own is paid out before it is seen."""
        if previous_block == block - 1:
            return None
        earlier = await _At(client, self._netuid, block - 2).pots()
        return Pots(
            pending.miners - earlier.miners, pending.validators - earlier.validators, pending.owner - earlier.owner
        )

    async def _places(self, before: _At, after: _At, block: int, owner_hotkey: str) -> tuple[Place, ...]:
        count = int(await before.one("SubnetworkN"))
        hotkeys = await before.by_uid("Keys", count)
        keys_after = await after.by_uid("Keys", count)
        coldkeys = await before.many("Owner", [[hotkey] for hotkey in hotkeys])
        owner_coldkey = await before.one("SubnetOwner")
        stakes_before, stakes_after = await before.stakes(hotkeys), await after.stakes(hotkeys)
        registered = await before.by_uid("BlockAtRegistration", count)
        permits, last_update = await before.one("ValidatorPermit"), await before.one("LastUpdate")
        cutoff = int(await before.one("ActivityCutoff"))
        paid = _column(await after.paid_to_miners(), count)
        assigned = _column(await after.one("Emission"), count)
        shares = {
            name: _column(await after.one(item), count)
            for name, item in (
                ("incentive", "Incentive"),
                ("consensus", "Consensus"),
                ("trust", "ValidatorTrust"),
                ("dividends", "Dividends"),
            )
        }
        places = []
        for uid, hotkey in enumerate(hotkeys):
            is_replaced = keys_after[uid] != hotkey
            places.append(
                Place(
                    uid=Uid(uid),
                    hotkey=Hotkey(hotkey),
                    is_owners=hotkey == owner_hotkey or coldkeys[uid] == owner_coldkey,
                    is_replaced=is_replaced,
                    is_voter=bool(permits[uid]) and last_update[uid] + cutoff >= block,
                    stake_before_rao=stakes_before[uid],
                    stake_after_rao=stakes_after[uid],
                    registered_block=int(registered[uid]),
                    last_update_block=int(last_update[uid]),
                    assigned_rao=None if is_replaced else assigned[uid],
                    event_rao=paid[uid],
                    **{name: None if is_replaced else column[uid] / U16_MAX for name, column in shares.items()},
                )
            )
        return tuple(places)


def _column(values: Sequence[Any] | None, count: int) -> list[int]:
    """``count`` entries; a chain that stored fewer means zeros."""
    found = [int(value) for value in values or ()][:count]
    return found + [0] * (count - len(found))
