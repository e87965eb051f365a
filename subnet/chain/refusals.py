"""What the chain's refusals mean to us: which of them pass, and what to do about the others.

Not here: how they reach us (``live``, ``memory``). Invariant: a refusal of the call is never retryable, one of the
moment always is, and a lost connection is neither, whatever its text says.
Source: error names of pallet_subtensor and of the transaction pool; classes of the SDK (bittensor-v11.md, section 1.3).
"""

from __future__ import annotations

from subnet.errors import ChainError, ChainNotNow, ChainRefused, ChainUnreachable

PASSING_KINDS = frozenset({"rate_limited", "too_early", "expired"})
# The pool let go of a transaction, or had no room for it: sent again it may go through.
PASSING_NAMES = frozenset(
    {
        "AlreadyImported",
        "CommitQueueFull",
        "Dropped",
        "ExhaustsResources",
        "FinalityTimeout",
        "Invalid",
        "PriorityTooLow",
        "Retracted",
        "Usurped",
    }
)
# The SDK reports these as the outcome of a transaction whose fate nobody knows.
LOST_CONNECTION = ("Connection lost", "Connection dropped")

REMEDIES = {
    "already_exists": "Nothing needs to be done.",
    "insufficient_balance": "Top up: the coldkey pays fees, and a validator's hotkey needs stake.",
    "invalid_argument": "Run the version of Liquid that the subnet's owner announces.",
    "not_authorized": "Check that this is the right wallet, and for weights that it has a validator permit.",
    "not_registered": "Register the hotkey: btcli subnets register --netuid NETUID.",
}


def refusal(what: str, name: str, kind: str, message: str = "") -> ChainError:
    """The error for ``what`` was refused under ``name`` (may be empty), of the SDK's class ``kind``."""
    if not name and message.startswith(LOST_CONNECTION):
        return ChainUnreachable(f"{what}: {message}")
    text = f"{what}: {name or message}."
    if kind in PASSING_KINDS or name in PASSING_NAMES:
        return ChainNotNow(text, name=name, kind=kind)
    return ChainRefused(text, name=name, kind=kind, remedy=REMEDIES.get(kind))
