"""Stake that people move: TAO of a coldkey becomes alpha of a hotkey and back, one for one.

The subnets are those of the real chain's mechanism 0: no curve, no fee, a price that never moves. Staked TAO lies on
the subnet's own account, which SubnetTAO mirrors; alpha that an epoch created can be sold only while TAO is there, so
that no TAO comes from nothing. Whoever may stake on any hotkey. What other coldkeys than the owner put there is kept
per coldkey and does not grow: the owner keeps all rewards (a take of 100 %), there are no shares and no root.

Invariants: `Balances.TotalIssuance` does not change; SubnetAlphaOut follows TotalHotkeyAlpha; permits and votes follow
at the next epoch. Source: `validate_add_stake`, `validate_remove_stake` of pallet_subtensor by behaviour and order.
"""

from __future__ import annotations

from subnet.localnet.devchain import subnets
from subnet.localnet.devchain.dispatch import Context, Handler, subtensor_error
from subnet.localnet.devchain.pallet_balances import EXISTENTIAL_DEPOSIT_RAO, free_rao, set_free
from subnet.localnet.devchain.state import View
from subnet.localnet.devchain.subnets import PALLET, pool_account, read

MIN_STAKE_RAO = 2_000_000
PRICE_RAO = 10**9  # TAO per alpha, always
NO_LIMIT = (1 << 64) - 1
FRACTION_BITS = 64  # of a U64F64


def others_rao(view: View, netuid: int, hotkey: str, coldkey: str | None = None) -> int:
    """Alpha that ``coldkey``, or everyone but the owner together, put on a hotkey."""
    keys = ("Alpha", hotkey, coldkey, netuid) if coldkey is not None else ("TotalHotkeyShares", hotkey, netuid)
    return int(read(view, *keys)["bits"]) >> FRACTION_BITS


def position_rao(view: View, netuid: int, hotkey: str, coldkey: str) -> int:
    """A coldkey's alpha on a hotkey; the owner's is all that isn't others'."""
    if subnets.owner_of(view, hotkey) != coldkey:
        return others_rao(view, netuid, hotkey, coldkey)
    return max(0, subnets.stake_rao(view, netuid, hotkey) - others_rao(view, netuid, hotkey))


def move(context: Context, netuid: int, hotkey: str, rao: int) -> None:
    """``rao`` of TAO into alpha, or out of it where negative; all checks are done."""
    state, coldkey = context.state, context.who
    pool = pool_account(netuid)
    set_free(state, coldkey, free_rao(state, coldkey) - rao)
    set_free(state, pool, free_rao(state, pool) + rao)
    state.put(PALLET, "SubnetTAO", free_rao(state, pool), netuid)
    subnets.add_stake(state, netuid, hotkey, rao)
    subnets.change_alpha_out(state, netuid, rao)
    if subnets.owner_of(state, hotkey) != coldkey:
        for keys in (("Alpha", hotkey, coldkey, netuid), ("TotalHotkeyShares", hotkey, netuid)):
            held = int(read(state, *keys)["bits"]) + (rao << FRACTION_BITS)
            state.put(PALLET, keys[0], {"bits": held}, *keys[1:])
    staked_on = list(read(state, "StakingHotkeys", coldkey))
    if hotkey not in staked_on:
        state.put(PALLET, "StakingHotkeys", [*staked_on, hotkey], coldkey)
    event = "StakeAdded" if rao >= 0 else "StakeRemoved"
    context.emit(PALLET, event, [coldkey, hotkey, abs(rao), abs(rao), netuid, 0])


def stake(context: Context, netuid: int, hotkey: str, rao: int, most: int, allow_partial: bool) -> None:
    """most: what the limit of the price lets through"""
    state = context.state
    if not subnets.exists(state, netuid):
        raise subtensor_error("SubnetNotExists")
    if not read(state, "SubtokenEnabled", netuid):
        raise subtensor_error("SubtokenDisabled")
    if rao < MIN_STAKE_RAO:
        raise subtensor_error("AmountTooLow")
    if rao > most and not allow_partial:
        raise subtensor_error("SlippageTooHigh")
    rao = min(rao, most)
    if free_rao(state, context.who) - rao < EXISTENTIAL_DEPOSIT_RAO:
        raise subtensor_error("NotEnoughBalanceToStake")
    if subnets.owner_of(state, hotkey) is None:
        raise subtensor_error("HotKeyAccountNotExists")
    if rao < MIN_STAKE_RAO:
        raise subtensor_error("AmountTooLow")
    move(context, netuid, hotkey, rao)


def unstake(context: Context, netuid: int, hotkey: str, rao: int, most: int, allow_partial: bool) -> None:
    state = context.state
    if not subnets.exists(state, netuid):
        raise subtensor_error("SubnetNotExists")
    if rao == 0:
        raise subtensor_error("AmountTooLow")
    left = position_rao(state, netuid, hotkey, context.who) - rao
    if left < 0:
        raise subtensor_error("NotEnoughStakeToWithdraw")
    if left > 0 and rao < MIN_STAKE_RAO:
        raise subtensor_error("AmountTooLow")
    if rao > most and not allow_partial:
        raise subtensor_error("SlippageTooHigh")
    if subnets.owner_of(state, hotkey) is None:
        raise subtensor_error("HotKeyAccountNotExists")
    rao = min(rao, most)
    if rao > read(state, "SubnetTAO", netuid):
        raise subtensor_error("InsufficientLiquidity")
    move(context, netuid, hotkey, -rao)


def add_stake(context: Context, hotkey: str, netuid: int, amount_staked: int) -> None:
    stake(context, netuid, hotkey, amount_staked, NO_LIMIT, allow_partial=False)


def add_stake_limit(
    context: Context, hotkey: str, netuid: int, amount_staked: int, limit_price: int, allow_partial: bool
) -> None:
    most = NO_LIMIT if limit_price >= PRICE_RAO else 0
    stake(context, netuid, hotkey, amount_staked, most, allow_partial)


def remove_stake(context: Context, hotkey: str, netuid: int, amount_unstaked: int) -> None:
    """Without a limit the amount is cut down to what there is."""
    if not read(context.state, "SubtokenEnabled", netuid):
        raise subtensor_error("SubtokenDisabled")
    held = position_rao(context.state, netuid, hotkey, context.who)
    unstake(context, netuid, hotkey, min(amount_unstaked, held), NO_LIMIT, allow_partial=False)


def remove_stake_limit(
    context: Context, hotkey: str, netuid: int, amount_unstaked: int, limit_price: int, allow_partial: bool
) -> None:
    most = NO_LIMIT if limit_price <= PRICE_RAO else 0
    unstake(context, netuid, hotkey, amount_unstaked, most, allow_partial)


CALLS: dict[str, Handler] = {
    "add_stake": add_stake,
    "remove_stake": remove_stake,
    "add_stake_limit": add_stake_limit,
    "remove_stake_limit": remove_stake_limit,
}
