"""The summary of a network that has ended: for people, and as one JSON object.

Not here: deciding (``subnet.localnet.checks``). Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from subnet.chain.base import RAO_PER_ALPHA
from subnet.localnet.checks import Claim, Facts
from subnet.localnet.table import utilisation_line

BF16_BYTES = 2


@dataclass(frozen=True)
class Timing:
    """Seconds and tokens: ``training_s`` from the first round's opening to the last one's end. ``cores``: of this
    machine, which all programs share."""

    wall_s: float
    training_s: float
    tokens: int
    cores: int

    @property
    def tokens_per_s(self) -> float:
        """Tokens of the run per second of training, merging included."""
        return self.tokens / self.training_s if self.training_s else 0.0


def classes(facts: Facts) -> dict[str, int]:
    """Microbatches by class over all rounds."""
    total: Counter[str] = Counter()
    for closed in facts.view.closed:
        total["complete"] += closed.num_complete
        total["partial"] += len(closed.partial)
        total["duplicate"] += len(closed.duplicate)
        total["re-leased"] += len(closed.released)
    return dict(total)


def _miner(facts: Facts, name: str, status: Mapping[str, Any]) -> dict[str, Any]:
    hotkey = facts.hotkey(name)
    verdicts = [item.verdict for item in facts.view.verdicts if item.verdict.hotkey == hotkey]
    neurons = {known.hotkey: known for known in facts.neurons or ()}
    peer, neuron = facts.view.peers.get(hotkey), neurons.get(hotkey)
    setters = [neurons[facts.hotkey(name)] for name in facts.validators if facts.hotkey(name) in neurons]
    return {
        "miner": name,
        "hotkey": hotkey,
        "uid": neuron.uid if neuron else None,
        "stage": peer.stage if peer else None,
        "audits": len(verdicts),
        "failed": sorted({verdict.reason for verdict in verdicts if verdict.outcome == "failed"}),
        "points": facts.points.get(hotkey, 0.0),
        "weights": [setter.weights.get(neuron.uid, 0.0) for setter in setters] if neuron else [],
        "incentive": neuron.incentive if neuron else None,
        "emission_rao": neuron.emission_rao if neuron else None,
        "earned_rao": neuron.stake_rao if neuron else None,
        "utilisation": status["utilisation"]["miners"].get(hotkey) if status else None,
    }


def as_json(facts: Facts, made: Sequence[Claim], timing: Timing, status: Mapping[str, Any]) -> dict[str, Any]:
    """All figures of the summary. ``status``: the orchestrator's last (empty: none was seen), for what peers say of
    themselves."""
    run, bytes_per_token = facts.view.run, status.get("bytes_per_token_per_boundary")
    return {
        "rounds": len(facts.view.closed),
        "tokens": timing.tokens,
        "wall_s": timing.wall_s,
        "tokens_per_s": timing.tokens_per_s,
        "held_out_loss": facts.held_out_loss,
        "bypassed_loss": facts.bypassed_loss,
        "bigram_entropy": facts.bigram_entropy,
        "bytes_per_token_per_boundary": bytes_per_token,
        "ratio_to_bf16": 2 * BF16_BYTES * run.model.width / bytes_per_token if bytes_per_token else None,
        "utilisation": status["utilisation"]["run"] if status else None,
        "cores": timing.cores,
        "microbatches": classes(facts),
        "miners": [_miner(facts, name, status) for name in facts.miners],
        "claims": [asdict(claim) for claim in made],
        "ok": all(claim.holds for claim in made),
    }


def show(console: Console, summary: Mapping[str, Any]) -> None:
    """The summary for people."""
    entropy, loss = summary["bigram_entropy"], summary["held_out_loss"]
    console.print(f"\n{summary['rounds']} rounds, {summary['tokens']:,} tokens in {summary['wall_s']:.0f} s", end="")
    console.print(f" ({summary['tokens_per_s']:.0f} tokens/s while training)")
    if loss is not None:
        bypassed = summary["bypassed_loss"]
        console.print(f"held-out loss {loss:.4f} nats (bigram entropy {entropy:.4f})", end="")
        console.print("" if bypassed is None else f", without the middle stage {bypassed:.4f}")
    if summary["ratio_to_bf16"]:
        figures = f"{summary['bytes_per_token_per_boundary']:.1f} bytes per token and boundary"
        console.print(f"{figures}, both ways and all counted: {summary['ratio_to_bf16']:.2f}x fewer than bf16")
    if summary["utilisation"]:
        console.print(utilisation_line(summary["utilisation"]) + _sharing(summary), highlight=False, soft_wrap=True)
    console.print("microbatches: " + ", ".join(f"{num} {name}" for name, num in summary["microbatches"].items()))
    table = Table()
    for name in ("miner", "uid", "stage", "audits", "failed", "weights", "incentive", "last epoch", "earned"):
        table.add_column(name, no_wrap=name != "weights")
    for row in summary["miners"]:
        table.add_row(
            row["miner"],
            _text(row["uid"]),
            _text(row["stage"]),
            str(row["audits"]),
            ", ".join(row["failed"]) or "-",
            " ".join(f"{weight:.4f}" for weight in row["weights"]) or "-",
            "-" if row["incentive"] is None else f"{row['incentive']:.4f}",
            _alpha(row["emission_rao"]),
            _alpha(row["earned_rao"]),
        )
    console.print(table)
    for claim in summary["claims"]:
        console.print(f"[{'green' if claim['holds'] else 'red'}]{'✓' if claim['holds'] else '✗'}[/] ", end="")
        console.print(f"{claim['text']}: {claim['detail']}", markup=False, highlight=False)


def _sharing(summary: Mapping[str, Any]) -> str:
    """Each miner claims a core's peak as its own; where they share cores, the sum is more than the machine has."""
    num, cores = len(summary["miners"]), summary["cores"]
    return f" ({num} miners share {cores} cores: at most {100 * cores / num:.0f} % MFU)" if num > cores else ""


def watch_command(url: str, netuid: int) -> str:
    """What a participant types to watch emissions on the network's chain."""
    return f".venv/bin/liquid watch --subtensor.network {url} --netuid {netuid}"


def _text(value: object) -> str:
    return "-" if value is None else str(value)


def _alpha(rao: int | None) -> str:
    return "-" if rao is None else f"{rao / RAO_PER_ALPHA:.2f} α"  # noqa: RUF001 - the sign of the subnet's token
