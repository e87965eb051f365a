"""The table of calls that the chain executes, and sudo, which executes one of them as root.

A call that the tables declare but nobody here handles fails as `System.CallFiltered`, like one that a real runtime
filters.

Source: FRAME's RuntimeCall dispatch; pallet_sudo.
"""

from __future__ import annotations

from typing import Any

from subnet.localnet.devchain import (
    pallet_admin,
    pallet_balances,
    pallet_commitments,
    pallet_shield,
    pallet_staking,
    pallet_subtensor,
)
from subnet.localnet.devchain.dispatch import Call, Context, DispatchError, Handler, module_error
from subnet.localnet.devchain.extrinsics import blake2_256


def remark(context: Context, remark: Any) -> None:
    """Does nothing but be in the block."""


def remark_with_event(context: Context, remark: Any) -> None:
    digest = "0x" + blake2_256(context.encoded_arguments.octets()).hex()
    context.emit("System", "Remarked", {"sender": context.who, "hash": digest})


def sudo(context: Context, call: Any) -> None:
    """The outer call succeeds even if the inner one fails; the event carries the inner result."""
    if context.signer is None or context.signer != context.state.get("Sudo", "Key"):
        raise module_error("Sudo", "RequireSudo")
    inner = Context(context.state, context.rules, context.block, None, context.encoded_arguments.rest())
    result: Any = {"Ok": None}
    try:
        dispatch(inner, Call.from_decoded(call))
    except DispatchError as error:
        result = {"Err": error.value}
    context.events += inner.events
    context.emit("Sudo", "Sudid", {"sudo_result": result})


HANDLERS: dict[str, dict[str, Handler]] = {
    "System": {"remark": remark, "remark_with_event": remark_with_event},
    "Balances": pallet_balances.CALLS,
    "SubtensorModule": {**pallet_subtensor.CALLS, **pallet_staking.CALLS},
    "Commitments": pallet_commitments.CALLS,
    "AdminUtils": pallet_admin.CALLS,
    "MevShield": pallet_shield.CALLS,
    "Sudo": {"sudo": sudo},
}

PAID_BY_OWNER = {("SubtensorModule", name) for name in pallet_subtensor.PAID_BY_OWNER} | {
    ("Commitments", "set_commitment")
}


def dispatch(context: Context, call: Call) -> None:
    """Runs a call; on DispatchError neither its writes nor its events remain."""
    handler = HANDLERS.get(call.pallet, {}).get(call.name)
    if handler is None:
        raise module_error("System", "CallFiltered")
    num_events = len(context.events)
    try:
        with context.state.transaction():
            handler(context, **call.arguments)
    except DispatchError:
        del context.events[num_events:]
        raise
