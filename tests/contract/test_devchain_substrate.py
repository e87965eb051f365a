"""substrate-interface, unmodified, on the development chain: a client that knows nothing of Bittensor.

It reads metadata of version 14, which has no runtime APIs. docs/chain.md refers to these tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import bittensor_core as core
import pytest
from substrateinterface import Keypair, SubstrateInterface
from substrateinterface.exceptions import SubstrateRequestException

from subnet.localnet.devchain.scale import octets, vector
from tests.contract.chains import Running, running_chain

PALLET = "SubtensorModule"
ALICE, BOB, EVE = (Keypair.create_from_uri(f"//{name}") for name in ("Alice", "Bob", "Eve"))
OWNER_HOTKEY, BOB_HOTKEY = (Keypair.create_from_uri(f"//{name}//hot") for name in ("Alice", "Bob"))
TEMPO_BLOCKS = 10


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with running_chain(0.1, TEMPO_BLOCKS) as chain:
        for settings in ({}, {"CommitRevealWeightsEnabled": True}):
            netuid = chain.call(
                lambda settings=settings: chain.chain.add_subnet(
                    ALICE.ss58_address, OWNER_HOTKEY.ss58_address, WeightsSetRateLimit=0, **settings
                )
            )
            chain.call(lambda netuid=netuid: chain.chain.set_stake(netuid, OWNER_HOTKEY.ss58_address, 10**12))
        yield chain


@pytest.fixture(scope="module")
def node(running: Running) -> Iterator[Any]:
    with SubstrateInterface(url=running.url) as client:
        yield client


def submit(node: Any, key: Keypair, pallet: str, name: str, **arguments: Any) -> Any:
    call = node.compose_call(pallet, name, arguments)
    return node.submit_extrinsic(node.create_signed_extrinsic(call, key), wait_for_inclusion=True)


def wait_for_blocks(node: Any, count: int) -> list[int]:
    """Numbers of the next heads, by subscription."""
    seen: list[int] = []

    def on_head(head: Any, update: int, subscription: str) -> Any:
        seen.append(head["header"]["number"])
        return seen if len(seen) == count else None

    node.subscribe_block_headers(on_head)
    return seen


def test_substrate_connects_reads_blocks_and_subscribes(node: Any) -> None:
    assert node.chain == "Bittensor"
    first = node.get_block_number(None)
    numbers = wait_for_blocks(node, 3)
    assert numbers[0] >= first
    assert numbers == list(range(numbers[0], numbers[0] + 3))
    assert node.get_block(block_number=numbers[-1])["header"]["number"] == numbers[-1]


def test_substrate_reads_neurons_hyperparameters_and_epochs(node: Any) -> None:
    keys = node.query_map(PALLET, "Keys", [1])
    assert OWNER_HOTKEY.ss58_address in [value.value for _, value in keys]
    assert node.query(PALLET, "Tempo", [1]).value == TEMPO_BLOCKS
    assert node.query(PALLET, "LastEpochBlock", [1]).value >= 0


def test_substrate_transfers_and_shows_balances_and_events(node: Any) -> None:
    before = node.query("System", "Account", [EVE.ss58_address]).value["data"]["free"]
    receipt = submit(node, BOB, "Balances", "transfer_keep_alive", dest=EVE.ss58_address, value=12345)
    assert receipt.is_success
    assert receipt.total_fee_amount == 124_414
    assert "Transfer" in [event.value["event_id"] for event in receipt.triggered_events]
    assert node.query("System", "Account", [EVE.ss58_address]).value["data"]["free"] == before + 12345


def test_substrate_registers_and_names_errors(node: Any) -> None:
    assert submit(node, BOB, PALLET, "burned_register", netuid=1, hotkey=BOB_HOTKEY.ss58_address).is_success
    again = submit(node, BOB, PALLET, "burned_register", netuid=1, hotkey=BOB_HOTKEY.ss58_address)
    assert not again.is_success
    assert again.error_message["name"] == "HotKeyAlreadyRegisteredInSubNet"
    nowhere = submit(node, BOB, PALLET, "add_stake", hotkey=EVE.ss58_address, netuid=9, amount_staked=10**9)
    assert nowhere.error_message["name"] == "SubnetNotExists"


def test_substrate_registers_through_the_shield(running: Running, node: Any) -> None:
    hotkey = Keypair.create_from_uri("//shielded").ss58_address
    nonce = node.get_account_nonce(BOB.ss58_address)
    call = node.compose_call(PALLET, "burned_register", {"netuid": 1, "hotkey": hotkey})
    inner = node.create_signed_extrinsic(call, BOB, nonce=nonce + 1)
    key = bytes.fromhex(node.query("MevShield", "NextKey").value[2:])
    ciphertext = core.encrypt_mlkem768(key, bytes(inner.data.data), True)
    receipt = submit(node, BOB, "MevShield", "submit_encrypted", ciphertext="0x" + bytes(ciphertext).hex())
    assert receipt.is_success
    assert node.query(PALLET, "Uids", [1, hotkey]).value is not None


def test_substrate_serves_an_axon(node: Any) -> None:
    where = {"ip": 0x08080808, "port": 9000, "ip_type": 4, "protocol": 4, "version": 1}
    axon = {**where, "placeholder1": 0, "placeholder2": 0}
    assert submit(node, OWNER_HOTKEY, PALLET, "serve_axon", netuid=1, **axon).is_success
    assert node.query(PALLET, "Axons", [1, OWNER_HOTKEY.ss58_address]).value["port"] == 9000


def test_substrate_sets_weights(node: Any) -> None:
    named = {"netuid": 1, "mecid": 0, "dests": [0], "weights": [7], "version_key": 0}
    assert submit(node, OWNER_HOTKEY, PALLET, "set_mechanism_weights", **named).is_success
    assert node.query(PALLET, "Weights", [1, 0]).value == [(0, 65535)]


def test_substrate_commits_weights_that_are_revealed(node: Any) -> None:
    """Sealed for a round whose signature is published; what the SDK seals is for a round to come."""
    uids, values = (vector([number.to_bytes(2, "little")]) for number in (0, 9))
    sealed, _ = core.encrypt_at_round(octets(OWNER_HOTKEY.public_key) + uids + values + bytes(8), 1000)
    named = {"netuid": 2, "mecid": 0, "commit": "0x" + bytes(sealed).hex(), "reveal_round": 1000}
    receipt = submit(
        node, OWNER_HOTKEY, PALLET, "commit_timelocked_mechanism_weights", **named, commit_reveal_version=4
    )
    assert receipt.is_success
    wait_for_blocks(node, 2 * TEMPO_BLOCKS + 2)
    assert node.query(PALLET, "Weights", [2, 0]).value == [(0, 65535)]


def test_substrate_commits_data(node: Any) -> None:
    info = {"fields": [[{"Raw5": "0x68656c6c6f"}]]}
    assert submit(node, OWNER_HOTKEY, "Commitments", "set_commitment", netuid=1, info=info).is_success
    assert node.query("Commitments", "CommitmentOf", [1, OWNER_HOTKEY.ss58_address]).value is not None


def test_substrate_sets_hyperparameters(node: Any) -> None:
    inner = node.compose_call("AdminUtils", "sudo_set_kappa", {"netuid": 1, "kappa": 40000})
    assert submit(node, ALICE, "Sudo", "sudo", call=inner).is_success
    assert node.query(PALLET, "Kappa", [1]).value == 40000
    assert submit(node, ALICE, "AdminUtils", "sudo_set_immunity_period", netuid=1, immunity_period=5).is_success


def test_substrate_stakes(node: Any) -> None:
    staked = {"hotkey": OWNER_HOTKEY.ss58_address, "netuid": 1}
    before = node.query(PALLET, "TotalHotkeyAlpha", [OWNER_HOTKEY.ss58_address, 1]).value
    assert submit(node, BOB, PALLET, "add_stake", **staked, amount_staked=10**9).is_success
    assert node.query(PALLET, "TotalHotkeyAlpha", [OWNER_HOTKEY.ss58_address, 1]).value >= before + 10**9
    assert submit(node, BOB, PALLET, "remove_stake", **staked, amount_unstaked=10**9).is_success


def test_substrate_reports_what_the_pool_refuses(running: Running, node: Any) -> None:
    running.call(lambda: setattr(running.server.faults, "pool_rejection", "Custom error: 6"))
    with pytest.raises(SubstrateRequestException, match="Custom error: 6"):
        submit(node, BOB, "System", "remark", remark="0x01")
    running.call(lambda: setattr(running.server.faults, "pool_rejection", None))
    stale = node.create_signed_extrinsic(node.compose_call("System", "remark", {"remark": "0x02"}), BOB, nonce=0)
    with pytest.raises(SubstrateRequestException, match="outdated"):
        node.submit_extrinsic(stale)


def test_substrate_nonces_wait_for_their_turn(running: Running, node: Any) -> None:
    call = node.compose_call("System", "remark", {"remark": "0x03"})
    nonce = node.get_account_nonce(EVE.ss58_address)
    node.submit_extrinsic(node.create_signed_extrinsic(call, EVE, nonce=nonce + 1))
    wait_for_blocks(node, 2)
    assert node.get_account_nonce(EVE.ss58_address) == nonce
    receipt = node.submit_extrinsic(node.create_signed_extrinsic(call, EVE, nonce=nonce), wait_for_inclusion=True)
    assert receipt.is_success
    assert running.call(lambda: running.chain.nonce(EVE.ss58_address)) == nonce + 2


def test_substrate_transactions_expire(node: Any) -> None:
    call = node.compose_call("System", "remark", {"remark": "0x04"})
    old = node.create_signed_extrinsic(call, EVE, era={"period": 4})
    wait_for_blocks(node, 6)
    with pytest.raises(SubstrateRequestException, match=r"bad signature|ancient"):
        node.submit_extrinsic(old)
