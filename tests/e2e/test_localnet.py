"""The programs as subprocesses: a small network from nothing to a summary, and a clean end on SIGINT."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LEFT_S = 5.0  # invariant 9: no process is left so long after SIGINT
LOCALNET = [sys.executable, "-m", "neurons.cli", "localnet"]


def processes_in(folder: Path) -> list[str]:
    """Command lines of running processes that name ``folder``."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line:
            found.append(line)
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_network_without_a_chain_trains_and_audits(tmp_path: Path) -> None:
    arguments = ["--no-chain", "--stages", "2", "--replicas", "1", "--validators", "1", "--rounds", "2", "--json"]
    every_round = ["--set", "audit.window_rounds=1", "--set", "audit.lag_rounds=1"]
    # One miner is reached directly, as its probe found, the other through the orchestrator's relay.
    command = [*LOCALNET, *arguments, *every_round, "--relay", "miner-2", "--dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.stdout, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    untrue = [claim["text"] for claim in summary["claims"] if not claim["holds"]]
    # Two rounds are too short to beat the bigram table; and two stages have no middle one. All else must hold.
    assert all(text.startswith(("held-out loss", "by-passing")) for text in untrue), done.stderr
    assert summary["microbatches"] == {"complete": 256, "partial": 0, "duplicate": 0, "re-leased": 0}
    assert summary["held_out_loss"] < 5.0
    assert [miner["audits"] for miner in summary["miners"]] == [2, 2], "a window of one round: each one, each round"
    logs = {number: (tmp_path / "logs" / f"miner-{number}.log").read_text() for number in (1, 2)}
    assert "is_reachable=True" in logs[1]
    assert "relay.used" not in logs[1]
    assert "relay.used" in logs[2]
    assert processes_in(tmp_path) == []


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
def test_no_process_is_left_after_sigint(tmp_path: Path) -> None:
    command = [*LOCALNET, "--stages", "1", "--replicas", "1", "--validators", "0", "--forever", "--dir", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith("round 0 | training"):
                break
        assert len(processes_in(tmp_path)) >= 4
        running.send_signal(signal.SIGINT)
        began_s = time.monotonic()
        running.communicate(timeout=60)
        assert time.monotonic() - began_s < LEFT_S + 3  # the programs get LEFT_S, this one closes after them
    assert processes_in(tmp_path) == []


@pytest.mark.parametrize(
    "arguments",
    [["--nope"], ["--kill", "miner-1"], ["--cheat", "noise:miner-99"], ["--relay", "miner-99"], ["--stages", "0"]],
)
def test_bad_options_are_refused_with_what_to_type(arguments: list[str], tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(
        [*LOCALNET, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, env=environment, check=False
    )
    assert done.returncode in (1, 2)
    assert "localnet" in done.stderr
    assert "Traceback" not in done.stderr
