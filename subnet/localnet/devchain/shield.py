"""The MEV shield's envelope: a signed transaction, encrypted for the author of a coming block.

    key hash (twox128 of the public key) 16 | KEM length 2 | KEM ciphertext | nonce 24 | sealed bytes and tag

The seal is XChaCha20-Poly1305 under the secret that ML-KEM-768 encapsulates. Keys are derived from their period's
number, so that a chain that goes on after a restart opens what was sealed before it. They are therefore no secret at
all: this is the shield's protocol, not its protection. The libraries are loaded when the first key is made.

Source: `ShieldedTransaction` of stp-shield and pallet_shield by behaviour; FIPS 203; `encrypt_mlkem768` of the SDK.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import bittensor_core as core

from subnet.localnet.devchain.scale import Reader

KEY_HASH_BYTES = 16
NONCE_BYTES = 24
TAG_BYTES = 16
MAX_CIPHERTEXT_BYTES = 8192  # the bound of submit_encrypted's argument

# The real author makes a key for each of its blocks. Here a key takes over ten milliseconds to make, so one serves
# this many blocks.
KEY_BLOCKS = 50


@dataclass(frozen=True)
class Shielded:
    """An envelope taken apart, nothing verified."""

    key_hash: bytes
    kem: bytes
    nonce: bytes
    sealed: bytes


@dataclass(frozen=True)
class ShieldKey:
    """public: what clients encrypt to; key_hash: how envelopes name it"""

    public: bytes
    secret: bytes
    key_hash: bytes


def parse(ciphertext: bytes) -> Shielded | None:
    """None where the bytes are no envelope."""
    if len(ciphertext) > MAX_CIPHERTEXT_BYTES:
        return None
    reader = Reader(ciphertext)
    try:
        key_hash = reader.take(KEY_HASH_BYTES)
        kem = reader.take(reader.integer(2))
        return Shielded(key_hash, kem, reader.take(NONCE_BYTES), reader.rest())
    except ValueError:
        return None


@lru_cache(maxsize=8)
def key_of_period(period: int) -> ShieldKey:
    """The key of blocks ``period * KEY_BLOCKS`` and on."""
    from kyber_py.ml_kem import ML_KEM_768  # pure Python, and most chains never see a shielded transaction

    seed = hashlib.blake2b(b"liquid devchain shield %d" % period, digest_size=64).digest()
    public, secret = ML_KEM_768.key_derive(seed)
    key_hash = bytes(core.encrypt_mlkem768(public, b"", True))[:KEY_HASH_BYTES]  # the engine's own twox128
    return ShieldKey(public, secret, key_hash)


def opened(envelope: Shielded, key: ShieldKey) -> bytes | None:
    """The bytes inside; None where they are not sealed for this key or were changed."""
    from Crypto.Cipher import ChaCha20_Poly1305
    from kyber_py.ml_kem import ML_KEM_768

    body, tag = envelope.sealed[:-TAG_BYTES], envelope.sealed[-TAG_BYTES:]
    try:
        shared = ML_KEM_768.decaps(key.secret, envelope.kem)
        cipher = ChaCha20_Poly1305.new(key=shared, nonce=envelope.nonce)
        return bytes(cipher.decrypt_and_verify(body, tag))
    except ValueError:
        return None
