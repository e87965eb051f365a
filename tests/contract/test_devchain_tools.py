"""btcli, unmodified and as a program of its own, on the development chain. docs/chain.md refers to these tests."""

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

from subnet.localnet.devchain.extrinsics import Extrinsic, decode
from subnet.localnet.devchain.pallet_staking import position_rao
from tests.contract.chains import Running, running_chain

TAO = 10**9
PALLET = "SubtensorModule"
BTCLI = Path(sys.executable).with_name("btcli")
OWNER = tuple(core.Keypair.create_from_uri(uri).ss58_address for uri in ("//Alice", "//Alice//hot"))
MINER = tuple(core.Keypair.create_from_uri(uri).ss58_address for uri in ("//Bob", "//Bob//hot"))
EVE = core.Keypair.create_from_uri("//Eve").ss58_address
OWN = "2"  # the subnet whose owner is the wallet
SEALED = "3"  # the same, with commit-reveal


class Btcli:
    """The program with a wallet on disk that owns two subnets and has money."""

    def __init__(self, running: Running, folder: Path) -> None:
        self.running = running
        self.wallet: Any = bt.Wallet("tester", "miner", str(folder / "wallets"))
        self.wallet.create_new_coldkey(use_password=False, suppress=True)
        self.wallet.create_new_hotkey(suppress=True)
        self.coldkey, self.hotkey = self.wallet.coldkeypub.ss58_address, self.wallet.hotkey.ss58_address
        running.call(lambda: running.chain.endow(self.coldkey, 1000 * TAO))
        for settings in ({}, {"CommitRevealWeightsEnabled": True}):
            netuid = running.call(
                lambda settings=settings: running.chain.add_subnet(
                    self.coldkey, self.hotkey, WeightsSetRateLimit=0, **settings
                )
            )
            running.call(lambda netuid=netuid: running.chain.register(netuid, *MINER))
            running.call(lambda netuid=netuid: running.chain.set_stake(netuid, self.hotkey, 10**12))
        self.environment = {**os.environ, "HOME": str(folder)}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        who = ("--wallet", self.wallet.name, "--wallet-hotkey", self.wallet.hotkey_str)
        place = ("--wallet-path", self.wallet.path, "--network", self.running.url, "-y", "--json")
        command = [str(BTCLI), *who, *place, *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, env=self.environment
        )  # the timeout: clients hang on a read of something undeclared

    def __call__(self, *arguments: str) -> Any:
        """Its JSON answer. Fails where it fails."""
        done = self.run(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout) if done.stdout.strip() else None

    def read(self, item: str, *keys: Any) -> Any:
        return self.running.call(lambda: self.running.chain.state.get(PALLET, item, *keys))

    def newest(self) -> Extrinsic:
        """The last signed transaction in any block."""

        def find() -> Extrinsic:
            chain = self.running.chain
            raw = next(b.extrinsics[-1] for _, b in sorted(chain.blocks.items(), reverse=True) if len(b.extrinsics) > 1)
            return decode(chain.runtime, raw)

        found: Extrinsic = self.running.call(find)
        return found


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with running_chain() as chain:
        chain.call(lambda: chain.chain.add_subnet(*OWNER))
        chain.call(lambda: chain.chain.register(1, *MINER))
        yield chain


@pytest.fixture(scope="module")
def btcli(running: Running, tmp_path_factory: pytest.TempPathFactory) -> Btcli:
    return Btcli(running, tmp_path_factory.mktemp("home"))


def test_btcli_connects_and_reads_the_block(btcli: Btcli) -> None:
    assert btcli("query", "timestamp")["block"] >= 0


def test_btcli_shows_the_metagraph(btcli: Btcli) -> None:
    found = btcli("query", "metagraph", "--netuid", "1")
    assert found["num_uids"] >= 2
    assert MINER[1] in json.dumps(found)


def test_btcli_shows_the_subnet(btcli: Btcli) -> None:
    assert OWNER[1] in json.dumps(btcli("subnets", "show", "1"))


def test_btcli_lists_neurons(btcli: Btcli) -> None:
    assert MINER[1] in json.dumps(btcli("query", "neurons", "--netuid", "1"))


def test_btcli_shows_where_the_epoch_is(btcli: Btcli) -> None:
    assert btcli("query", "epoch-status", "--netuid", "1")["tempo"] == 10


