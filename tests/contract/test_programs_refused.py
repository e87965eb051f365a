"""The miner as an operator starts it wrongly, on a real chain: what it says, and with which code it ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from neurons.base import EXIT_AGAIN, EXIT_REFUSED
from subnet.chain.live import create_wallet
from tests.contract.chains import Running, running_chain

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with running_chain() as made:
        owner = ("5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY", "5FHneW46xGXgs5mUiveU4sbTyGBzmstUspZC92UhjJM694ty")
        made.call(lambda: made.chain.add_subnet(*owner))
        made.call(lambda: made.chain.add_subnet(*owner))
        yield made


def miner(running: Running, wallets: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "neurons.cli", "miner", "--subtensor.network", running.url]
    command += ["--wallet.path", str(wallets), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def test_each_wrong_start_says_what_was_found_and_what_to_type(running: Running, tmp_path: Path) -> None:
    create_wallet(tmp_path, "mine", "first")
    wallet = ("--wallet.name", "mine", "--wallet.hotkey", "first")
    code, said = miner(running, tmp_path, "--wallet.name", "yours")
    assert code == EXIT_REFUSED
    assert "mine" in said
    assert "--wallet yours" in said
    code, said = miner(running, tmp_path, *wallet, "--netuid", "77")
    assert code == EXIT_REFUSED
    assert "no subnet 77" in said
    assert "it has 1-2." in said
    code, said = miner(running, tmp_path, *wallet, "--netuid", "2")
    assert code == EXIT_REFUSED
    assert "btcli subnets register --netuid 2 --wallet mine --wallet-hotkey first" in said


def test_a_chain_that_is_not_there_is_worth_another_start(running: Running, tmp_path: Path) -> None:
    create_wallet(tmp_path, "mine", "first")
    code, said = miner(
        running, tmp_path, "--wallet.name", "mine", "--wallet.hotkey", "first",
        "--subtensor.chain_endpoint", "ws://127.0.0.1:9",
    )  # fmt: skip
    assert code == EXIT_AGAIN
    assert "--subtensor.network" in said
