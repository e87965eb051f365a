"""The MEV shield of the development chain: what a carrier brings to light, and what it doesn't."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import bittensor_core as core
import pytest
from hypothesis import given
from hypothesis import strategies as st

from subnet.localnet.devchain import shield
from subnet.localnet.devchain.chain import DevChain
from subnet.localnet.devchain.extrinsics import MAX_SHIELDED_PER_BLOCK, InvalidTransaction
from subnet.localnet.devchain.shield import KEY_BLOCKS, key_of_period
from tests.unit.devchain_actors import (
    BOB,
    DAVE,
    OTHER,
    Key,
    assert_nothing_lost,
    free,
    new_chain,
    outcome,
    read,
    register,
    transfer,
)


def public_key(chain: DevChain, item: str = "NextKey") -> bytes:
    raw = chain.state.raw(chain.state.codec.key("MevShield", item, ()))
    assert raw is not None
    return bytes(raw[2:])  # behind the compact length


def carrier(ciphertext: bytes) -> tuple[str, str, dict[str, Any]]:
    return "MevShield", "submit_encrypted", {"ciphertext": list(ciphertext)}


def sealed(chain: DevChain, inner: bytes) -> tuple[str, str, dict[str, Any]]:
    return carrier(bytes(core.encrypt_mlkem768(public_key(chain), inner, True)))


def events(chain: DevChain) -> list[str]:
    return [record["event_id"] for record in chain.state.get("System", "Events")]


def test_the_inner_transaction_is_in_the_carriers_block() -> None:
    chain = new_chain()
    chain.produce()
    before = free(chain, BOB)
    inner = BOB.signed(chain, register(OTHER), nonce=chain.next_nonce(BOB.address) + 1)
    assert outcome(chain, BOB, sealed(chain, inner)) == "ok"
    assert chain.head.extrinsics[2] == inner
    assert read(chain, "Uids", 1, OTHER.address) == 3
    assert "EncryptedSubmitted" in events(chain)
    assert before - free(chain, BOB) > 2 * chain.config.fee_rao
    assert_nothing_lost(chain)


def test_the_inner_transaction_may_be_someone_elses() -> None:
    chain = new_chain()
    chain.produce()
    before = free(chain, BOB)
    assert outcome(chain, BOB, sealed(chain, DAVE.signed(chain, transfer(BOB, 10**9)))) == "ok"
    assert free(chain, BOB) == before + 10**9 - chain.config.fee_rao


@pytest.mark.parametrize("spoil", ["forged", "stale", "random", "other key", "bit", "empty"])
def test_what_is_no_valid_transaction_is_dropped_and_its_carrier_paid(spoil: str) -> None:
    chain = new_chain()
    chain.produce()
    inner = BOB.signed(chain, register(OTHER), nonce=1)
    call = sealed(chain, inner)
    ciphertext = bytearray(call[2]["ciphertext"])
    if spoil == "forged":
        call = sealed(chain, inner[:-1] + bytes([inner[-1] ^ 1]))
    elif spoil == "stale":
        call = sealed(chain, BOB.signed(chain, register(OTHER), nonce=0))
    elif spoil == "random":
        call = sealed(chain, b"no transaction")
    elif spoil == "other key":
        call = carrier(bytes(core.encrypt_mlkem768(key_of_period(77).public, inner, True)))
    elif spoil == "bit":
        ciphertext[-1] ^= 1
        call = carrier(bytes(ciphertext))
    elif spoil == "empty":
        call = carrier(bytes(ciphertext[: 16 + 2 + 1088 + 24]))
    before = free(chain, BOB)
    assert outcome(chain, BOB, call) == "ok"
    assert len(chain.head.extrinsics) == 2
    assert before - free(chain, BOB) == chain.config.fee_rao
    assert read(chain, "Uids", 1, OTHER.address) is None
    chain.produce()
    assert len(chain.head.extrinsics) == 1


@given(st.binary(max_size=60) | st.binary(min_size=1130, max_size=1200))
def test_any_bytes_are_refused_or_carried_and_never_stop_the_chain(blob: bytes) -> None:
    chain = new_chain()
    raw = BOB.signed(chain, carrier(blob))
    if shield.parse(blob) is None:
        with pytest.raises(InvalidTransaction, match="Custom error: 23"):
            chain.submit(raw)
    else:
        chain.submit(raw)
    chain.produce()


def test_ciphertexts_over_the_bound_are_refused() -> None:
    chain = new_chain()
    with pytest.raises(InvalidTransaction, match="Custom error: 23"):
        chain.submit(BOB.signed(chain, carrier(bytes(shield.MAX_CIPHERTEXT_BYTES + 1))))


def test_keys_move_on_by_a_place_in_each_block_and_old_ones_still_open() -> None:
    chain = new_chain()
    chain.produce()
    with pytest.raises(AssertionError):
        public_key(chain, "CurrentKey")
    while chain.head.number < KEY_BLOCKS:
        chain.produce()
    old = public_key(chain)
    late = sealed(chain, BOB.signed(chain, transfer(DAVE, 1), nonce=1))
    chain.produce()
    assert public_key(chain) != old
    assert public_key(chain, "PendingKey") == old == public_key(chain, "CurrentKey")
    assert chain.state.get("MevShield", "NextKeyExpiresAt") == chain.head.number + 3
    assert outcome(chain, BOB, late) == "ok"
    assert len(chain.head.extrinsics) == 3
    assert public_key(chain, "CurrentKey") == old
    chain.produce()
    assert public_key(chain, "CurrentKey") != old


def test_a_block_opens_a_bounded_number_of_carriers() -> None:
    chain = new_chain()
    chain.produce()
    senders = [Key(f"//sender/{number}") for number in range(MAX_SHIELDED_PER_BLOCK + 1)]
    for sender in senders:
        chain.endow(sender.address, 10**9)
        chain.submit(sender.signed(chain, sealed(chain, sender.signed(chain, transfer(BOB, 1000), nonce=1))))
    chain.produce()
    assert len(chain.head.extrinsics) == 1 + 2 * MAX_SHIELDED_PER_BLOCK
    chain.produce()
    assert len(chain.head.extrinsics) == 1 + 2


def test_a_chain_without_a_block_loads_no_cipher() -> None:
    code = (
        "import sys; from subnet.localnet.devchain.chain import DevChain; DevChain();"
        "sys.exit(any(name.split('.')[0] in ('kyber_py', 'Crypto') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
