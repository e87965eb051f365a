"""What clients read about stake and its price through `state_call`.

Pure functions of a storage view. Amounts swap one for one (see pallet_staking), nothing is locked.

Source: StakeInfoRuntimeApi and SwapRuntimeApi of spec 461 as tables_apis declares them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from subnet.localnet.devchain import subnets
from subnet.localnet.devchain.pallet_staking import PRICE_RAO, position_rao
from subnet.localnet.devchain.state import View
from subnet.localnet.devchain.subnets import read


def stake_info(view: View, hotkey: str, coldkey: str, netuid: int) -> dict[str, Any]:
    uid = read(view, "Uids", netuid, hotkey)
    return {
        "hotkey": hotkey,
        "coldkey": coldkey,
        "netuid": netuid,
        "stake": position_rao(view, netuid, hotkey, coldkey),
        "locked": 0,
        "emission": 0 if uid is None else read(view, "Emission", netuid)[uid],
        "tao_emission": 0,
        "drain": 0,
        "is_registered": uid is not None,
    }


def get_stake_info_for_hotkey_coldkey_netuid(
    view: View, hotkey: str, coldkey: str, netuid: int
) -> dict[str, Any] | None:
    return stake_info(view, hotkey, coldkey, netuid)


def get_stake_info_for_coldkey(view: View, coldkey: str) -> list[dict[str, Any]]:
    """Positions above zero."""
    hotkeys = read(view, "StakingHotkeys", coldkey)
    infos = [stake_info(view, hotkey, coldkey, netuid) for hotkey in hotkeys for netuid in subnets.netuids(view)]
    return [info for info in infos if info["stake"]]


def get_stake_info_for_coldkeys(view: View, coldkeys: list[str]) -> list[tuple[str, list[dict[str, Any]]]]:
    return [(coldkey, get_stake_info_for_coldkey(view, coldkey)) for coldkey in coldkeys]


def get_stake_availability_for_coldkeys(
    view: View, coldkeys: list[str], wanted: list[int] | None
) -> dict[str, dict[int, dict[str, int]]]:
    def available(coldkey: str, netuid: int) -> dict[str, int]:
        infos = get_stake_info_for_coldkey(view, coldkey)
        total = sum(info["stake"] for info in infos if info["netuid"] == netuid)
        return {"total": total, "locked": 0, "available": total}

    netuids = subnets.netuids(view) if wanted is None else wanted
    return {coldkey: {netuid: available(coldkey, netuid) for netuid in netuids} for coldkey in coldkeys}


def get_root_basket_owed(view: View, coldkey: str) -> int:
    """Nothing: there is no root subnet."""
    return 0


def current_alpha_price_all(view: View) -> list[dict[str, int]]:
    return [{"netuid": netuid, "price": PRICE_RAO} for netuid in subnets.netuids(view)]


def current_alpha_price(view: View, netuid: int) -> int:
    return PRICE_RAO


def swapped(tao: int, alpha: int) -> dict[str, int]:
    return {
        "tao_amount": tao, "alpha_amount": alpha, "tao_fee": 0, "alpha_fee": 0, "tao_slippage": 0, "alpha_slippage": 0,
    }  # fmt: skip


def sim_swap_tao_for_alpha(view: View, netuid: int, tao: int) -> dict[str, int]:
    return swapped(tao, tao)


def sim_swap_alpha_for_tao(view: View, netuid: int, alpha: int) -> dict[str, int]:
    return swapped(alpha, alpha)


METHODS: dict[tuple[str, str], Callable[..., Any]] = {
    ("StakeInfoRuntimeApi", "get_stake_info_for_coldkey"): get_stake_info_for_coldkey,
    ("StakeInfoRuntimeApi", "get_stake_info_for_coldkeys"): get_stake_info_for_coldkeys,
    ("StakeInfoRuntimeApi", "get_stake_info_for_hotkey_coldkey_netuid"): get_stake_info_for_hotkey_coldkey_netuid,
    ("StakeInfoRuntimeApi", "get_stake_availability_for_coldkeys"): get_stake_availability_for_coldkeys,
    ("BetaBasketRuntimeApi", "get_root_basket_owed"): get_root_basket_owed,
    ("SwapRuntimeApi", "current_alpha_price_all"): current_alpha_price_all,
    ("SwapRuntimeApi", "current_alpha_price"): current_alpha_price,
    ("SwapRuntimeApi", "sim_swap_tao_for_alpha"): sim_swap_tao_for_alpha,
    ("SwapRuntimeApi", "sim_swap_alpha_for_tao"): sim_swap_alpha_for_tao,
}
