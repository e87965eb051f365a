"""What replicas claim of a round: what cannot be is refused, the rest becomes figures of the run and of each miner."""

from __future__ import annotations

import json
from collections.abc import Coroutine
from typing import Any

import pytest

from subnet.clock import LoopClock, run_virtual
from subnet.errors import Malformed
from subnet.net.base import ANONYMOUS, Request
from subnet.net.messages import Heartbeat
from subnet.orchestrate.efforts import CLOCK_SLACK_S, Efforts
from subnet.records import RoundEffort
from subnet.swarm.view import RETAINED_ROUNDS, RoundView
from subnet.types import Hotkey, Phase, RoundId
from tests.unit.fake_swarm import MINERS, RUN, FakeSwarm, fake_swarm, registration


def run(main: Coroutine[Any, Any, None]) -> None:
    run_virtual(main)


def effort(number: int, busy_s: float, num_forwards: int) -> RoundEffort:
    return RoundEffort(round=RoundId(number), busy_s=busy_s, num_forwards=num_forwards)


def beat(claim: RoundEffort) -> Heartbeat:
    return Heartbeat(
        round=claim.round,
        phase=Phase.TRAINING,
        is_drained=False,
        held=0,
        applied=0,
        queue=0,
        tokens_per_s=1.0,
        loss=None,
        wire_bytes=0,
        wire_tokens=0,
        staleness_max=0,
        effort=claim,
    )


async def shown(swarm: FakeSwarm) -> dict[str, Any]:
    assert swarm.service is not None
    answer = await swarm.service.handle(Request(ANONYMOUS, "GET", "/v1/status", {}, b"", None))
    figures: dict[str, Any] = json.loads(answer.body)["utilisation"]
    return figures


def open_round(swarm: FakeSwarm) -> RoundView:
    assert swarm.view.round is not None
    return swarm.view.round


@pytest.mark.parametrize(
    ("number", "busy_s", "num_forwards"),
    [
        (0, -1.0, 0),
        (0, 1e9, 0),
        (0, 0.0, -1),
        (0, 0.0, RUN.round.microbatches + 1),
        (1, 0.0, 0),
        (-1, 0.0, 0),
        (10**12, 0.0, 0),
    ],
)
def test_a_claim_that_cannot_be_is_refused_with_its_heartbeat(number: int, busy_s: float, num_forwards: int) -> None:
    async def main() -> None:
        async with fake_swarm() as swarm:
            await swarm.reaches(Phase.COMMITTING, 0)
            assert swarm.service is not None
            before = swarm.service.beats[MINERS[0]]
            with pytest.raises(Malformed):
                await swarm.post(MINERS[0], "/v1/heartbeat", beat(effort(number, busy_s, num_forwards)))
            assert swarm.service.beats[MINERS[0]] == before
            await swarm.post(MINERS[0], "/v1/heartbeat", beat(effort(0, 0.5, 1)))

    run(main())


def test_who_was_not_in_a_round_has_nothing_to_say_of_it() -> None:
    async def main() -> None:
        async with fake_swarm() as swarm:
            await swarm.reaches(Phase.TRAINING, 0)
            late = Hotkey("late")
            await swarm.post(late, "/v1/register", registration())
            with pytest.raises(Malformed):
                await swarm.post(late, "/v1/heartbeat", beat(effort(0, 0.0, 0)))
            assert late in open_round(swarm).held

    run(main())


def test_a_later_report_of_less_does_not_take_back_what_was_said_and_old_rounds_are_forgotten() -> None:
    async def main() -> None:
        async with fake_swarm() as swarm:
            await swarm.closes(0)
            view, now_s, efforts = swarm.view, LoopClock().now_s(), Efforts(RUN)
            for busy_s in (0.5, 0.25):
                efforts.take(view, MINERS[0], effort(0, busy_s, 1), now_s)
            wall_s = efforts.figures(view)["run"]["wall_s"]
            assert efforts.figures(view)["miners"][MINERS[0]]["cu"] == pytest.approx(0.5 / wall_s)
            await swarm.closes(RETAINED_ROUNDS)
            view, now_s = swarm.view, LoopClock().now_s()
            efforts.take(view, MINERS[0], effort(0, 0.5, 1), now_s)
            assert efforts.figures(view)["run"]["num_reported"] == 0
            with pytest.raises(Malformed):
                efforts.take(view, MINERS[0], effort(view.last_round, now_s, 1), now_s)
            opened_s = view.rounds[view.last_round].opened_s
            longest_s = now_s - opened_s + CLOCK_SLACK_S
            efforts.take(view, MINERS[0], effort(view.last_round, longest_s, 1), now_s)
            assert efforts.figures(view)["miners"][MINERS[0]]["cu"] == 1.0

    run(main())


def test_the_status_shows_the_run_and_each_miner() -> None:
    async def main() -> None:
        async with fake_swarm() as swarm:
            assert (await shown(swarm))["run"]["mfu"] is None
            await swarm.closes(0)
            for hotkey in MINERS:
                await swarm.post(hotkey, "/v1/heartbeat", beat(effort(0, 1.0, RUN.round.microbatches)))
            figures = await shown(swarm)
            whole, ended = figures["run"], swarm.view.rounds[RoundId(0)]
            tokens = RUN.round.microbatches * RUN.microbatch_tokens
            assert ended.closed is not None
            assert ended.closed.num_complete == RUN.round.microbatches
            assert whole["committed_tokens"] == tokens
            assert (whole["num_due"], whole["num_reported"]) == (len(MINERS), len(MINERS))
            assert whole["cu"] == pytest.approx(1.0 / whole["wall_s"])
            assert whole["peak_flops_per_s"] == pytest.approx(len(MINERS) * registration().peak_flops_per_s)
            flops = tokens * whole["model_flops_per_token"]
            assert whole["mfu"] == pytest.approx(flops / (whole["peak_flops_per_s"] * whole["wall_s"]))
            assert whole["dropped_tokens"] == whole["processed_tokens"] - tokens
            assert sorted(figures["miners"]) == list(MINERS)
            assert sum(miner["committed_tokens"] for miner in figures["miners"].values()) == 2 * tokens
            assert {miner["peak_flops_per_s"] for miner in figures["miners"].values()} == {1e9}

    run(main())
