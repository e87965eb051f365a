"""What does it cost in loss that little crosses a boundary?

Arms train the same four-stage model on the same tokens in the same order, each as the network would: one engine per
stage, the boundary's bytes between them, clip and optimiser per stage. ``baseline`` carries hidden states uncompressed
and has the same predictors as the compressed arms; ``plain`` has none; ``b0`` sends nothing but token ids, the control
without which a small gap means nothing. A gap is an arm's held-out loss over the baseline's of the same seed.
Bytes: bf16 activation and gradient (4 d per token) over all that a body holds both ways: values, scales, token ids.
Validity: loss does not depend on how busy the machine is; a run is valid if all its arms finished.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

HELD_OUT_BATCHES = 16
BF16_BYTES_PER_CHANNEL = 4  # activation and gradient
TOKEN_ID_BYTES = 1
INNER_STEPS = 8  # per round (H) of the arm with two replicas
OUTER_MOMENTUM = 0.6  # as in the local preset: 0.9 is too slow for so few rounds (docs/experiments.md)

# Numbers per token, and of how many tokens one has its gradient sent, by width: 63 to 65 times fewer bytes.
AT_64X = {128: (12, 8), 256: (22, 4), 512: (40, 2)}
AT_128X = {128: (4, 4), 256: (11, 8), 512: (24, 8)}  # 130 to 141 times


def code(dims: int, grad_stride: int = 1, kind: str = "anchored") -> dict[str, Any]:
    """Settings of a learned boundary. Fewer than 16 levels cost more than they save (docs/experiments.md)."""
    return {"boundary.kind": kind, "boundary.dims": dims, "boundary.grad_stride": grad_stride}


def replicas_of(arm: str) -> tuple[str, int]:
    """An arm's boundary, and the inner steps per round of its two replicas (0: it has one)."""
    if arm == "two_replicas":
        return "64x", INNER_STEPS
    boundary, _, steps = arm.partition("_h")
    return boundary, int(steps or 0)


def arm_settings(arm: str, width: int) -> dict[str, Any]:
    """What an arm changes."""
    scale, boundary = width // 128, replicas_of(arm)[0]
    return {
        "plain": {"boundary.kind": "none"},
        "baseline": {"boundary.kind": "none", "boundary.predictor": True},
        "b0": code(0),
        "16x": code(30 * scale),
        "64x": code(*AT_64X[width]),
        "128x": code(*AT_128X[width]),
        # Without a guess of its own, a sender learns nothing from a token that has no gradient.
        "resbm_64x": {**code(6 * scale, kind="resbm"), "boundary.grad_levels": 6, "boundary.predictor": True},
    }[boundary]


# Any arm followed by ``_hN``: two replicas of every stage that merge after N inner steps each.
ARMS = ("plain", "baseline", "b0", "16x", "64x", "128x", "resbm_64x", "two_replicas")
RATES = {"adamw": 2e-3, "muon": 3e-3}  # best of a sweep of the baseline (docs/experiments.md)
DECAY = {"adamw": 0.1, "muon": 0.25}


@dataclass(frozen=True)
class Job:
    """One arm with one seed. ``tokens``: predicted ones, in all."""

    arm: str
    optimizer: str
    seed: int
    tokens: int
    learning_rate: float
    width: int


def run_config(job: Job) -> Any:
    """The arm's RunConfig."""
    from subnet.config import parse_run_config
    from subnet.data.corpus import load_corpus

    plain = {
        "name": "parity",
        "seed": job.seed,
        "model": {
            "width": job.width,
            "num_heads": job.width // 32,
            "num_kv_heads": job.width // 64,
            "ffn_width": job.width * 11 // 4,
        },
        "stages": {"num_stages": 4, "blocks": [2, 2, 2, 2]},
        "outer": {"momentum": OUTER_MOMENTUM},
        "data": {"sequences": 16, "corpus_hash": load_corpus("stdlib", 0.05).digest},
        "inner": {
            "optimizer": job.optimizer,
            "learning_rate": job.learning_rate,
            "weight_decay": DECAY[job.optimizer],
            "warmup_tokens": job.tokens // 20,
            "total_tokens": job.tokens,
            "final_share": 0.0,
        },
    }
    return parse_run_config(plain).with_values(**arm_settings(job.arm, job.width))


