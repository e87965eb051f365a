"""Emissions, watched and witnessed: `liquid watch` and the audit as subprocesses, on an embedded chain stepped by hand.

Weights are set by the unmodified SDK; between epochs stake moves and a newcomer takes a pruned uid, and one does so in
the very block that ends an epoch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bittensor as bt
import pytest
from bittensor.keyfiles import Keypair

from subnet.localnet.devchain.chain import DevChain
from subnet.localnet.devchain.epochs import Payment
from tests.contract.chains import Running, running_chain
from tests.unit import devchain_actors as actors
from tests.unit.devchain_actors import Key

ROOT = Path(__file__).resolve().parents[2]
TEMPO_BLOCKS = 12
POLL_S = 0.01
OWNER, VAL_1, VAL_2, ANN, BOB, CID = (f"//emissions/{name}" for name in ("owner", "v1", "v2", "ann", "bob", "cid"))
NEWCOMERS = ("//emissions/new1", "//emissions/new2")
STAKES_RAO = {VAL_1: 3 * 10**12 + 7, VAL_2: 10**12 + 1}


def address(uri: str) -> str:
    return str(Keypair.create_from_uri(uri).ss58_address)


class World:
    """A subnet of six places, all taken: 0 owner, 1 and 2 validators, 3 to 5 miners."""

    def __init__(self, running: Running, folder: Path) -> None:
        self.running = running
        self.chain = running.chain
        self.payments: dict[int, Payment] = {}
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "BITTENSOR_RUNTIME_CACHE_DIR": str(folder / "cache"),
            "BTCLI_TOKEN_SYMBOLS_CACHE": str(folder / "symbols.json"),
            "HOME": str(folder),
        }

    def start(self) -> None:
        cold = address("//Alice")
        self.chain.add_subnet(cold, address(OWNER), WeightsSetRateLimit=0, MaxAllowedUids=6, ImmunityPeriod=1)
        for uri in (VAL_1, VAL_2, ANN, BOB, CID):
            self.chain.register(1, address("//Bob"), address(uri))
        for uri, rao in STAKES_RAO.items():
            self.chain.set_stake(1, address(uri), rao)

    def produce(self) -> None:
        self.running.call(self.chain.produce)
        if self.read("LastEpochBlock") == self.chain.head.number:
            self.payments[self.chain.head.number] = self.chain.payments[1]

    def read(self, item: str) -> Any:
        return self.running.call(lambda: actors.read(self.chain, item, 1))

    def until_last_of_epoch(self) -> None:
        """The next block will end the epoch."""
        while self.chain.head.number + 1 - self.read("LastEpochBlock") < TEMPO_BLOCKS:
            self.produce()

    def end_epoch(self) -> None:
        self.until_last_of_epoch()
        self.produce()

    def vote(self, uri: str, weights: dict[int, float]) -> None:
        """By the SDK; a block is made when the transaction is there."""
        cold, hot = Keypair.create_from_uri("//Bob"), Keypair.create_from_uri(uri)
        wallet = SimpleNamespace(coldkey=cold, coldkeypub=cold, hotkey=hot)

        def set_weights() -> Any:
            client = bt.Subtensor(self.running.url)
            try:
                return client.execute(bt.SetWeights(netuid=1, weights=weights), wallet)
            finally:
                client.close()

        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(set_weights)
            while not wait([done], POLL_S).done:
                if self.running.call(lambda: bool(self.chain.pool.waiting)):
                    self.produce()
            assert done.result().success, done.result()

    def register(self, uri: str) -> None:
        """Into the pool."""
        call = "SubtensorModule", "burned_register", {"netuid": 1, "hotkey": address(uri)}
        self.running.call(lambda: self.chain.submit(Key("//Dave").signed(self.chain, call)))

    def move_stake(self, giver: str, taker: str, rao: int) -> None:
        def move() -> None:
            for uri, change in ((giver, -rao), (taker, rao)):
                stake = actors.read(self.chain, "TotalHotkeyAlpha", address(uri), 1)
                self.chain.set_stake(1, address(uri), stake + change)

        self.running.call(move)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "neurons.cli", "watch", "--subtensor.network", self.running.url, *arguments]

    def watch(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments), capture_output=True, text=True, timeout=60, check=False, env=self.environment
        )

    @contextmanager
    def watching(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(self.command(*arguments), stdout=subprocess.PIPE, text=True, env=self.environment)
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def audit(self, *arguments: str) -> tuple[int, dict[str, Any], str]:
        command = [sys.executable, "scripts/audit_emissions.py", "--url", self.running.url, *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT, env=self.environment
        )
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stdout


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with running_chain(tempo_blocks=TEMPO_BLOCKS) as running:
        running.call(lambda: setattr(running.server.faults, "stalled", True))
        made = World(running, tmp_path)
        running.call(made.start)
        yield made


def next_line(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "liquid watch has ended"
    found: dict[str, Any] = json.loads(line)
    return found


def live_through_four_epochs(world: World) -> list[dict[str, Any]]:
    """What a watcher says that comes after the first epoch."""
    world.vote(VAL_1, {3: 0.5, 4: 0.3, 0: 0.2})
    world.vote(VAL_2, {3: 0.2, 4: 0.55, 0: 0.25})
    world.end_epoch()
    with world.watching("--json", "--epochs", "4") as process:
        lines = [next_line(process)]
        world.produce()
        world.move_stake(VAL_1, VAL_2, 10**12 + 13)
        world.register(NEWCOMERS[0])
        world.vote(VAL_1, {3: 0.4, 4: 0.1, 5: 0.4, 0: 0.1})
        world.end_epoch()
        lines.append(next_line(process))
        world.vote(VAL_2, {3: 0.1, 5: 0.7, 0: 0.2})
        world.until_last_of_epoch()
        world.register(NEWCOMERS[1])  # goes into the block that ends the epoch
        world.produce()
        lines.append(next_line(process))
        world.end_epoch()
        lines.append(next_line(process))
        assert process.wait(30) == 0
    return lines


def row(line: dict[str, Any], uri: str) -> dict[str, Any]:
    found: dict[str, Any] = next(known for known in line["hotkeys"] if known["hotkey"] == address(uri))
    return found


def test_the_watcher_the_audit_and_the_chain_agree_to_the_rao(world: World, tmp_path: Path) -> None:
    lines = live_through_four_epochs(world)
    assert [line["epoch"] for line in lines] == [1, 2, 3, 4]
    for line in lines:
        payment = world.payments[line["block"]]
        assert (line["created_rao"], line["owner_cut_rao"]) == (payment.created, payment.owner)
        assert line["burned_rao"] == payment.burnt > 0
        assert tuple(known["earned_rao"] for known in line["hotkeys"]) == payment.per_uid
    assert all(row(line, ANN)["miner_rao"] > 0 == row(line, ANN)["validator_rao"] for line in lines)
    assert all(row(line, VAL_1)["validator_rao"] > 0 == row(line, VAL_1)["miner_rao"] for line in lines)
    assert row(lines[1], OWNER)["miner_rao"] == 0

    file = tmp_path / "watched.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, result, text = world.audit("--epochs", "4", "--against", str(file))
    assert (code, result["agree"], result["differences"]) == (0, True, []), text
    assert [epoch["epoch"] for epoch in result["epochs"]] == [1, 2, 3, 4]
    assert all(epoch["is_compared"] for epoch in result["epochs"])


def test_a_newcomer_takes_a_pruned_uid_between_epochs_and_in_the_block_that_ends_one(world: World) -> None:
    lines = live_through_four_epochs(world)
    assert address(CID) in lines[1]["left"]
    new = row(lines[1], NEWCOMERS[0])
    assert (new["uid"], new["rank_change"]) == (5, None)
    (replaced,) = [known for known in lines[2]["hotkeys"] if known["is_replaced"]]
    assert replaced["hotkey"] in lines[3]["left"]
    assert row(lines[3], NEWCOMERS[1])["uid"] == replaced["uid"]


@pytest.mark.parametrize(("what", "uri"), [("miner_rao", BOB), ("burned_rao", None)])
def test_a_falsified_line_is_named(world: World, tmp_path: Path, what: str, uri: str | None) -> None:
    world.vote(VAL_1, {3: 0.5, 4: 0.3, 0: 0.2})
    for _ in range(2):
        world.end_epoch()
    lines = [json.loads(line) for line in world.watch("--json", "--epochs", "2", "--history", "1").stdout.splitlines()]
    (lines[1] if uri is None else row(lines[1], uri))[what] += 1
    file = tmp_path / "watched.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, result, text = world.audit("--epochs", "1", "--against", str(file))
    assert code == 1
    assert not result["agree"]
    (found,) = result["differences"]
    assert (found["epoch"], found["hotkey"], found["what"]) == (2, address(uri) if uri else None, what)
    assert f"DIFFERENCE epoch 2 (block {lines[1]['block']}) {address(uri) if uri else 'subnet'}" in text


def test_pay_that_the_chain_did_not_put_into_stake_is_a_difference(world: World) -> None:
    world.vote(VAL_1, {3: 1.0})
    world.end_epoch()
    world.move_stake(VAL_1, ANN, 1)  # by nobody's transaction, in the block that ended the epoch
    code, result, _ = world.audit("--epochs", "1")
    assert code == 1
    assert {found["hotkey"] for found in result["differences"]} == {address(VAL_1), address(ANN)}


def test_table_and_csv_for_people(world: World) -> None:
    world.vote(VAL_1, {3: 0.5, 4: 0.3, 0: 0.2})
    world.end_epoch()
    table = world.watch("--epochs", "1", "--netuid", "1", "--hotkey", address(ANN))
    assert table.returncode == 0, table.stderr
    assert "epoch 1 (blocks " in table.stdout
    assert address(ANN) in table.stdout
    assert address(BOB) not in table.stdout
    assert "\x1b" not in table.stdout
    sheet = world.watch("--epochs", "1", "--csv").stdout.splitlines()
    assert len(sheet) == 1 + 6
    assert sheet[0].startswith("netuid,epoch,block,")


def test_a_subnet_that_does_not_exist_is_an_error_at_once(world: World) -> None:
    done = world.watch("--netuid", "77")
    assert done.returncode != 0
    assert "There is no subnet 77" in done.stderr


def test_an_epoch_that_the_node_has_forgotten_is_said_to_be_missed(world: World) -> None:
    for _ in range(3):
        world.end_epoch()
    block = world.read("LastEpochBlock")
    chain: DevChain = world.chain
    for number in [known for known in chain.blocks if 0 < known < block - 2]:
        world.running.call(lambda number=number: chain.numbers.pop(chain.blocks.pop(number).hash))
    done = world.watch("--json", "--epochs", "1", "--history", "2")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[:2] == [{"netuid": 1, "epoch": epoch, "missed": True} for epoch in (1, 2)]
    assert (lines[2]["epoch"], lines[2]["block"]) == (3, block)
    assert row(lines[2], ANN)["rank_change"] is None
