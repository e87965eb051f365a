"""Who earned what in an epoch, to the rao: the pure core of ``liquid watch``.

Earned is what the epoch itself paid to a hotkey's stake, and nothing that anybody moved:
- as miner, its entry in the event ``IncentiveAlphaEmittedToMiners``; nothing for uids of the owner's, whose incentive
  is burned;
- as validator, the rest of its entry in ``Emission``. An owner's uid keeps this part as well. Where ``Emission`` cannot
  tell (the uid was given away in the same block; the event hides what an owner's uid burned), the change of the
  hotkey's stake in that block does.
Created is what was pending one block earlier and one block's alpha more. Burned is what was created and reached nobody.
Not here: reading (``subnet.chain.emissions``), showing (``subnet.watch.emission_views``).
Invariants: created == owner's cut + all that was earned + burned; nobody is compared by uid, only by hotkey.
Source: exact on the development chain (``localnet/devchain/epochs.py``). On the real chain ``Emission`` is what
consensus assigns: a validator's part is before child keys, takes and root dividends share it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from subnet.chain.emissions import EpochFacts, Place
from subnet.types import Hotkey, Uid

WEIGHT_DIGITS = 6  # a chain weight has 16 bits


@dataclass(frozen=True)
class Row:
    """One hotkey in one epoch. ``weight``: mean of the voters' weights for it, by stake.

    ``rank`` is by ``earned_rao``, equal pay shares one; ``rank_change`` counts places gained, None for a newcomer.
    """

    uid: Uid
    hotkey: Hotkey
    is_owners: bool
    is_replaced: bool
    stake_rao: int
    weight: float
    incentive: float | None
    consensus: float | None
    trust: float | None
    dividends: float | None
    miner_rao: int
    validator_rao: int
    earned_rao: int
    rank: int
    rank_change: int | None = None


@dataclass(frozen=True)
class EpochReport:
    """One epoch of a subnet. ``left``: hotkeys of the epoch before that have no place any more."""

    netuid: int
    epoch: int
    block: int
    first_block: int
    owner_hotkey: Hotkey
    created_rao: int
    owner_cut_rao: int
    miners_rao: int
    validators_rao: int
    burned_rao: int
    hotkeys: tuple[Row, ...]
    left: tuple[Hotkey, ...] = ()
    followed: Hotkey | None = field(default=None)  # the only one that ``hotkeys`` is limited to

    @property
    def burned_share(self) -> float:
        """Of what was created."""
        return self.burned_rao / self.created_rao if self.created_rao else 0.0


@dataclass(frozen=True)
class Missed:
    """Epochs that ended while nobody watched, and that the node cannot tell any more; both ends included."""

    netuid: int
    first: int
    last: int


def owner_cut_rao(facts: EpochFacts) -> int:
    """What the owner's hotkey was paid for owning the subnet."""
    if facts.accrued is not None:
        return facts.pending.owner + facts.accrued.owner
    # An epoch of one block: what consensus did not assign is the owner's, and all of it where nothing was assigned.
    assigned = sum(place.assigned_rao or 0 for place in facts.places)
    return facts.alpha_out_change_rao + facts.pending.total - assigned if assigned else facts.owner_stake_change_rao


def earned(facts: EpochFacts, place: Place, cut_rao: int) -> tuple[int, int]:
    """What a neuron was paid as miner and as validator, in rao."""
    change = place.stake_after_rao - place.stake_before_rao
    if place.hotkey == facts.owner_hotkey:
        change -= cut_rao
    mined = 0 if place.is_owners else place.event_rao
    if place.assigned_rao is None:
        return mined, max(0, change - mined)
    if not place.is_owners:
        return mined, place.assigned_rao - mined
    if place.event_rao:  # the real chain's event says what is burned, too
        return 0, place.assigned_rao - place.event_rao
    return 0, min(max(0, change), place.assigned_rao)