class Pipeline:
    """The stages of one replica set, in one process."""

    def __init__(self, run: Any, first_stage: int = 0) -> None:
        from subnet.train.engine import StageEngine
        from subnet.types import StageId

        self.run = run
        self.engines = [StageEngine(run, StageId(stage)) for stage in range(first_stage, run.stages.num_stages)]

    def begin(self, states: list[Any], run_tokens: float, share: int = 1) -> None:
        """``share``: replica sets that step together."""
        from subnet.train.engine import StepPlan

        tokens = self.run.microbatch_tokens
        for engine, state in zip(self.engines, states, strict=True):
            engine.begin(state, StepPlan(run_tokens, tokens, tokens * share))

    def train(self, number: int, token_ids: Any, nothing: Any) -> None:
        """One microbatch there and back, and a step of every stage. ``nothing``: what crosses where nothing does."""
        from subnet.types import MicrobatchId

        crossed, grads, microbatch = nothing, None, MicrobatchId(number)
        for engine in self.engines:
            crossed = engine.forward(microbatch, token_ids, crossed).outputs
        for engine in reversed(self.engines):
            grads = engine.backward(microbatch, grads).grads
            if engine.should_step():
                engine.step()


def train(job: Job) -> float:
    """Held-out loss of an arm, in nats per token."""
    import torch

    from subnet.data.batches import held_out_batches, tokens
    from subnet.data.corpus import load_corpus
    from subnet.model.stages import full_model
    from subnet.types import MicrobatchId

    torch.set_num_threads(1)
    run, corpus = run_config(job), load_corpus("stdlib", 0.05)
    # Without anything that crosses, the stages before the last get no gradient: they need not be run.
    is_alone = job.arm == "b0"
    inner_steps = replicas_of(job.arm)[1]
    num_sets = 2 if inner_steps else 1
    sets = [Pipeline(run, 3 if is_alone else 0) for _ in range(num_sets)]
    nothing = (
        sets[0].engines[0].boundary.pack(torch.zeros(run.data.sequences, run.model.seq_len, 0)) if is_alone else None
    )
    states = [engine.initial_state() for engine in sets[0].engines]
    for pipeline in sets:
        pipeline.begin(states, 0.0, num_sets)
    num_microbatches = job.tokens // run.microbatch_tokens
    per_round = num_sets * inner_steps or num_microbatches
    outer = Outer(run, states) if num_sets > 1 else None
    for number in range(num_microbatches):
        batch = torch.from_numpy(tokens(run, corpus, MicrobatchId(number)))
        sets[number % num_sets].train(number, batch, nothing)
        if outer is not None and ((number + 1) % per_round == 0 or number + 1 == num_microbatches):
            outer.merge(sets, (number + 1) * run.microbatch_tokens)
    model = full_model(run)
    flats = [engine.params() for engine in sets[0].engines]
    if is_alone:
        flats = [torch.cat([item.detach().flatten() for item in stage.parameters()]).numpy() for stage in model.stages][
            :3
        ] + flats
    model.load_stages(flats)
    with torch.no_grad():
        held_out = held_out_batches(run, corpus, HELD_OUT_BATCHES)
        return sum(model.loss(torch.from_numpy(part)).item() for part in held_out) / len(held_out)


class Outer:
    """The merge at the end of a round, as the replicas of a network do it."""

    def __init__(self, run: Any, states: list[Any]) -> None:
        import numpy as np

        self.run = run
        self.params = [state.params.copy() for state in states]
        self.momentum = [np.zeros_like(flat) for flat in self.params]

    def merge(self, sets: list[Pipeline], run_tokens: float) -> None:
        """One outer step of every stage; all replicas go on from it, each with its own moments."""
        from subnet.train.merge import Contribution, merge_shard, norm, pseudo_grad
        from subnet.types import Hotkey

        for stage in range(len(self.params)):
            parts = []
            for index, pipeline in enumerate(sets):
                grad = pseudo_grad(self.params[stage], pipeline.engines[stage].params())
                parts.append(Contribution(Hotkey(str(index)), grad, 1, norm(grad)))
            self.params[stage], self.momentum[stage] = merge_shard(
                self.params[stage], self.momentum[stage], parts, self.run.outer
            )
        for pipeline in sets:
            states = [
                engine.snapshot({}).with_params(flat)
                for engine, flat in zip(pipeline.engines, self.params, strict=True)
            ]
            pipeline.begin(states, run_tokens, len(sets))


