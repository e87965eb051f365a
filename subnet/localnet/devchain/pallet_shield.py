"""The MEV shield: transactions that travel encrypted and come to light in the block that contains them.

Every block moves the author's keys on by one place, NextKey to PendingKey to CurrentKey. A client encrypts a signed
transaction to NextKey and sends it inside `submit_encrypted`, the carrier. Carrying always succeeds; what it carried
enters the pool behind it, as a transaction like any other, and usually the same block. What cannot be opened, was
sealed for a forgotten key or is no valid transaction is dropped, and only its absence tells.

Not here: the queue of `store_encrypted`, key announcements by several authors (there is one).
Source: pallet_shield of the real runtime by behaviour.
"""

from __future__ import annotations

from typing import Any

from subnet.localnet.devchain import shield
from subnet.localnet.devchain.dispatch import CALL_INDEX_BYTES, Context, Handler
from subnet.localnet.devchain.extrinsics import Extrinsic, blake2_256
from subnet.localnet.devchain.scale import Reader, octets
from subnet.localnet.devchain.shield import KEY_BLOCKS, key_of_period, opened
from subnet.localnet.devchain.state import State

PALLET = "MevShield"

# Where the key that was announced this many blocks ago stands now, and for how many blocks from now it may be used.
PLACES = {"NextKey": (1, 3), "PendingKey": (2, 2), "CurrentKey": (3, None)}


def announce(state: State, block: int) -> None:
    """The rotation that a block's author makes in the real chain's inherent."""
    for item, (age, lifetime) in PLACES.items():
        if block < age:
            continue
        key, public = state.codec.key(PALLET, item, ()), key_of_period((block - age) // KEY_BLOCKS).public
        if state.raw(key) != octets(public):
            state.write(key, octets(public))
        if lifetime is not None:
            state.put(PALLET, f"{item}ExpiresAt", block + lifetime)


def submit_encrypted(context: Context, ciphertext: Any) -> None:
    sender = context.state.codec.runtime.encode("AccountId32", context.who)
    digest = blake2_256(bytes(sender) + context.encoded_arguments.rest())
    context.emit(PALLET, "EncryptedSubmitted", {"id": "0x" + digest.hex(), "who": context.who})


def hidden(carrier: Extrinsic, block: int) -> bytes | None:
    """The transaction that a carrier in this block carries; None where there is none to be found."""
    envelope = shield.parse(Reader(carrier.call_bytes[CALL_INDEX_BYTES:]).octets())
    if envelope is None:
        return None
    periods = {(block - age) // KEY_BLOCKS for age, _ in PLACES.values() if block >= age}
    keys = [key for key in map(key_of_period, sorted(periods)) if key.key_hash == envelope.key_hash]
    return opened(envelope, keys[0]) if keys else None


CALLS: dict[str, Handler] = {"submit_encrypted": submit_encrypted}