def weights_received(facts: EpochFacts) -> dict[Uid, float]:
    """Per uid the mean of the voters' weights, by stake; votes for oneself or for a younger neuron count nothing."""
    places = {place.uid: place for place in facts.places}
    received = dict.fromkeys(places, 0.0)
    voters = [place for place in facts.places if place.is_voter and place.stake_before_rao > 0]
    stake = sum(voter.stake_before_rao for voter in voters)
    for voter in voters:
        row = {
            to: value
            for to, value in facts.weights.get(voter.uid, {}).items()
            if to in places and _counts(voter, places[to], facts.owner_hotkey)
        }
        whole = sum(row.values())
        for to, value in row.items():
            received[to] += voter.stake_before_rao / stake * value / whole if whole else 0.0
    return received


def _counts(voter: Place, to: Place, owner_hotkey: Hotkey) -> bool:
    if voter.uid == to.uid and voter.hotkey != owner_hotkey:
        return False
    return voter.last_update_block > to.registered_block


def ranks(pay: Mapping[Hotkey, int]) -> dict[Hotkey, int]:
    """1 for the best paid; whoever earned alike shares a rank."""
    ordered = sorted(pay.values(), reverse=True)
    first = {rao: place for place, rao in reversed(list(enumerate(ordered, 1)))}
    return {hotkey: first[rao] for hotkey, rao in pay.items()}


def report(facts: EpochFacts, before: EpochReport | None = None) -> EpochReport:
    """The account of one epoch. ``before``: that of the epoch just before it, for changes of rank."""
    cut = owner_cut_rao(facts)
    created = facts.pending.total + (facts.accrued.total if facts.accrued else facts.alpha_out_change_rao)
    paid = {place.hotkey: earned(facts, place, cut) for place in facts.places}
    by_rank = ranks({hotkey: sum(parts) for hotkey, parts in paid.items()})
    old = {row.hotkey: row.rank for row in before.hotkeys} if before else {}
    weights = weights_received(facts)
    rows = tuple(
        Row(
            uid=place.uid,
            hotkey=place.hotkey,
            is_owners=place.is_owners,
            is_replaced=place.is_replaced,
            stake_rao=place.stake_after_rao,
            weight=round(weights[place.uid], WEIGHT_DIGITS),
            incentive=_rounded(place.incentive),
            consensus=_rounded(place.consensus),
            trust=_rounded(place.trust),
            dividends=_rounded(place.dividends),
            miner_rao=paid[place.hotkey][0],
            validator_rao=paid[place.hotkey][1],
            earned_rao=sum(paid[place.hotkey]),
            rank=by_rank[place.hotkey],
            rank_change=old[place.hotkey] - by_rank[place.hotkey] if place.hotkey in old else None,
        )
        for place in facts.places
    )
    miners, validators = sum(row.miner_rao for row in rows), sum(row.validator_rao for row in rows)
    return EpochReport(
        netuid=facts.netuid,
        epoch=facts.epoch,
        block=facts.block,
        first_block=facts.previous_block + 1,
        owner_hotkey=facts.owner_hotkey,
        created_rao=created,
        owner_cut_rao=cut,
        miners_rao=miners,
        validators_rao=validators,
        burned_rao=created - cut - miners - validators,
        hotkeys=rows,
        left=tuple(hotkey for hotkey in old if hotkey not in paid),
    )


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, WEIGHT_DIGITS)


def only(found: EpochReport, hotkey: Hotkey) -> EpochReport:
    """The report with the row of one hotkey; the subnet's totals stay."""
    rows = tuple(row for row in found.hotkeys if row.hotkey == hotkey)
    return replace(found, hotkeys=rows, left=tuple(gone for gone in found.left if gone == hotkey), followed=hotkey)


def as_json(found: EpochReport | Missed) -> Iterable[dict[str, Any]]:
    """One object per epoch."""
    if isinstance(found, Missed):
        for epoch in range(found.first, found.last + 1):
            yield {"netuid": found.netuid, "epoch": epoch, "missed": True}
    else:
        fields = asdict(found)
        rows, left = fields.pop("hotkeys"), fields.pop("left")
        yield {**fields, "burned_share": round(found.burned_share, WEIGHT_DIGITS), "hotkeys": rows, "left": left}
