"""Signatures: what is kept of a request proves it later, however the sender spelled its headers."""

from __future__ import annotations

from pathlib import Path

import pytest
from bittensor.keyfiles import Keyfile, Keypair

from subnet.clock import Clock
from subnet.errors import ConfigError, Unauthorized
from subnet.net.auth import (
    ALLOWED_SKEW_S,
    MAX_AGE_S,
    Signer,
    Verifier,
    dev_signer,
    signer_from_wallet,
    verify_signature,
    verify_stamp,
)
from subnet.net.server import READ_TIMEOUT_S

A, B = dev_signer("//a"), dev_signer("//b")
TARGET, BODY = "/v1/commitment?round=1", b"body"


class SetClock:
    def __init__(self, now_s: float) -> None:
        self.value_s = now_s

    def now_s(self) -> float:
        return self.value_s


def headers_of(signer: Signer = A) -> dict[str, str]:
    return signer.headers("POST", TARGET, BODY, B.hotkey)


def test_a_stamp_proves_its_sender_for_ever_and_nothing_else() -> None:
    sender, stamp = Verifier(B.hotkey).verify(headers_of(), "POST", TARGET, BODY)
    assert sender == A.hotkey
    assert verify_stamp(A.hotkey, stamp, BODY)
    assert not verify_stamp(B.hotkey, stamp, BODY)
    assert not verify_stamp(A.hotkey, stamp, b"other")
    for change in ({"path": "/v1/commitment?round=2"}, {"method": "PUT"}, {"receiver": A.hotkey}, {"nonce": "1"}):
        assert not verify_stamp(A.hotkey, stamp.model_copy(update=change), BODY)
    for change in ({"nonce": "x"}, {"nonce": "٣"}, {"signature": "zz"}, {"signature": ""}, {"signature": "ab"}):
        assert not verify_stamp(A.hotkey, stamp.model_copy(update=change), BODY)


@pytest.mark.parametrize(
    "spell", [lambda nonce: f"+{nonce}", lambda nonce: f" 0{nonce} ", lambda nonce: f"1_{nonce[1:]}"]
)
def test_a_nonce_in_another_spelling_leaves_a_stamp_that_proves(spell: object) -> None:
    headers = headers_of()
    assert callable(spell)
    headers["X-Bittensor-Nonce"] = spell(headers["X-Bittensor-Nonce"])
    verifier = Verifier(B.hotkey)
    _, stamp = verifier.verify({name.lower(): value for name, value in headers.items()}, "POST", TARGET, BODY)
    assert verify_stamp(A.hotkey, stamp, BODY)
    with pytest.raises(Unauthorized):  # still the same nonce
        verifier.verify(headers, "POST", TARGET, BODY)


def test_nonces_differ_even_when_the_clock_stands_still() -> None:
    clock: Clock = SetClock(1_800_000_000.0)
    signer, verifier = Signer(Keypair.create_from_uri("//a"), clock), Verifier(B.hotkey, clock)
    for _ in range(3):
        verifier.verify(headers_of(signer), "POST", TARGET, BODY)


def test_a_slow_body_is_judged_by_when_its_headers_came() -> None:
    clock = SetClock(1_800_000_000.0)
    signer, verifier = Signer(Keypair.create_from_uri("//a"), clock), Verifier(B.hotkey, clock)
    headers, came_s = headers_of(signer), clock.value_s
    clock.value_s += READ_TIMEOUT_S
    with pytest.raises(Unauthorized, match="Stale"):
        verifier.verify(headers, "POST", TARGET, BODY)
    verifier.verify(headers, "POST", TARGET, BODY, at_s=came_s)
    with pytest.raises(Unauthorized, match="Replay"):
        verifier.verify(headers, "POST", TARGET, BODY, at_s=came_s)


def test_nonces_are_remembered_for_as_long_as_a_replay_could_pass() -> None:
    retention_s = Verifier(B.hotkey)._seen.retention
    assert retention_s >= MAX_AGE_S + ALLOWED_SKEW_S + READ_TIMEOUT_S


def test_plain_signatures() -> None:
    signature = A.sign(b"document")
    assert verify_signature(A.hotkey, b"document", signature)
    assert not verify_signature(A.hotkey, b"Document", signature)
    assert not verify_signature(B.hotkey, b"document", signature)
    for bad in ("", "zz", signature[:-2], signature + "00"):
        assert not verify_signature(A.hotkey, b"document", bad)


def test_a_wallet_on_disk(tmp_path: Path) -> None:
    file = tmp_path / "cold" / "hotkeys" / "hot"
    Keyfile(str(file)).set_keypair(Keypair.create_from_uri("//a"), encrypt=False)
    assert signer_from_wallet("cold", "hot", tmp_path).hotkey == A.hotkey
    with pytest.raises(ConfigError, match="none"):
        signer_from_wallet("cold", "none", tmp_path)
