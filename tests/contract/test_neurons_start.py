"""The programs against a real chain, as a supervisor sees them: what they say on standard error, and their exit code.

One life from start to end as well: the orchestrator is found through its axon on chain, the chain falls silent and
comes back, the miner loses its place, the subnet changes hands.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from neurons.base import EXIT_AGAIN, EXIT_REFUSED
from tests.contract.chains import LiveWorld, live_world

ROOT = Path(__file__).resolve().parents[2]
LONG_S = 60.0
NOBODY = "ws://127.0.0.1:9"  # the discard port


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveWorld]:
    with live_world(tmp_path_factory.mktemp("wallets")) as made:
        yield made


def command(world: LiveWorld, program: str, wallet: str, *flags: str) -> list[str]:
    return [
        *(sys.executable, "-m", "neurons.cli", program, "--netuid", str(world.netuid)),
        *("--subtensor.network", world.url, "--wallet.path", str(world.wallets), "--wallet.name", wallet),
        *("--axon.ip", "127.0.0.1", "--axon.port", "0", "--neuron.data_dir", str(world.wallets.parent / "data")),
        *flags,
    ]


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("BT_", "LIQUID_"))}


@pytest.mark.parametrize(
    ("program", "wallet", "flags", "code", "told"),
    [
        ("miner", "nobody", [], EXIT_REFUSED, ["validator/default", "btcli wallet create --wallet nobody"]),
        ("miner", "miner", ["--wallet.hotkey", "hot"], EXIT_REFUSED, ["btcli wallet new-hotkey --wallet miner"]),
        ("miner", "miner", [], EXIT_REFUSED, ["has no place in subnet 1", "btcli subnets register --netuid 1"]),
        ("miner", "miner", ["--netuid", "77"], EXIT_REFUSED, ["no subnet 77", "it has 1.", "--netuid"]),
        ("miner", "miner", ["--subtensor.network", "fin"], EXIT_REFUSED, ["'fin'", "finney, test, local"]),
        ("miner", "miner", ["--subtensor.network", "host:9944"], EXIT_REFUSED, ["ws://host:9944"]),
        ("miner", "miner", ["--subtensor.network", NOBODY], EXIT_AGAIN, [NOBODY, "--subtensor.chain_endpoint"]),
        ("miner", "miner", ["--axon.ip", "0.0.0.0", "--axon.relay", "never"], EXIT_REFUSED, ["--axon.external_ip"]),
        ("validator", "validator", [], EXIT_AGAIN, ["serves no axon", "--orchestrator.url"]),
        ("orchestrator", "validator", [], EXIT_REFUSED, ["owner hotkey of subnet 1", "--wallet.name"]),
    ],
)
def test_what_is_wrong_is_said_with_what_to_type(
    world: LiveWorld, program: str, wallet: str, flags: list[str], code: int, told: list[str]
) -> None:
    done = subprocess.run(
        command(world, program, wallet, *flags),
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert [text for text in told if text not in done.stderr] == [], done.stderr


# --- a life


@dataclass
class Program:
    """A program that runs, and the lines that it writes."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    wrote: threading.Condition = field(default_factory=threading.Condition)

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self.wrote:
                self.lines.append(line)
                self.wrote.notify_all()

    def says(self, text: str, after: int = 0) -> int:
        """Wait for a line with ``text``; returns how many lines there are then."""
        with self.wrote:
            assert self.wrote.wait_for(lambda: any(text in line for line in self.lines[after:]), LONG_S), self.lines
            return len(self.lines)

    def ends(self) -> int:
        try:
            return self.process.wait(LONG_S)
        except subprocess.TimeoutExpired:
            raise AssertionError("".join(self.lines)) from None


@contextmanager
def started(arguments: list[str]) -> Iterator[Program]:
    """Standard output and error come together."""
    with subprocess.Popen(
        arguments, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        program = Program(process)
        reader = threading.Thread(target=program.read)
        reader.start()
        try:
            yield program
        finally:
            process.kill()
            reader.join()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_life_on_chain(tmp_path: Path) -> None:
    with live_world(tmp_path) as world:
        world.running.call(lambda: world.running.chain.register(world.netuid, *world.keys["miner"]))
        with started(command(world, "orchestrator", "owner")) as orchestrator:
            orchestrator.says('"listening"')  # on chain by now
            with started(command(world, "miner", "miner")) as miner:
                url = json.loads(next(line for line in _until_listening(miner) if '"listening"' in line))["url"]
                assert url.startswith("http://127.0.0.1:")
                seen = miner.says("started")  # the orchestrator gave it a stage
                world.running.fault("silent")
                miner.says("chain.failed", seen)
                assert miner.process.poll() is None
                world.running.fault("silent", False)
                miner.says("chain.restored", seen)
                world.prune("miner", "newcomer")
                assert miner.ends() == EXIT_REFUSED
                miner.says("has lost its place in subnet 1")
                miner.says("btcli subnets register")
                assert not any("Traceback" in line for line in miner.lines)
            world.hand_over("validator")
            assert orchestrator.ends() == EXIT_AGAIN
            orchestrator.says("The owner hotkey of subnet 1 is now")


def _until_listening(program: Program) -> list[str]:
    program.says('"listening"')
    return program.lines
