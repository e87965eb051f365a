"""When a replica steps in a round: fixed by the round document, so that a validator knows it too.

Invariant: every stage takes about ``inner_steps`` steps per round however many replicas it has, because a replica's
tokens per step are its share of the round's (design.md section 4).
"""

from __future__ import annotations

from subnet.config import RunConfig
from subnet.records import RoundDocument
from subnet.swarm.router import expected_tokens
from subnet.train.engine import StepPlan
from subnet.types import Hotkey


def step_plan(document: RoundDocument, run: RunConfig, hotkey: Hotkey) -> StepPlan:
    """The plan of one replica of the roster."""
    num_steps = run.round.inner_steps
    round_tokens = len(document.microbatches()) * run.microbatch_tokens
    return StepPlan(
        run_tokens=document.first_microbatch * run.microbatch_tokens,
        step_tokens=expected_tokens(document, run, hotkey) / num_steps,
        run_step_tokens=round_tokens / num_steps,
    )
