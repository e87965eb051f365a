"""Signed transactions: decoding, verification, and the pool in which they wait for a block.

A transaction is accepted if its signature covers this chain's genesis, the block at which its validity began and the
exact bytes of its call; if its nonce is not used up; and if somebody can pay for it. A nonce ahead of the account's
waits. The pool is bounded and holds one transaction per account and nonce.

Source: extrinsic format version 4; error codes of substrate's `author` RPC (1010, 1012 to 1016) and
`InvalidTransaction`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import bittensor_core as core

from subnet.localnet.devchain.dispatch import CALL_INDEX_BYTES, Call
from subnet.localnet.devchain.scale import Reader
from subnet.localnet.devchain.shield import parse

SIGNED_V4 = 0x84
POOL_LIMIT = 8192  # transactions; substrate's default for ready ones
MAX_EXTRINSIC_BYTES = 1 << 20
MAX_SHIELDED_PER_BLOCK = 8  # opening one takes about twenty milliseconds; the others wait for the next block


class InvalidTransaction(Exception):
    """The pool refuses a transaction. code, message and data are those of the JSON-RPC error."""

    def __init__(self, data: str | None, code: int = 1010, message: str = "Invalid Transaction") -> None:
        super().__init__(data or message)
        self.code = code
        self.message = message
        self.data = data


BAD_PROOF = "Transaction has a bad signature"
STALE = "Transaction is outdated"
UNDECODABLE = "Transaction dispatch is mandatory; transactions must not be validated."
OLD_BIRTH = "Transaction has an ancient birth block"
BAD_SHIELD = "Custom error: 23"  # CustomTransactionError::FailedShieldedTxParsing
CANNOT_PAY = "Inability to pay some fees (e.g. account balance too low)"


def blake2_256(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=32).digest()


@dataclass(frozen=True)
class Extrinsic:
    """A decoded transaction. era: (period, phase) in blocks, or None for one that never expires"""

    raw: bytes
    signer: str
    nonce: int
    tip: int
    era: tuple[int, int] | None
    signature: bytes
    crypto_type: int
    call: Call
    call_bytes: bytes

    @property
    def hash(self) -> str:
        return "0x" + blake2_256(self.raw).hex()

    @property
    def is_shielded(self) -> bool:
        """Whether it is only the carrier of an encrypted one."""
        return (self.call.pallet, self.call.name) == ("MevShield", "submit_encrypted")

    def birth(self, current: int) -> int:
        """The block at which its validity began, seen from block ``current``."""
        if self.era is None:
            return 0
        period, phase = self.era
        return (max(current, phase) - phase) // period * period + phase

    def last_block(self, current: int) -> int | None:
        return None if self.era is None else self.birth(current) + self.era[0] - 1


def call_slice(raw: bytes) -> bytes:
    """The call's own bytes. Re-encoding the decoded call could differ."""
    reader = Reader(raw)
    if reader.compact() != len(raw) - reader.offset:
        raise ValueError("length prefix")
    if reader.integer(1) != SIGNED_V4 or reader.integer(1) != 0:
        raise ValueError("not a signed version 4 transaction by account id")
    reader.take(32)
    reader.take((64, 64, 65)[reader.integer(1)])
    if reader.integer(1):
        reader.integer(1)
    reader.compact()
    reader.compact()
    if reader.integer(1):
        raise ValueError("metadata hash is not checked by this chain")
    return reader.rest()


def parse_era(era: Any) -> tuple[int, int] | None:
    if era in (None, "00", "0x00"):
        return None
    period, phase = (era["period"], era["phase"]) if isinstance(era, dict) else era
    return int(period), int(phase)


CRYPTO_TYPES = {"Ed25519": core.CRYPTO_ED25519, "Sr25519": core.CRYPTO_SR25519}


