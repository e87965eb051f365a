"""What happens to a subnet in every block and in every epoch: alpha is created, votes are counted, stake is paid.

Created alpha is split per block: OWNER_PERCENT to the owner, half of the rest to validators, what remains to miners. At
the epoch everything pending is paid to hotkeys' stake in whole rao. Invariant, after every block:
    SubnetAlphaOut == all TotalHotkeyAlpha + the three pending items + everything burnt so far
Burnt is what incentive gives to uids of the owner's, and what nobody is there to receive.

Source: emission split 41/41/18 and the order epoch, permits, pay as on the real chain; no root dividends, no takes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from subnet.localnet.devchain import sealed, subnets, yuma
from subnet.localnet.devchain.dispatch import Context
from subnet.localnet.devchain.reveals import reveal
from subnet.localnet.devchain.state import State, View
from subnet.localnet.devchain.subnets import PALLET, read

OWNER_PERCENT = 18
MEMORY = ("PendingServerEmission", "PendingValidatorEmission", "PendingOwnerCut")


@dataclass(frozen=True)
class Payment:
    """Where the alpha of one epoch went, in rao. created == sum(per_uid) + owner + burnt"""

    netuid: int
    created: int
    per_uid: tuple[int, ...]
    owner: int
    burnt: int


def split(rao: int) -> tuple[int, int, int]:
    """Miners, validators, owner; rounding falls to the miners."""
    owner = rao * OWNER_PERCENT // 100
    validators = (rao - owner) // 2
    return rao - owner - validators, validators, owner


def accrue(state: State, netuid: int, rao: int) -> None:
    """One block's alpha."""
    for item, part in zip(MEMORY, split(rao), strict=True):
        state.put(PALLET, item, read(state, item, netuid) + part, netuid)
    subnets.change_alpha_out(state, netuid, rao)


def is_due(state: View, netuid: int, block: int) -> bool:
    return bool(block - read(state, "LastEpochBlock", netuid) >= max(1, read(state, "Tempo", netuid)))


def rows(view: View, item: str, netuid: int, num_uids: int) -> yuma.FLOAT:
    """A sparse per-uid item as a matrix; entries for uids that don't exist are left out."""
    matrix_VN = np.zeros((num_uids, num_uids))
    for uid in range(num_uids):
        for column, value in read(view, item, netuid, uid):
            if column < num_uids:
                matrix_VN[uid, column] = value
    return matrix_VN


def ballot(view: View, netuid: int, block: int) -> yuma.Ballot:
    """Stake counts with a permit and recent weights; a vote for oneself or for a younger neuron counts nothing."""
    keys = subnets.hotkeys(view, netuid)
    num_uids = len(keys)
    last_update_N = np.array(read(view, "LastUpdate", netuid), dtype=np.int64)
    registered_N = np.array([read(view, "BlockAtRegistration", netuid, uid) for uid in range(num_uids)], dtype=np.int64)
    is_voter_N = np.array(read(view, "ValidatorPermit", netuid), dtype=bool)
    is_voter_N &= last_update_N + subnets.activity_cutoff_blocks(view, netuid) >= block
    stake_N = np.array([subnets.stake_rao(view, netuid, hotkey) for hotkey in keys], dtype=np.int64)
    weights_VN = rows(view, "Weights", netuid, num_uids)
    weights_VN[last_update_N[:, None] <= registered_N[None, :]] = 0.0
    if read(view, "CommitRevealWeightsEnabled", netuid):  # nobody judges who came after the oldest waiting commit
        oldest = sealed.oldest_block(view, netuid)
        for uid, hotkey in enumerate(keys):
            weights_VN[uid, registered_N > oldest.get(hotkey, block)] = 0.0
    owner_hotkey = read(view, "SubnetOwnerHotkey", netuid)
    for uid, hotkey in enumerate(keys):
        if hotkey != owner_hotkey:
            weights_VN[uid, uid] = 0.0
    return yuma.Ballot(
        stake_N=np.where(is_voter_N, stake_N, 0),
        weights_VN=np.where(is_voter_N[:, None], weights_VN, 0.0),
        bonds_VN=rows(view, "Bonds", netuid, num_uids),
        kappa_u16=read(view, "Kappa", netuid),
        bonds_moving_average=read(view, "BondsMovingAverage", netuid),
    )


