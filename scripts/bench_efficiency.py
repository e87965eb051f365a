"""How much of these cores' training speed does the network keep?

Arms, interleaved: as many independent single-thread training processes as there are cores (the same model, microbatches
and optimiser, no network), a network of two stages, and one of four; each network is an orchestrator and one miner per
stage as separate programs with signed HTTP between them. Reported: tokens/s of a network, from the opening of its first
round to the end of its last merge, over the mean of the independent arms before and after it.
Validity: the independent arms must agree within ``MAX_SPREAD``, or the machine was too busy with other things.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

MAX_SPREAD = 0.15
# As many microbatches in flight as 1F1B needs: the preset keeps one per first-stage replica, for the optimiser's sake.
# Microbatches and rounds of a size that a run between homes has: the preset's are a demonstration's, of 512 tokens and
# a few seconds, and what a message and a round's edge cost would hide what the pipeline costs. Optimiser and boundary
# are what both sides can have at no cost of their own: learned ends work more, the more stages there are.
SETTINGS = {
    "round.in_flight": 0,
    "data.sequences": 32,
    "round.microbatches": 96,
    "boundary.kind": "int8",
    "inner.optimizer": "adamw",
    "inner.learning_rate": 2e-3,
}
WARM_UP = 2  # microbatches that are not timed


def worker(num_microbatches: int) -> None:
    """One independent process: tokens/s of plain training on one thread."""
    import torch

    from subnet.config import load_run_config
    from subnet.data.batches import tokens
    from subnet.data.corpus import load_corpus
    from subnet.model.stages import full_model
    from subnet.types import MicrobatchId

    torch.set_num_threads(1)
    run = load_run_config("localnet").with_values(**SETTINGS)
    corpus = load_corpus(run.data.source, run.data.held_out_share)
    model = full_model(run)
    optimizer = torch.optim.AdamW(model.parameters(), lr=run.inner.learning_rate)
    print("ready", flush=True)
    sys.stdin.readline()
    began_s = 0.0
    for number in range(num_microbatches + WARM_UP):
        if number == WARM_UP:
            began_s = time.perf_counter()
        torch.autograd.backward(model.losses(torch.from_numpy(tokens(run, corpus, MicrobatchId(number)))))
        torch.nn.utils.clip_grad_norm_(model.parameters(), run.inner.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
    print(num_microbatches * run.microbatch_tokens / (time.perf_counter() - began_s), flush=True)


def independent(num_processes: int, num_microbatches: int) -> float:
    """Summed tokens/s of independent processes that start together."""
    command = [sys.executable, __file__, "--worker", str(num_microbatches)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen(command, env=environment, **pipes) for _ in range(num_processes)]  # type: ignore[call-overload]
    for process in workers:
        process.stdout.readline()
    for process in workers:
        process.stdin.write("go\n")
        process.stdin.flush()
    speeds = [float(process.stdout.readline()) for process in workers]
    for process in workers:
        process.wait()
    return sum(speeds)


def network(num_stages: int, rounds: int) -> dict[str, Any]:
    """Figures of a network with one replica per stage."""
    command = [sys.executable, "-m", "neurons.cli", "localnet", "--no-chain", "--validators", "0", "--replicas", "1"]
    command += ["--stages", str(num_stages), "--rounds", str(rounds), "--json"]
    command += [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    # So few rounds are too few to learn what the summary claims, so its exit code says nothing here.
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    if not done.stdout.strip():
        raise SystemExit(f"the network failed:\n{done.stderr[-2000:]}")
    summary: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return summary


def main() -> None:
    """Run all arms, print the table and the JSON line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer rounds; the same figures")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker is not None:
        worker(arguments.worker)
        return
    cores, rounds = os.cpu_count() or 1, 1 if arguments.quick else 3
    num_microbatches = 12 if arguments.quick else 40
    bases, speeds, used = [independent(cores, num_microbatches)], {}, {}
    for num_stages in (2, 4):
        summary = network(num_stages, rounds)
        speeds[num_stages], used[num_stages] = summary["tokens_per_s"], summary["utilisation"]
        bases.append(independent(cores, num_microbatches))
    ratios = {stages: speeds[stages] / ((bases[place] + bases[place + 1]) / 2) for place, stages in enumerate((2, 4))}
    spread = (max(bases) - min(bases)) / (sum(bases) / len(bases))
    print(f"{'arm':28} {'tokens/s':>10} {'ratio':>7}")
    for place, base in enumerate(bases):
        print(f"{f'{cores} independent ({place + 1})':28} {base:10.0f}")
    for stages in (2, 4):
        print(f"{f'network of {stages} stages':28} {speeds[stages]:10.0f} {ratios[stages]:7.3f}")
    print(f"independent arms spread over {spread:.1%} (valid up to {MAX_SPREAD:.0%})")
    figures = {
        "ratio_two_stages": ratios[2],
        "ratio_four_stages": ratios[4],
        "tokens_per_s_independent": bases,
        "tokens_per_s_two_stages": speeds[2],
        "tokens_per_s_four_stages": speeds[4],
        "utilisation_two_stages": used[2],
        "utilisation_four_stages": used[4],
        "cores": cores,
        "spread": spread,
        "valid": spread <= MAX_SPREAD,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