def decode(runtime: core.Runtime, raw: bytes) -> Extrinsic:
    """Raises InvalidTransaction on anything but a signed transaction of this runtime."""
    try:
        call_bytes = call_slice(raw)
        decoded = runtime.decode_extrinsic(raw, True)
        signature = decoded["signature"]
        kind, text = next(iter(signature.items())) if isinstance(signature, dict) else ("Sr25519", signature)
        return Extrinsic(
            raw=raw,
            signer=decoded["address"],
            nonce=decoded["nonce"],
            tip=decoded["tip"],
            era=parse_era(decoded["era"]),
            signature=bytes.fromhex(text.removeprefix("0x")),
            crypto_type=CRYPTO_TYPES[kind],
            call=Call.from_decoded(decoded["call"]),
            call_bytes=call_bytes,
        )
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise InvalidTransaction(f"{type(error).__name__} while decoding", 1002, "Verification Error") from error


def verify(runtime: core.Runtime, extrinsic: Extrinsic, current: int, hash_at: Callable[[int], str | None]) -> None:
    """Raises InvalidTransaction unless the signature is good at block ``current``."""
    genesis = hash_at(0)
    birth = hash_at(extrinsic.birth(current))
    if genesis is None or birth is None:
        raise InvalidTransaction(OLD_BIRTH)
    era = "00" if extrinsic.era is None else {"period": extrinsic.era[0], "phase": extrinsic.era[1]}
    payload = runtime.signature_payload(
        extrinsic.call_bytes,
        era=era,
        nonce=extrinsic.nonce,
        tip=extrinsic.tip,
        tip_asset_id=None,
        genesis_hash=bytes.fromhex(genesis[2:]),
        era_block_hash=bytes.fromhex(birth[2:]),
    )
    if not core.verify(bytes(payload), extrinsic.signature, extrinsic.signer, extrinsic.crypto_type):
        raise InvalidTransaction(BAD_PROOF)
    if extrinsic.is_shielded and parse(Reader(extrinsic.call_bytes[CALL_INDEX_BYTES:]).octets()) is None:
        raise InvalidTransaction(BAD_SHIELD)


@dataclass(frozen=True)
class Waiting:
    """A pool entry. watcher: told what becomes of the transaction; last_block: the newest block that may contain it"""

    extrinsic: Extrinsic
    last_block: int | None
    watcher: Watcher | None


# Called with the status as `author_extrinsicUpdate` reports it.
Watcher = Callable[[Any], None]


class Pool:
    """Transactions by account and nonce, in order of arrival."""

    def __init__(self) -> None:
        self.waiting: dict[tuple[str, int], Waiting] = {}

    def add(self, entry: Waiting) -> None:
        key = (entry.extrinsic.signer, entry.extrinsic.nonce)
        present = self.waiting.get(key)
        if present is not None and present.extrinsic.raw == entry.extrinsic.raw:
            raise InvalidTransaction(entry.extrinsic.hash, 1013, "Transaction Already Imported")
        if present is not None:
            raise InvalidTransaction(None, 1014, "Priority is too low: the nonce is taken")
        if len(self.waiting) >= POOL_LIMIT:
            raise InvalidTransaction(None, 1016, "Immediately Dropped: the pool is full")
        self.waiting[key] = entry

    def next_nonce(self, who: str, nonce: int) -> int:
        """The first nonce from ``nonce`` on that no waiting transaction of ``who`` uses."""
        while (who, nonce) in self.waiting:
            nonce += 1
        return nonce

    def take_expired(self, number: int) -> list[Waiting]:
        """Removes what may no longer enter block ``number``."""
        expired = [
            entry for entry in self.waiting.values() if entry.last_block is not None and entry.last_block < number
        ]
        for entry in expired:
            del self.waiting[entry.extrinsic.signer, entry.extrinsic.nonce]
        return expired

    def take_ready(self, nonce_of: Callable[[str], int]) -> Iterator[Waiting]:
        """Yields and removes, until none is left, what the accounts' nonces allow now; older nonces too, as stale.

        What the caller adds in between is taken into account. At most MAX_SHIELDED_PER_BLOCK carriers come out.
        """
        progress, num_shielded = True, 0
        while progress:
            progress = False
            for key, entry in list(self.waiting.items()):
                if entry.extrinsic.nonce > nonce_of(entry.extrinsic.signer):
                    continue
                if entry.extrinsic.is_shielded:
                    if num_shielded == MAX_SHIELDED_PER_BLOCK:
                        continue
                    num_shielded += 1
                del self.waiting[key]
                progress = True
                yield entry
