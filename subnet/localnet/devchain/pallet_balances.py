"""TAO balances: transfers, fees, and the total that always equals the sum over all accounts.

Fees and registration prices are burnt, so the total issuance falls by them. There are no reserves, holds or locks. An
account that falls below the existential deposit is only possible by `transfer_allow_death`; the dust is burnt with it.

Source: pallet_balances (order of checks, errors, events); amounts are rao, 1e-9 TAO.
"""

from __future__ import annotations

from typing import Any

from subnet.localnet.devchain.dispatch import Context, DispatchError, Handler, module_error
from subnet.localnet.devchain.state import State, View

EXISTENTIAL_DEPOSIT_RAO = 500  # Balances.ExistentialDeposit in the tables, as on the real chain
NEW_ACCOUNT = {"nonce": 0, "consumers": 0, "providers": 1, "sufficients": 0}
NO_MONEY = {"free": 0, "reserved": 0, "frozen": 0, "flags": 0}


def account(view: View, who: str) -> dict[str, Any]:
    stored: dict[str, Any] = view.get("System", "Account", who)
    return stored


def free_rao(view: View, who: str) -> int:
    return int(account(view, who)["data"]["free"])


def set_free(state: State, who: str, rao: int) -> None:
    record = account(state, who)
    record["data"] = {**record["data"], "free": rao}
    state.put("System", "Account", {**record, "providers": 1}, who)


def bump_nonce(state: State, who: str) -> None:
    record = account(state, who)
    state.put("System", "Account", {**record, "nonce": record["nonce"] + 1}, who)


def change_issuance(state: State, rao: int) -> None:
    state.put("Balances", "TotalIssuance", state.get("Balances", "TotalIssuance") + rao)


def endow(state: State, who: str, rao: int) -> None:
    """Create ``rao`` on an account."""
    set_free(state, who, free_rao(state, who) + rao)
    change_issuance(state, rao)


def burn(state: State, who: str, rao: int) -> bool:
    """Destroy ``rao`` of an account; False, and nothing done, if it holds less."""
    left = free_rao(state, who) - rao
    if left < 0:
        return False
    set_free(state, who, left)
    change_issuance(state, -rao)
    return True


def transfer(context: Context, dest: str, rao: int, keep_alive: bool) -> None:
    state, who = context.state, context.who
    left = free_rao(state, who) - rao
    if left < 0:
        raise DispatchError({"Token": "FundsUnavailable"}, "Token.FundsUnavailable")
    if keep_alive and left < EXISTENTIAL_DEPOSIT_RAO:
        raise DispatchError({"Token": "NotExpendable"}, "Token.NotExpendable")
    if dest != who:
        received = free_rao(state, dest) + rao
        if received < EXISTENTIAL_DEPOSIT_RAO:
            raise DispatchError({"Token": "BelowMinimum"}, "Token.BelowMinimum")
        set_free(state, who, left)
        set_free(state, dest, received)
        if left < EXISTENTIAL_DEPOSIT_RAO:
            burn(state, who, left)
    context.emit("Balances", "Transfer", {"from": who, "to": dest, "amount": rao})


def transfer_allow_death(context: Context, dest: str, value: int) -> None:
    transfer(context, dest, value, keep_alive=False)


def transfer_keep_alive(context: Context, dest: str, value: int) -> None:
    transfer(context, dest, value, keep_alive=True)


def transfer_all(context: Context, dest: str, keep_alive: bool) -> None:
    kept = EXISTENTIAL_DEPOSIT_RAO if keep_alive else 0
    rao = free_rao(context.state, context.who) - kept
    if rao <= 0:
        raise module_error("Balances", "InsufficientBalance")
    transfer(context, dest, rao, keep_alive)


CALLS: dict[str, Handler] = {
    "transfer_allow_death": transfer_allow_death,
    "transfer_keep_alive": transfer_keep_alive,
    "transfer_all": transfer_all,
}
