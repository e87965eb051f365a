"""The live table of a network on this machine, and plain lines where there is no terminal.

Not here: gathering (the orchestrator's ``/v1/status`` and the chain). Pure: figures in, rich renderables or text out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from subnet.chain.base import RAO_PER_ALPHA, ChainSnapshot
from subnet.types import Hotkey


@dataclass(frozen=True)
class Picture:
    """One moment. ``status`` is the orchestrator's; ``chain`` None without one."""

    status: Mapping[str, Any]
    chain: ChainSnapshot | None
    names: Mapping[Hotkey, str]
    validators: tuple[str, ...]
    tokens_per_s: float | None


def _number(value: float | None, form: str = ".4g") -> str:
    return "-" if value is None else format(value, form)


def headline(picture: Picture) -> str:
    """The run in one line."""
    status = picture.status
    left_s = max(0.0, float(status["deadline_s"]) - float(status["now_s"]))
    parts = [
        f"round {status['round']}",
        f"{status['phase']} ({status['reason']}, {left_s:.0f} s left)",
        f"loss {_number(status['mean_loss'])}",
        f"{_number(picture.tokens_per_s, '.0f')} tokens/s",
        f"{_number(status['bytes_per_token_per_boundary'], '.1f')} B/token/boundary",
        f"audits {status['verdicts'].get('passed', 0)} passed {status['verdicts'].get('failed', 0)} failed",
    ]
    if picture.chain is not None:
        parts.append(f"block {picture.chain.block}")
    return " | ".join(parts)


def utilisation_line(run: Mapping[str, Any]) -> str:
    """MFU, compute utilisation and goodput of a run in one line; ``run`` as in the orchestrator's status."""
    overhead = run["boundary_flops_per_token"] / run["model_flops_per_token"]
    parts = [
        f"CU {_percent(run['cu'])} ({_percent(run['cu_training'])} in training)",
        f"MFU {_percent(run['mfu'])} of measured matmul peak",
        f"goodput {_percent(run['goodput'])} of processed",
    ]
    return ", ".join(parts) + (f"; boundaries {_percent(overhead)} more FLOPs, not counted" if overhead else "")


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.3g} %"


def _weights(picture: Picture, hotkey: str) -> str:
    if picture.chain is None:
        return "-"
    by_name = {picture.names.get(known.hotkey): known for known in picture.chain.neurons}
    me = picture.chain.neuron(Hotkey(hotkey))
    if me is None:
        return "-"
    found = [by_name[name].weights.get(me.uid, 0.0) for name in picture.validators if name in by_name]
    return " ".join(f"{weight:.3f}" for weight in found) or "-"


def render(picture: Picture) -> RenderableType:
    """Headline, utilisation and a row per miner."""
    table = Table(expand=False)
    columns = (
        "miner",
        "stage",
        "state",
        "phase",
        "held",
        "queue",
        "applied",
        "audits",
        "weights",
        "incentive",
        "alpha",
    )
    for name in columns:
        table.add_column(name, justify="left" if name in ("miner", "state", "phase") else "right")
    for miner in sorted(picture.status["miners"], key=lambda item: picture.names.get(item["hotkey"], "")):
        beat = miner["beat"] or {}
        neuron = picture.chain.neuron(miner["hotkey"]) if picture.chain else None
        table.add_row(
            picture.names.get(miner["hotkey"], miner["hotkey"][:8]),
            str(miner["stage"]),
            miner["state"],
            str(beat.get("phase", "-")),
            str(beat.get("held", "-")),
            str(beat.get("queue", "-")),
            str(beat.get("applied", "-")),
            f"{miner['passed']}/{miner['passed'] + miner['failed']}",
            _weights(picture, miner["hotkey"]),
            _number(neuron.incentive if neuron else None, ".3f"),
            _number(neuron.stake_rao / RAO_PER_ALPHA if neuron else None, ".2f"),
        )
    return Group(Text(headline(picture)), Text(utilisation_line(picture.status["utilisation"]["run"])), table)