def ratio_bytes(job: Job) -> float:
    """How many times fewer bytes cross than of a bf16 boundary."""
    from subnet.model.boundary import bytes_per_token

    return BF16_BYTES_PER_CHANNEL * job.width / (bytes_per_token(run_config(job)) + TOKEN_ID_BYTES)


def in_processes(jobs: list[Job]) -> Iterator[tuple[Job, float]]:
    """Each job in a process of its own, as many at a time as there are cores."""

    def one(job: Job) -> tuple[Job, float]:
        command = [sys.executable, __file__, "--job", json.dumps(asdict(job))]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            raise SystemExit(f"{job} failed:\n{done.stderr[-2000:]}")
        return job, float(done.stdout)

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        yield from pool.map(one, jobs)


def figures(losses: dict[str, list[float]]) -> dict[str, Any]:
    """The keys of one optimiser; means over paired seeds."""
    baseline = losses["baseline"]

    def gap_pct(arm: str) -> float | None:
        if arm not in losses:
            return None
        gaps = [100 * (loss / base - 1) for loss, base in zip(losses[arm], baseline, strict=True)]
        return sum(gaps) / len(gaps)

    b0, ours = gap_pct("b0"), gap_pct("64x")

    def won_back(gap: float | None) -> float | None:
        return 1 - gap / b0 if b0 and gap is not None else None

    return {
        "loss_baseline": sum(baseline) / len(baseline),
        "loss_plain": sum(losses["plain"]) / len(losses["plain"]) if "plain" in losses else None,
        "gap_64x_pct": ours,
        "gap_16x_pct": gap_pct("16x"),
        "gap_128x_pct": gap_pct("128x"),
        "gap_b0_pct": b0,
        "won_back_64x": won_back(ours),
        "won_back_16x": won_back(gap_pct("16x")),
        "gap_resbm_64x_pct": gap_pct("resbm_64x"),
        "gap_two_replicas_pct": gap_pct("two_replicas"),
        "spread_pct": 100 * (max(baseline) / min(baseline) - 1),
    }


def main() -> None:
    """Run the arms, print the table and the JSON line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="baseline, 64x and b0 only, with the better optimiser")
    parser.add_argument("--tokens", type=int, help="predicted tokens per arm")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--arms", default="", help="comma-separated; default: all")
    parser.add_argument("--optimizers", default="", help="comma-separated; default: muon,adamw")
    parser.add_argument("--width", type=int, default=128, choices=AT_64X)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job is not None:
        print(train(Job(**json.loads(arguments.job))))
        return
    tokens = arguments.tokens or (400_000 if arguments.quick else 1_000_000)
    arms = arguments.arms.split(",") if arguments.arms else ("baseline", "64x", "b0") if arguments.quick else ARMS
    kinds = (
        arguments.optimizers.split(",") if arguments.optimizers else ["muon"] if arguments.quick else ["muon", "adamw"]
    )
    jobs = [
        Job(arm, kind, seed, tokens, RATES[kind], arguments.width)
        for kind in kinds
        for arm in arms
        for seed in range(1, arguments.seeds + 1)
    ]
    began_s = time.monotonic()
    losses: dict[str, dict[str, list[float]]] = {kind: {} for kind in kinds}
    for job, loss in in_processes(jobs):
        losses[job.optimizer].setdefault(job.arm, []).append(loss)
        print(f"{job.optimizer:6} {job.arm:12} seed {job.seed}  {loss:.4f}  {ratio_bytes(job):6.1f}x", flush=True)
    by_kind = {kind: figures(found) for kind, found in losses.items()}
    best = min(kinds, key=lambda kind: by_kind[kind]["loss_baseline"])
    print(f"\n{'arm':12}" + "".join(f"{kind:>22}" for kind in kinds))
    for arm in arms:
        cells = []
        for kind in kinds:
            mean = sum(losses[kind][arm]) / len(losses[kind][arm])
            cells.append(f"{mean:.4f} ({100 * (mean / by_kind[kind]['loss_baseline'] - 1):+.2f} %)")
        print(f"{arm:12}" + "".join(f"{cell:>22}" for cell in cells))
    summary = {
        **by_kind[best],
        "optimizer": best,
        **by_kind,
        "ratio_64x_bytes": ratio_bytes(Job("64x", best, 1, tokens, RATES[best], arguments.width)),
        "seeds": arguments.seeds,
        "tokens": tokens,
        "width": arguments.width,
        "wall_s": time.monotonic() - began_s,
        "valid": True,
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
