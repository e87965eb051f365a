"""Our own arm of the ``wan`` bench: an orchestrator and one miner per stage, each on its own host.

The miners are the product's, with an engine whose forward and backward take a fixed time at least: two cores stand for
four devices of one speed. The orchestrator's host has the same delay and no limit of rate, as a server has.
Not here: the hosts (``bench_wan_net``). Invariant: what a round took is read from the ledger, by the orchestrator's
clock: from the round's opening to the end of TRAINING; the edge is the rest until the next round opens.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench_wan_net import Internet, address, cpu_seconds
from torch import Tensor

from subnet.chain.live import create_wallet
from subnet.config import RunConfig
from subnet.records import LedgerEntry, LedgerKind, decode
from subnet.replica.lifecycle import Replica
from subnet.train.engine import BackwardResult, ForwardResult, StageEngine
from subnet.types import Hotkey, MicrobatchId, Phase

PORT = 8091
LOOK_S = 0.25  # between looks at the ledger
PADS = "LIQUID_WAN_PADS"  # environment variable: seconds of a forward, of a backward, and the file of calls


class PaddedEngine(StageEngine):
    """Every forward and backward takes its fixed time at least; each call is logged."""

    def forward(
        self, microbatch: MicrobatchId, tokens_BT: Tensor, inputs: Mapping[str, Tensor] | None
    ) -> ForwardResult:
        """The honest result, not before its time."""
        began_s = time.perf_counter()
        result = super().forward(microbatch, tokens_BT, inputs)
        self._pad(began_s, 0)
        return result

    def backward(self, microbatch: MicrobatchId, grads: Mapping[str, Tensor] | None) -> BackwardResult:
        """The honest result, not before its time."""
        began_s = time.perf_counter()
        result = super().backward(microbatch, grads)
        self._pad(began_s, 1)
        return result

    def _pad(self, began_s: float, which: int) -> None:
        *pads, log = os.environ[PADS].split(",")
        own_s = time.perf_counter() - began_s
        time.sleep(max(0.0, float(pads[which]) - own_s))
        ended_s = time.time()
        with Path(log).open("a") as lines:  # one line a call: which, seconds of its own, when it began and ended
            print(which, own_s, ended_s - (time.perf_counter() - began_s), ended_s, file=lines)


class PaddedReplica(Replica):
    """The product's replica around the padded engine."""

    engine_class = PaddedEngine


def miner_program(arguments: list[str]) -> int:
    """``liquid miner`` with the padded replica."""
    from neurons.miner import main

    return main(arguments, PaddedReplica)


def write_run(run: RunConfig, folder: Path) -> Path:
    """The run as a file."""
    path = folder / "run.toml"
    path.write_text(run.to_toml())
    return path


