"""Who sent a request: btauth/1 (``bittensor.http_auth``) for requests, plain sr25519 for records.

Not here: whether that sender may do what it asks (the handlers decide).
Invariants: the signature is checked before anything is parsed; it covers method, target, body, nonce and receiver; a
request is accepted once; a private key never leaves its ``Signer``.
Source: design.md section 9; bittensor-v11.md section 4.3.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bittensor import http_auth
from bittensor.keyfiles import Keyfile, Keypair

from subnet.clock import Clock, WallClock
from subnet.errors import ConfigError, Unauthorized
from subnet.records import AuthStamp
from subnet.types import Hotkey

SR25519 = 1  # crypto type of every hotkey on the chain
MAX_AGE_S = 10.0  # btauth/1's own window
ALLOWED_SKEW_S = 2.0
# Versions from 11.3.2 on want the crypto type from our side instead of from the header.
_EXPECTED: dict[str, Any] = (
    {"expected_crypto_type": SR25519}
    if "expected_crypto_type" in inspect.signature(http_auth.verify).parameters
    else {}
)


class Signer:
    """Signs with one hotkey."""

    def __init__(self, keypair: Any, clock: Clock | None = None) -> None:
        self._keypair = keypair
        self._clock = clock or WallClock()
        self.hotkey = Hotkey(keypair.ss58_address)
        self._last_nonce = 0

    def headers(self, method: str, target: str, body: bytes, receiver: Hotkey) -> dict[str, str]:
        """Headers of one request; each call has a nonce of its own."""
        self._last_nonce = max(int(self._clock.now_s() * 1e9), self._last_nonce + 1)
        signed: dict[str, str] = http_auth.sign(
            self._keypair, method=method, path=target, body=body, receiver_ss58=receiver, nonce_ns=self._last_nonce
        )
        return signed

    def stamp(self, method: str, target: str, body: bytes, receiver: Hotkey) -> AuthStamp:
        """What the receiver of such a request would keep of it."""
        headers = self.headers(method, target, body, receiver)
        nonce, signature = headers[http_auth.HEADER_NONCE], headers[http_auth.HEADER_SIGNATURE]
        return AuthStamp(nonce=nonce, signature=signature, method=method, path=target, receiver=receiver)

    def sign(self, data: bytes) -> str:
        """Signature of ``data`` as hex."""
        return bytes(self._keypair.sign(data)).hex()


class Verifier:
    """Checks requests made for one hotkey."""

    def __init__(self, hotkey: Hotkey, clock: Clock | None = None) -> None:
        self.hotkey = hotkey
        self._clock = clock or WallClock()
        self._seen = http_auth.InMemoryNonceStore()

    def now_s(self) -> float:
        """The clock that freshness is judged by."""
        return self._clock.now_s()

    def verify(
        self, headers: Mapping[str, str], method: str, target: str, body: bytes, *, at_s: float | None = None
    ) -> tuple[Hotkey, AuthStamp]:
        """The sender and what must be kept to prove it later; raises ``Unauthorized``.

        ``at_s`` is when the headers came (now, if None): a body may take longer than the freshness window. It must lie
        less than the nonce store's retention minus that window in the past.
        """
        instant_s = self._clock.now_s() if at_s is None else at_s
        lowered = {name.lower(): value for name, value in headers.items()}  # of a header sent twice, the last counts
        try:
            caller = http_auth.verify(
                lowered,
                body,
                method=method,
                path=target,
                self_hotkey_ss58=self.hotkey,
                max_age=MAX_AGE_S,
                allowed_skew=ALLOWED_SKEW_S,
                nonce_store=self._seen,
                now_ns=int(instant_s * 1e9),
                **_EXPECTED,
            )
        except http_auth.AuthError as error:
            raise Unauthorized(f"The request's signature was refused: {type(error).__name__}.") from None
        if caller.crypto_type != SR25519:
            raise Unauthorized("Requests must be signed with an sr25519 hotkey.")
        # The nonce as a number again: btauth signs it so, and the header might spell it another way.
        signature = lowered[http_auth.HEADER_SIGNATURE.lower()]
        return Hotkey(caller.hotkey_ss58), AuthStamp(
            nonce=str(caller.nonce_ns), signature=signature, method=method, path=target, receiver=self.hotkey
        )


def _holds(hotkey: str, data: bytes, signature_hex: str) -> bool:
    try:
        signature = bytes.fromhex(signature_hex.removeprefix("0x"))
        return bool(Keypair(ss58_address=hotkey).verify(data, signature))
    except (ValueError, TypeError):
        return False


def verify_signature(hotkey: Hotkey, data: bytes, signature_hex: str) -> bool:
    """Whether ``hotkey`` signed ``data``."""
    return _holds(hotkey, data, signature_hex)


def verify_stamp(author: Hotkey, stamp: AuthStamp, body: bytes) -> bool:
    """Whether ``author`` once sent ``body`` in the request that ``stamp`` describes."""
    if not (stamp.nonce.isascii() and stamp.nonce.isdigit()):
        return False
    payload = http_auth.build_payload(
        scheme="sr25519",
        method=stamp.method,
        path=stamp.path,
        body=body,
        nonce_ns=int(stamp.nonce),
        sender_ss58=author,
        receiver_ss58=stamp.receiver,
    )
    return _holds(author, payload, stamp.signature)


def dev_signer(uri: str) -> Signer:
    """A signer from a development key such as ``//miner-1``."""
    return Signer(Keypair.create_from_uri(uri))


def signer_from_wallet(name: str, hotkey: str, path: Path) -> Signer:
    """The hotkey of a wallet on disk; raises ``ConfigError`` that names the file."""
    file = path / name / "hotkeys" / hotkey
    if not file.is_file():
        raise ConfigError(
            f"There is no hotkey at {file}.",
            remedy="Create it with btcli, or name another by --wallet.name, --wallet.hotkey and --wallet.path.",
        )
    return Signer(Keyfile(str(file), name=hotkey).get_keypair())
