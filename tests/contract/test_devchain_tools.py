"""The tools that participants use, unmodified, on the development chain: btcli and substrate-interface."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bittensor as bt
import bittensor_core as core
import pytest
from substrateinterface import Keypair, SubstrateInterface

from subnet.localnet.devchain.pallet_staking import position_rao
from tests.contract.chains import Running, running_chain

TAO = 10**9
BTCLI = Path(sys.executable).with_name("btcli")
OWNER = tuple(core.Keypair.create_from_uri(uri).ss58_address for uri in ("//Alice", "//Alice//hot"))
MINER = tuple(core.Keypair.create_from_uri(uri).ss58_address for uri in ("//Bob", "//Bob//hot"))


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with running_chain() as chain:
        chain.call(lambda: chain.chain.add_subnet(*OWNER))
        chain.call(lambda: chain.chain.register(1, *MINER))
        yield chain


@pytest.fixture(scope="module")
def wallet(running: Running, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A wallet on disk whose coldkey has money."""
    made = bt.Wallet("tester", "miner", str(tmp_path_factory.mktemp("wallets")))
    made.create_new_coldkey(use_password=False, suppress=True)
    made.create_new_hotkey(suppress=True)
    running.call(lambda: running.chain.endow(made.coldkeypub.ss58_address, 1000 * TAO))
    return made


def ran(running: Running, *arguments: str, wallet: Any = None) -> subprocess.CompletedProcess[str]:
    command = [str(BTCLI), "--network", running.url, "-y"]
    if wallet is not None:
        command += ["--wallet", wallet.name, "--wallet-hotkey", wallet.hotkey_str, "--wallet-path", wallet.path]
    command += arguments
    home = {**os.environ, "HOME": str(Path(wallet.path).parent)} if wallet is not None else None
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=home)


def btcli(running: Running, *arguments: str, wallet: Any = None) -> str:
    done = ran(running, *arguments, wallet=wallet)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_btcli_shows_the_metagraph(running: Running) -> None:
    found = json.loads(btcli(running, "--json", "query", "metagraph", "--netuid", "1"))
    assert found["num_uids"] == 2
    assert MINER[1] in json.dumps(found)


def test_btcli_shows_the_subnet(running: Running) -> None:
    assert OWNER[1] in btcli(running, "subnets", "show", "1")


def test_btcli_registers_through_the_shield(running: Running, wallet: Any) -> None:
    btcli(running, "subnets", "register", "--netuid", "1", wallet=wallet)
    uids = running.call(lambda: running.chain.state.get("SubtensorModule", "Uids", 1, wallet.hotkey.ss58_address))
    assert uids == 2


def test_btcli_stakes_and_lists(running: Running, wallet: Any) -> None:
    btcli(running, "stake", "add", "--hotkey", OWNER[1], "--netuid", "1", "--amount-tao", "5", wallet=wallet)
    coldkey = wallet.coldkeypub.ss58_address
    listed = json.loads(btcli(running, "--json", "stake", "list", "--coldkey", coldkey, wallet=wallet))
    assert OWNER[1] in json.dumps(listed)
    call = ("stake", "remove", "--hotkey", OWNER[1], "--netuid", "1", "--amount-alpha", "all")
    btcli(running, *call, "--no-mev-shield", wallet=wallet)
    staked = running.call(lambda: position_rao(running.chain.state, 1, OWNER[1], coldkey))
    assert staked == 0


def test_substrate_interface_reads_and_submits(running: Running) -> None:
    with SubstrateInterface(url=running.url) as node:
        assert node.query("SubtensorModule", "Uids", [1, MINER[1]]).value == 1
        call = node.compose_call("SubtensorModule", "burned_register", {"netuid": 1, "hotkey": MINER[1]})
        signed = node.create_signed_extrinsic(call=call, keypair=Keypair.create_from_uri("//Bob"))
        receipt = node.submit_extrinsic(signed, wait_for_inclusion=True)
        assert not receipt.is_success
        assert receipt.error_message["name"] == "HotKeyAlreadyRegisteredInSubNet"