class Swarm:
    """The network of one arm."""

    def __init__(self, internet: Internet, run: RunConfig, folder: Path, program: list[str]) -> None:
        self.internet, self.run, self.folder, self.program = internet, run, folder, program
        self.num_stages = run.stages.num_stages

    def play(self, rounds: int, pads: tuple[float, float], timeout_s: float) -> dict[str, Any]:
        """Train ``rounds`` rounds; what each took, and processor time while training."""
        wallets = self.folder / "wallets"
        owner = create_wallet(wallets, "owner")[1]
        with ExitStack() as stack:
            self._start_orchestrator(stack, owner, rounds)
            for stage in range(self.num_stages):
                create_wallet(wallets, f"m{stage}")
                self._start_miner(stack, stage, owner, pads)
            entries, samples = self._watch(rounds, time.monotonic() + timeout_s)
            self.internet.stop()
        return {"rounds": rounds_of(entries), "cpu_share": _cpu_share(entries, samples), **self._counts(pads)}

    def _start(self, stack: ExitStack, host: int, name: str, command: list[str]) -> None:
        log = stack.enter_context((self.folder / f"{name}.log").open("a"))
        self.internet.start(host, command, log)

    def _flags(self, host: int, name: str) -> list[str]:
        flags = ["--subtensor.network", "none", "--wallet.path", str(self.folder / "wallets"), "--wallet.name", name]
        flags += ["--axon.ip", address(host), "--axon.port", str(PORT)]
        return [*flags, "--neuron.data_dir", str(self.folder / "data")]

    def _start_orchestrator(self, stack: ExitStack, owner: Hotkey, rounds: int) -> None:
        command = [*self.program, "orchestrator", "--run", str(write_run(self.run, self.folder))]
        command += ["--stop_after_rounds", str(rounds), *self._flags(self.num_stages, "owner")]
        self._start(stack, self.num_stages, "orchestrator", [*command, "--orchestrator.hotkey", owner])

    def _start_miner(self, stack: ExitStack, stage: int, owner: Hotkey, pads: tuple[float, float]) -> None:
        os.environ[PADS] = f"{pads[0]},{pads[1]},{self.folder / f'calls-{stage}.log'}"
        url = f"http://{address(self.num_stages)}:{PORT}"
        command = [*self.program, "miner", *self._flags(stage, f"m{stage}"), "--orchestrator.url", url]
        self._start(stack, stage, f"m{stage}", [*command, "--orchestrator.hotkey", owner])

    def _watch(self, rounds: int, deadline_s: float) -> tuple[list[LedgerEntry], list[tuple[float, float]]]:
        """The ledger when the last round is trained, and samples of (time, processor time) on the way."""
        entries: list[LedgerEntry] = []
        samples: list[tuple[float, float]] = []
        while sum(played["train_s"] > 0 for played in rounds_of(entries)) < rounds:
            if time.monotonic() > deadline_s or any(child.poll() is not None for child in self.internet.children):
                raise SystemExit(f"our network failed:\n{self._tails()}")
            time.sleep(LOOK_S)
            samples.append((time.time(), cpu_seconds()))
            entries += self._ledger(len(entries))
        return entries, samples

    def _ledger(self, have: int) -> list[LedgerEntry]:
        paths = list((self.folder / "data").glob("*/orchestrator/ledger.sqlite"))
        if not paths:
            return []
        connection = sqlite3.connect(f"file:{paths[0]}?mode=ro", uri=True, timeout=5.0)
        try:
            rows = connection.execute("SELECT entry FROM ledger WHERE seq >= ? ORDER BY seq", (have,)).fetchall()
        except sqlite3.OperationalError:
            return []  # the table is only just being made
        finally:
            connection.close()
        return [decode(LedgerEntry, row[0]) for row in rows]

    def _tails(self) -> str:
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{path.name}: {path.read_text()[-1500:]}" for path in logs)

    def _counts(self, pads: tuple[float, float]) -> dict[str, int]:
        """How often the engines were called, and how often one took longer by itself than its padded time."""
        calls = [line.split() for path in self.folder.glob("calls-*.log") for line in path.read_text().splitlines()]
        return {"calls": len(calls), "late": sum(float(own_s) > pads[int(which)] for which, own_s, *_ in calls)}


def rounds_of(entries: list[LedgerEntry]) -> list[dict[str, float]]:
    """Seconds of TRAINING and of the edge after it, for each round; the last one's edge is not waited for."""
    found: list[dict[str, float]] = []
    for entry in entries:
        if entry.kind is LedgerKind.ROUND_OPENED:
            if found:
                found[-1]["edge_s"] = entry.time_s - found[-1]["ended_at_s"]
            found.append({"opened_at_s": entry.time_s, "ended_at_s": 0.0, "train_s": 0.0, "edge_s": 0.0})
        elif entry.kind is LedgerKind.PHASE_CHANGED and entry.body["phase"] == Phase.COMMITTING:
            found[-1]["ended_at_s"] = entry.time_s
            found[-1]["train_s"] = entry.time_s - found[-1]["opened_at_s"]
    return found


def _cpu_share(entries: list[LedgerEntry], samples: list[tuple[float, float]]) -> float:
    """Share of all cores that the network used while it trained."""
    used_s = passed_s = 0.0
    for trained in rounds_of(entries):
        inside = [sample for sample in samples if trained["opened_at_s"] <= sample[0] <= trained["ended_at_s"]]
        if len(inside) > 1:
            used_s += inside[-1][1] - inside[0][1]
            passed_s += inside[-1][0] - inside[0][0]
    return used_s / passed_s / (os.cpu_count() or 1) if passed_s else 0.0
