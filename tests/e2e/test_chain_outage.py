"""The chain stops answering in the middle of a run: training goes on, and weights are set as soon as it is back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from subnet.chain.live import Timeouts

ROOT = Path(__file__).resolve().parents[2]
LOCALNET = [sys.executable, "-m", "neurons.cli", "localnet", "--json"]


def chain_process(folder: Path) -> int:
    """Process id of the network's development chain."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        words = entry.read_bytes().split(b"\0")
        if b"devchain" in words and any(str(folder).encode() in word for word in words):
            return int(entry.parent.name)
    raise AssertionError("no chain runs")


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
def test_a_run_goes_on_without_its_chain_and_sets_weights_when_it_is_back(tmp_path: Path) -> None:
    """The outage outlasts every deadline of a read, in the middle of rounds; a public chain's would only be longer."""
    arguments = ["--stages", "2", "--replicas", "1", "--validators", "1", "--rounds", "6"]
    command = [*LOCALNET, *arguments, "--set", "round.microbatches=32", "--set", "round.inner_steps=8"]
    # Audits wait for blocks: what miners keep has to outlast the outage.
    command += ["--set", "round.snapshot_steps=4", "--set", "round.retention_rounds=8", "--dir", str(tmp_path)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as running:  # type: ignore[call-overload]
        seen: list[str] = []
        stopped_at_s, chain = None, 0
        for line in running.stderr:
            seen.append(line)
            if stopped_at_s is None and line.startswith("round 1 | training"):
                chain, stopped_at_s = chain_process(tmp_path), time.monotonic()
                os.kill(chain, signal.SIGSTOP)
            is_later = line.startswith("round ") and int(line.split()[1]) >= 3
            if is_later and stopped_at_s is not None and time.monotonic() - stopped_at_s > Timeouts().read_s + 1:
                os.kill(chain, signal.SIGCONT)
                break
        rest, errors = running.communicate(timeout=300)
    said = "".join(seen) + errors
    summary = json.loads(rest.splitlines()[-1])
    assert stopped_at_s is not None
    assert summary["rounds"] == 6, said
    assert summary["microbatches"] == {"complete": 6 * 32, "partial": 0, "duplicate": 0, "re-leased": 0}
    untrue = [claim["text"] for claim in summary["claims"] if not claim["holds"]]
    assert all(text.startswith("held-out loss") for text in untrue), said  # so few tokens teach little
    assert all(miner["weights"] for miner in summary["miners"])