def quantised(values: yuma.FLOAT) -> list[int]:
    return [int(value) for value in np.rint(np.clip(values, 0.0, 1.0) * yuma.U16_MAX)]


def store_outcome(state: State, netuid: int, outcome: yuma.Outcome, stake_N: yuma.INT) -> None:
    for item, values_N in (
        ("Consensus", outcome.consensus_N),
        ("Incentive", outcome.incentive_N),
        ("ValidatorTrust", outcome.validator_trust_N),
        ("Dividends", outcome.dividends_N),
    ):
        state.put(PALLET, item, quantised(values_N), netuid)
    for uid in np.flatnonzero(stake_N):
        bonds = [(column, bond) for column, bond in enumerate(quantised(outcome.bonds_VN[uid])) if bond]
        state.put(PALLET, "Bonds", bonds, netuid, int(uid))


def pay(context: Context, netuid: int, outcome: yuma.Outcome, stake_N: yuma.INT) -> Payment:
    """Without any incentive the miners' part goes the validators' way; without dividends that goes by stake."""
    state = context.state
    pending = [int(read(state, item, netuid)) for item in MEMORY]
    to_miners, to_validators, owner_cut = pending
    if not outcome.incentive_N.any():
        to_miners, to_validators = 0, to_miners + to_validators
    voting = outcome.dividends_N if outcome.dividends_N.any() else stake_N
    earned = yuma.apportion(to_miners, outcome.incentive_N)
    dividends = yuma.apportion(to_validators, voting)
    owner_coldkey, owner_hotkey = read(state, "SubnetOwner", netuid), read(state, "SubnetOwnerHotkey", netuid)
    paid = []
    for uid, hotkey in enumerate(subnets.hotkeys(state, netuid)):
        is_owners = hotkey == owner_hotkey or read(state, "Owner", hotkey) == owner_coldkey
        rewards = (0 if is_owners else earned[uid], dividends[uid])
        subnets.add_stake(state, netuid, hotkey, sum(rewards))
        paid.append(rewards)
    subnets.add_stake(state, netuid, owner_hotkey, owner_cut)
    for item in MEMORY:
        state.put(PALLET, item, 0, netuid)
    state.put(PALLET, "Emission", [one + other for one, other in zip(earned, dividends, strict=True)], netuid)
    emitted = {"netuid": netuid, "emissions": [incentive for incentive, _ in paid]}
    context.emit(PALLET, "IncentiveAlphaEmittedToMiners", emitted)
    per_uid = tuple(sum(rewards) for rewards in paid)
    created = sum(pending)
    return Payment(netuid, created, per_uid, owner_cut, created - owner_cut - sum(per_uid))


def run_epoch(context: Context, netuid: int) -> Payment:
    state, block = context.state, context.block
    reveal(context, netuid)
    votes = ballot(state, netuid, block)
    outcome = yuma.run(votes)
    store_outcome(state, netuid, outcome, votes.stake_N)
    payment = pay(context, netuid, outcome, votes.stake_N)
    cutoff = subnets.activity_cutoff_blocks(state, netuid)
    active = [last + cutoff >= block for last in read(state, "LastUpdate", netuid)]
    state.put(PALLET, "Active", active, netuid)
    subnets.update_permits(state, netuid)
    state.put(PALLET, "LastEpochBlock", block, netuid)
    state.put(PALLET, "BlocksSinceLastStep", 0, netuid)
    state.put(PALLET, "SubnetEpochIndex", read(state, "SubnetEpochIndex", netuid) + 1, netuid)
    return payment
