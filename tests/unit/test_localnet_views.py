"""What people see of a localnet: the headline, the live table, and the summary with its JSON twin."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from typing import Any

from rich.console import Console

from neurons.watch import arguments
from subnet.chain.base import ChainSnapshot, NeuronInfo
from subnet.config import parse_run_config
from subnet.hashing import EMPTY_ROOT
from subnet.localnet.checks import Claim, Facts
from subnet.localnet.summary import Timing, as_json, show, watch_command
from subnet.localnet.table import Picture, headline, render, utilisation_line
from subnet.records import RoundClosed
from subnet.swarm.view import RunView
from subnet.types import Hotkey, MicrobatchId, RoundId, StageId, Uid

NAMES = {Hotkey("m1"): "miner-1", Hotkey("m2"): "miner-2", Hotkey("v1"): "validator-1"}
NEURONS = (
    NeuronInfo(Uid(1), Hotkey("m1"), "c", "", False, 2 * 10**9, 0.75, 0.0, 10**9, 1, {}),
    NeuronInfo(Uid(2), Hotkey("m2"), "c", "", False, 0, 0.25, 0.0, 0, 1, {}),
    NeuronInfo(Uid(3), Hotkey("v1"), "c", "", True, 0, 0.0, 1.0, 0, 1, {Uid(1): 0.75, Uid(2): 0.25}),
)
CHAIN = ChainSnapshot(1, 77, 20, 60, Hotkey("o"), "c", 0, NEURONS, {})


def miner(hotkey: str, stage: int, beat: dict[str, Any] | None) -> dict[str, Any]:
    return {"hotkey": hotkey, "stage": stage, "state": "active", "passed": 3, "failed": 1, "beat": beat}


RUN_FIGURES: dict[str, Any] = {
    "cu": 0.7149,
    "cu_training": 0.9,
    "mfu": 0.0234,
    "goodput": 1.0,
    "model_flops_per_token": 1000.0,
    "boundary_flops_per_token": 0.0,
}
STATUS: dict[str, Any] = {
    "round": 4,
    "phase": "training",
    "reason": "formed",
    "deadline_s": 130.0,
    "now_s": 100.0,
    "mean_loss": 2.34567,
    "bytes_per_token_per_boundary": 256.0,
    "verdicts": {"passed": 5},
    "utilisation": {"run": RUN_FIGURES, "miners": {"m1": {"cu": 0.5}}},
    "miners": [miner("m2", 1, None), miner("m1", 0, {"phase": "training", "held": 2, "queue": 17, "applied": 40})],
}
PICTURE = Picture(STATUS, CHAIN, NAMES, ("validator-1",), 2100.4)


def drawn(renderable: object) -> str:
    out = StringIO()
    Console(file=out, width=140).print(renderable)
    return out.getvalue()


def test_the_headline_is_one_line_with_phase_reason_and_figures() -> None:
    line = headline(PICTURE)
    assert line == (
        "round 4 | training (formed, 30 s left) | loss 2.346 | 2100 tokens/s | 256.0 B/token/boundary"
        " | audits 5 passed 0 failed | block 77"
    )


def test_what_is_not_known_yet_is_a_dash_and_a_passed_deadline_is_zero() -> None:
    early = STATUS | {"mean_loss": None, "bytes_per_token_per_boundary": None, "deadline_s": 90.0}
    line = headline(Picture(early, None, NAMES, (), None))
    assert "(formed, 0 s left) | loss - | - tokens/s | - B/token/boundary" in line
    assert "block" not in line


def test_the_table_has_a_row_per_miner_in_the_order_of_names() -> None:
    rows = [line for line in drawn(render(PICTURE)).splitlines() if "miner-" in line]
    cells = [[cell.strip() for cell in row.strip("│").split("│")] for row in rows]
    assert cells == [
        ["miner-1", "0", "active", "training", "2", "17", "40", "3/4", "0.750", "0.750", "2.00"],
        ["miner-2", "1", "active", "-", "-", "-", "-", "3/4", "0.250", "0.250", "0.00"],
    ]


def test_utilisation_is_one_line_of_the_table() -> None:
    line = "CU 71.5 % (90 % in training), MFU 2.34 % of measured matmul peak, goodput 100 % of processed"
    assert utilisation_line(RUN_FIGURES) == line
    assert [text.strip() for text in drawn(render(PICTURE)).splitlines() if "MFU" in text] == [line]
    overhead = utilisation_line(RUN_FIGURES | {"boundary_flops_per_token": 31.0})
    assert overhead == line + "; boundaries 3.1 % more FLOPs, not counted"
    unknown = dict.fromkeys(("cu", "cu_training", "mfu", "goodput"))
    assert utilisation_line(RUN_FIGURES | unknown).startswith("CU - (- in training), MFU - of")


def facts() -> Facts:
    view = RunView(config=parse_run_config({"model": {"width": 128}}))
    lost, doubled, released = MicrobatchId(1), MicrobatchId(2), MicrobatchId(3)
    view.closed = [
        RoundClosed(
            round=RoundId(0),
            committed=True,
            reason="merged",
            num_complete=5,
            partial=((lost, (StageId(0),)),),
            duplicate=((doubled, (StageId(1),)),),
            released=(released,),
            params_roots=(EMPTY_ROOT,),
            mean_loss=2.0,
        )
    ]
    points = {Hotkey("m1"): 3.0}
    return Facts(view, NAMES, {}, {}, ["miner-1", "miner-2"], ["validator-1"], 2.0, 2.5, 2.4, [], 0, points, NEURONS)


MADE = [Claim("it learns", True, "2.0 < 2.4"), Claim("it [is] honest", False, "no [bold]")]


def test_the_summary_is_json_and_adds_up() -> None:
    summary = json.loads(json.dumps(as_json(facts(), MADE, Timing(20.0, 10.0, 4000, 1), STATUS)))
    assert summary["tokens_per_s"] == 400.0
    assert summary["ratio_to_bf16"] == 2.0  # 4 x 128 bytes of bf16, both ways
    assert summary["microbatches"] == {"complete": 5, "partial": 1, "duplicate": 1, "re-leased": 1}
    assert [row["weights"] for row in summary["miners"]] == [[0.75], [0.25]]
    assert [row["earned_rao"] for row in summary["miners"]] == [2 * 10**9, 0]
    assert [row["points"] for row in summary["miners"]] == [3.0, 0.0]
    assert summary["utilisation"] == RUN_FIGURES
    assert [row["utilisation"] for row in summary["miners"]] == [{"cu": 0.5}, None]
    assert not summary["ok"]
    assert as_json(facts(), MADE[:1], Timing(20.0, 10.0, 4000, 1), STATUS)["ok"]


def test_a_network_without_chain_bytes_and_time_still_has_a_summary() -> None:
    bare = replace(facts(), neurons=None, held_out_loss=None, bypassed_loss=None)
    summary = as_json(bare, [], Timing(1.0, 0.0, 0, 1), {})
    assert (summary["tokens_per_s"], summary["ratio_to_bf16"]) == (0.0, None)
    assert "held-out" not in shown(summary)
    assert "MFU" not in shown(summary)


def shown(summary: dict[str, Any]) -> str:
    out = StringIO()
    show(Console(file=out, width=140), summary)
    return out.getvalue()


def test_people_see_a_tick_or_a_cross_and_claims_as_they_are() -> None:
    text = shown(as_json(facts(), MADE, Timing(20.0, 10.0, 4000, 1), STATUS))
    assert "✓ it learns: 2.0 < 2.4" in text
    assert "✗ it [is] honest: no [bold]" in text
    assert "held-out loss 2.0000 nats (bigram entropy 2.4000), without the middle stage 2.5000" in text
    assert "MFU 2.34 % of measured matmul peak, goodput 100 % of processed (2 miners share 1 cores: at most" in text
    assert "5 complete, 1 partial, 1 duplicate, 1 re-leased" in text


def test_nothing_is_said_of_a_middle_stage_that_there_is_not() -> None:
    text = shown(as_json(replace(facts(), bypassed_loss=None), [], Timing(1.0, 1.0, 1, 2), STATUS))
    assert "held-out loss 2.0000" in text
    assert "middle stage" not in text


def test_the_command_for_watching_emissions_is_one_that_the_program_takes() -> None:
    words = watch_command("ws://127.0.0.1:9944", 3).split()
    assert words[:2] == [".venv/bin/liquid", "watch"]
    assert vars(arguments(words[2:]))["subtensor.network"] == "ws://127.0.0.1:9944"
