"""Opens sealed weights when their epoch has come: the chain's half of commit-reveal.

A commit is bound to a drand round whose signature does not exist yet when it is made. Offline there is no beacon, so
commits open only for the rounds whose published signatures the chain's rules carry; others are dropped at their
epoch, as the real chain drops what it cannot open. A revealed vote passes the same checks as a plain one.

Source: commit-reveal v4 of pallet_subtensor; payload = hotkey, uids, weights (vectors), version key (u64).
"""

from __future__ import annotations

import bittensor_core as core

from subnet.localnet.devchain.dispatch import Context, DispatchError
from subnet.localnet.devchain.pallet_subtensor import check_stake, check_vote, store_weights
from subnet.localnet.devchain.scale import Reader
from subnet.localnet.devchain.sealed import ITEM, SS58_FORMAT, Commit, commits
from subnet.localnet.devchain.subnets import PALLET, read

PUBLIC_KEY_BYTES = 32


def opened(sealed: bytes, signature: str) -> tuple[bytes, list[int], list[int], int] | None:
    """hotkey, uids, weights, version key; None where the bytes are not such a payload under that round."""
    try:
        reader = Reader(bytes(core.decrypt_with_signature(sealed, signature)))
        return reader.octets(), reader.integers(2), reader.integers(2), reader.integer(8)
    except ValueError:
        return None


def reveal_one(context: Context, netuid: int, commit: Commit) -> bool:
    signature = context.rules.drand_signatures.get(commit.reveal_round)
    payload = opened(commit.sealed, signature) if signature is not None else None
    uid = read(context.state, "Uids", netuid, commit.hotkey)
    if payload is None or uid is None:
        return False
    public_key, dests, weights, version_key = payload
    if len(public_key) != PUBLIC_KEY_BYTES:
        return False
    if core.encode_ss58(public_key, SS58_FORMAT) != commit.hotkey or version_key < read(
        context.state, "WeightsVersionKey", netuid
    ):
        return False
    if len(dests) != len(weights):
        return False
    try:
        check_stake(context, netuid)
        check_vote(context, netuid, uid, dests, weights)
    except DispatchError:
        return False
    store_weights(context, netuid, uid, dests, weights)
    return True


def reveal(context: Context, netuid: int) -> None:
    """Every commit that is RevealPeriodEpochs old or older is opened or dropped."""
    state = context.state
    due = read(state, "SubnetEpochIndex", netuid) - read(state, "RevealPeriodEpochs", netuid)
    for epoch in range(max(0, due - 1), due + 1):
        waiting = commits(state, netuid, epoch)
        for commit in waiting:
            signed = Context(state, context.rules, context.block, commit.hotkey)
            if reveal_one(signed, netuid, commit):
                context.emit(PALLET, "TimelockedWeightsRevealed", [netuid, commit.hotkey])
        if waiting:
            state.remove(PALLET, ITEM, netuid, epoch)