def test_btcli_sets_and_shows_hyperparameters(btcli: Btcli) -> None:
    btcli("sudo", "set", "--netuid", OWN, "--name", "immunity_period", "--value", "77")
    assert btcli.read("ImmunityPeriod", int(OWN)) == 77
    shown = btcli("sudo", "get", "--netuid", OWN)
    assert "77" in json.dumps(shown)


def test_btcli_transfers_and_shows_balances(btcli: Btcli) -> None:
    btcli("wallet", "transfer", "--dest", EVE, "--amount-tao", "1.5", "--no-mev-shield")
    shown = btcli("query", "balance", "--coldkey", EVE)
    assert "1000001.5" in json.dumps(shown).replace(",", "")


def test_btcli_registers_through_the_shield(btcli: Btcli) -> None:
    btcli("subnets", "register", "--netuid", "1")
    assert btcli.read("Uids", 1, btcli.hotkey) == 2


def test_btcli_registers_by_a_raw_call_and_names_errors(btcli: Btcli) -> None:
    hotkey = core.Keypair.create_from_uri("//raw").ss58_address
    call = ("call", "SubtensorModule.burned_register", "--args", json.dumps({"netuid": 1, "hotkey": hotkey}))
    btcli(*call)
    assert btcli.read("Uids", 1, hotkey) is not None
    again = btcli.run(*call)
    assert again.returncode != 0
    assert "HotKeyAlreadyRegisteredInSubNet" in again.stdout + again.stderr


def test_btcli_stakes_and_lists(btcli: Btcli) -> None:
    btcli("stake", "add", "--hotkey", OWNER[1], "--netuid", "1", "--amount-tao", "5")
    assert OWNER[1] in json.dumps(btcli("stake", "list", "--coldkey", btcli.coldkey))
    btcli("stake", "remove", "--hotkey", OWNER[1], "--netuid", "1", "--amount-alpha", "all", "--no-mev-shield")
    running = btcli.running
    assert running.call(lambda: position_rao(running.chain.state, 1, OWNER[1], btcli.coldkey)) == 0


def test_btcli_serves_an_axon(btcli: Btcli) -> None:
    btcli("axon", "set", "--netuid", OWN, "--ip", "8.8.8.8", "--port", "9000")
    assert btcli.read("Axons", int(OWN), btcli.hotkey)["port"] == 9000


def test_btcli_sets_weights(btcli: Btcli) -> None:
    btcli("weights", "set", "--netuid", OWN, "--uids", "0,1", "--weights", "1,3")
    assert btcli.read("Weights", int(OWN), 0) == [(0, 21845), (1, 65535)]


def test_btcli_commits_sealed_weights(btcli: Btcli) -> None:
    btcli("weights", "commit", "--netuid", SEALED, "--uids", "1", "--weights", "1")
    call = btcli.newest().call
    assert call.name == "commit_timelocked_mechanism_weights"
    assert btcli.read("LastUpdate", int(SEALED))[0] > 0


def test_btcli_commits_by_a_raw_call_and_shows_it(btcli: Btcli) -> None:
    info = json.dumps({"netuid": int(OWN), "info": {"fields": [[{"Raw5": "0x68656c6c6f"}]]}})
    btcli("call", "Commitments.set_commitment", "--args", info, "--key", "hotkey")
    shown = btcli("query", "commitment", "--netuid", OWN, "--hotkey", btcli.hotkey)
    assert "hello" in json.dumps(shown)


def test_btcli_reports_what_the_pool_refuses(btcli: Btcli) -> None:
    faults = btcli.running.server.faults
    btcli.running.call(lambda: setattr(faults, "pool_rejection", "Custom error: 6"))
    done = btcli.run("wallet", "transfer", "--dest", EVE, "--amount-tao", "1", "--no-mev-shield")
    btcli.running.call(lambda: setattr(faults, "pool_rejection", None))
    assert done.returncode != 0
    assert "rate" in (done.stdout + done.stderr).lower()


def test_btcli_takes_the_next_nonce_and_signs_for_some_blocks(btcli: Btcli) -> None:
    before = btcli.running.call(lambda: btcli.running.chain.nonce(btcli.coldkey))
    btcli("wallet", "transfer", "--dest", EVE, "--amount-tao", "1", "--no-mev-shield")
    newest = btcli.newest()
    assert newest.nonce == before
    assert newest.era is not None
    assert newest.era[0] <= 256
