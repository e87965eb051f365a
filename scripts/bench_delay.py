"""How well does each inner optimiser bear gradients that come late?

Three stages in one process and one thread, fed as by 1F1B: at every tick each stage computes one forward, one backward
and a step. The microbatch whose backward the first stage computes began there D ticks before; later stages wait less,
the last one not at all. A backward uses the parameters of its forward, as in the network.
Loss is held-out, in nats per token, of the last parameters; each optimiser at each delay is given at its best learning
rate, which the first seed chooses.
Validity: loss does not depend on how busy the machine is; a run is valid if all its arms finished.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

NUM_STAGES = 3
BLOCKS_PER_STAGE = 2
HELD_OUT_BATCHES = 16
TOKENS = 143_360
RATES = (5e-4, 1e-3, 2e-3, 4e-3)
QUICK_RATE = 2e-3


@dataclass(frozen=True)
class Arm:
    """One training. ``delay``: of the first stage, in steps."""

    optimizer: str
    learning_rate: float
    delay: int
    seed: int


def run_config(arm: Arm) -> Any:
    """The arm's RunConfig."""
    from subnet.config import parse_run_config
    from subnet.data.corpus import load_corpus

    plain = {
        "name": "delay",
        "seed": arm.seed,
        "model": {"num_blocks": NUM_STAGES * BLOCKS_PER_STAGE},
        "stages": {"num_stages": NUM_STAGES, "blocks": [BLOCKS_PER_STAGE] * NUM_STAGES},
        "boundary": {"kind": "none"},
        "data": {"corpus_hash": load_corpus("stdlib", 0.05).digest},
        "inner": {"optimizer": arm.optimizer, "learning_rate": arm.learning_rate, "warmup_tokens": TOKENS // 10},
    }
    return parse_run_config(plain)


class LatePipeline:
    """The stages with a delay between them. ``waits``: of every stage, ticks from its forward to its backward."""

    def __init__(self, run: Any, delay: int) -> None:
        from subnet.train.engine import StageEngine, StepPlan
        from subnet.types import StageId

        self.engines = [StageEngine(run, StageId(stage)) for stage in range(run.stages.num_stages)]
        tokens = run.microbatch_tokens
        for engine in self.engines:
            engine.begin(engine.initial_state(), StepPlan(0.0, tokens, tokens))
        last = max(len(self.engines) - 1, 1)
        # Half of the delay passes on the way to the last stage, the other half on the way back.
        self._ahead = [delay * stage // (2 * last) for stage in range(len(self.engines))]
        self._back = [delay - ahead for ahead in self._ahead]
        self.waits = [back - ahead for back, ahead in zip(self._back, self._ahead, strict=True)]
        self._outputs: dict[int, Any] = {}
        self._grads: dict[int, Any] = {}

    def tick(self, now: int, batches: list[Any]) -> None:
        """Every stage's forward, then every stage's backward and step, of the microbatches that are due."""
        from subnet.types import MicrobatchId

        for engine, ahead in zip(self.engines, self._ahead, strict=True):
            number = now - ahead
            if 0 <= number < len(batches):
                packed = self._outputs.pop(number, None)
                self._outputs[number] = engine.forward(MicrobatchId(number), batches[number], packed).outputs
        for engine, back in zip(reversed(self.engines), reversed(self._back), strict=True):
            number = now - back
            if 0 <= number < len(batches):
                self._grads[number] = engine.backward(MicrobatchId(number), self._grads.pop(number, None)).grads
                engine.step()


def train(arm: Arm) -> float:
    """Held-out loss of an arm, in nats per token."""
    import torch

    from subnet.data.batches import held_out_batches, tokens
    from subnet.data.corpus import load_corpus
    from subnet.model.stages import full_model
    from subnet.types import MicrobatchId

    run, corpus = run_config(arm), load_corpus("stdlib", 0.05)
    num_microbatches = TOKENS // run.microbatch_tokens
    batches = [torch.from_numpy(tokens(run, corpus, MicrobatchId(number))) for number in range(num_microbatches)]
    pipeline = LatePipeline(run, arm.delay)
    for now in range(num_microbatches + arm.delay):
        pipeline.tick(now, batches)
    model = full_model(run)
    model.load_stages([engine.params() for engine in pipeline.engines])
    with torch.no_grad():
        held_out = held_out_batches(run, corpus, HELD_OUT_BATCHES)
        return sum(model.loss(torch.from_numpy(part)).item() for part in held_out) / len(held_out)


def sweep(kinds: list[str], delays: list[int], rates: Sequence[float], seeds: int) -> dict[Arm, float]:
    """Losses of all arms: every learning rate with the first seed, further seeds at the best rate of each."""
    losses: dict[Arm, float] = {}

    def measure(arm: Arm) -> float:
        losses[arm] = train(arm)
        print(
            f"{arm.optimizer:6} delay {arm.delay}  rate {arm.learning_rate:g}  seed {arm.seed}  {losses[arm]:.4f}",
            flush=True,
        )
        return losses[arm]

    for kind in kinds:
        for delay in delays:
            best = min((Arm(kind, rate, delay, 1) for rate in rates), key=measure)
            for seed in range(2, seeds + 1):
                measure(replace(best, seed=seed))
    return losses


def figures(losses: dict[Arm, float], kind: str, delay: int) -> dict[str, Any]:
    """What one optimiser reaches at one delay: at its best learning rate, and at each that was tried."""
    own = {arm: loss for arm, loss in losses.items() if (arm.optimizer, arm.delay) == (kind, delay)}
    tried = {arm.learning_rate: loss for arm, loss in own.items() if arm.seed == 1}
    rate = min(tried, key=tried.__getitem__)
    found = [loss for arm, loss in own.items() if arm.learning_rate == rate]
    return {
        "loss": sum(found) / len(found),
        "spread_pct": 100 * (max(found) / min(found) - 1),
        "learning_rate": rate,
        "by_rate": {f"{key:g}": loss for key, loss in tried.items()},
    }


def main() -> None:
    """Run the arms, print the table and the JSON line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="one seed and one learning rate")
    parser.add_argument("--seeds", type=int, help="default: 2")
    parser.add_argument("--delays", default="0,4", help="of the first stage, in steps; comma-separated")
    parser.add_argument("--optimizers", default="adamw,nadam,muon", help="comma-separated")
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    kinds = arguments.optimizers.split(",")
    delays = [int(part) for part in arguments.delays.split(",")]
    seeds = arguments.seeds or (1 if arguments.quick else 2)
    began_s = time.monotonic()
    losses = sweep(kinds, delays, [QUICK_RATE] if arguments.quick else RATES, seeds)
    summary: dict[str, Any] = {
        kind: {f"delay_{delay}": figures(losses, kind, delay) for delay in delays} for kind in kinds
    }
    print(f"\n{'optimiser':10}" + "".join(f"{f'delay {delay}':>24}" for delay in delays))
    for kind in kinds:
        cells = [summary[kind][f"delay_{delay}"] for delay in delays]
        print(f"{kind:10}" + "".join(f"{cell['loss']:14.4f} at {cell['learning_rate']:g}".rjust(24) for cell in cells))
    summary |= {"seeds": seeds, "tokens": TOKENS, "wall_s": time.monotonic() - began_s, "valid": True}
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
