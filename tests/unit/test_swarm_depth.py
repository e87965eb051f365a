"""In-flight depth: its formula, its measurement, and that it is enough, by a small simulation of a pipeline."""

from __future__ import annotations

import heapq

import pytest

from subnet.swarm.depth import PathGauge, in_flight_depth

FORWARD_S, BACKWARD_S = 1.0, 2.0
COMPUTE_S = FORWARD_S + BACKWARD_S
NUM_MICROBATCHES = 64


class Pipeline:
    """Stages, links that only delay, and so many microbatches in flight.

    cold_s: what a hop's first message takes longer, as for a handshake. is_in_turn: forward and backward in turn, as in
    ``subnet.replica.pipeline``, else backward first.
    """

    def __init__(self, num_stages: int, hop_s: float, depth: int, *, cold_s: float = 0.0, is_in_turn: bool = True):
        self.last, self.hop_s, self.depth, self.todo = num_stages - 1, hop_s, depth, NUM_MICROBATCHES
        self.cold_s, self.is_in_turn = cold_s, is_in_turn
        self.waiting: list[dict[bool, int]] = [{True: 0, False: 0} for _ in range(num_stages)]  # by: is forward
        self.is_busy, self.was_forward = [False] * num_stages, [False] * num_stages
        self.warm: set[tuple[int, bool]] = set()
        self.events: list[tuple[float, int, int, bool, bool]] = []  # time, order, stage, is forward, is done
        self.in_flight = self.num_events = 0

    def at(self, time_s: float, stage: int, is_forward: bool, is_done: bool) -> None:
        self.num_events += 1
        heapq.heappush(self.events, (time_s, self.num_events, stage, is_forward, is_done))

    def work(self, stage: int, now_s: float) -> None:
        waiting = self.waiting[stage]
        has_forward = waiting[True] > 0 or (stage == 0 and self.todo > 0 and self.in_flight < self.depth)
        if self.is_busy[stage] or not (has_forward or waiting[False]):
            return
        is_turn = self.is_in_turn and not self.was_forward[stage]
        is_forward = has_forward and (is_turn or not waiting[False])
        if is_forward and stage == 0:
            self.todo, self.in_flight = self.todo - 1, self.in_flight + 1
        else:
            waiting[is_forward] -= 1
        self.is_busy[stage], self.was_forward[stage] = True, is_forward
        takes_s = (FORWARD_S if is_forward else BACKWARD_S) + (BACKWARD_S if is_forward and stage == self.last else 0)
        self.at(now_s + takes_s, stage, is_forward, True)

    def done(self, stage: int, is_forward: bool, now_s: float) -> None:
        self.is_busy[stage] = False
        goes_on = is_forward and stage < self.last
        to = stage + 1 if goes_on else stage - 1
        if to < 0:
            self.in_flight -= 1
            return
        cold_s = 0.0 if (to, goes_on) in self.warm else self.cold_s
        self.warm.add((to, goes_on))
        self.at(now_s + self.hop_s + cold_s, to, goes_on, False)

    def seconds(self) -> float:
        now_s = 0.0
        self.work(0, now_s)
        while self.events:
            now_s, _, stage, is_forward, is_done = heapq.heappop(self.events)
            if is_done:
                self.done(stage, is_forward, now_s)
            else:
                self.waiting[stage][is_forward] += 1
            self.work(stage, now_s)
        return now_s


@pytest.mark.parametrize("num_stages", [2, 3, 4, 8])
@pytest.mark.parametrize("hop_s", [0.0, 0.02, 0.15, 0.5, 1.0, 1.5, 3.0])
def test_the_depth_is_as_fast_as_no_limit_at_all(num_stages: int, hop_s: float) -> None:
    depth = in_flight_depth(num_stages - 1, 2 * hop_s, COMPUTE_S, 1000)
    unlimited_s = Pipeline(num_stages, hop_s, 1000).seconds()
    assert Pipeline(num_stages, hop_s, depth).seconds() <= 1.03 * unlimited_s


def test_the_depth_of_1f1b_is_not_enough_over_links() -> None:
    assert Pipeline(4, 0.5, 4).seconds() > 1.3 * Pipeline(4, 0.5, 1000).seconds()


@pytest.mark.parametrize("hop_s", [0.15, 1.0, 1.5])
def test_turns_get_over_a_slow_start_that_a_run_of_backwards_repeats(hop_s: float) -> None:
    depth = in_flight_depth(3, 2 * hop_s, COMPUTE_S, 1000)
    in_turn_s = Pipeline(4, hop_s, depth, cold_s=2.0).seconds()
    assert in_turn_s < 0.98 * Pipeline(4, hop_s, depth, cold_s=2.0, is_in_turn=False).seconds()


@pytest.mark.parametrize(
    ("stages_after", "link_s", "compute_s", "depth"),
    [
        (3, 0.0, 0.18, 4),  # 1F1B
        (3, 0.001, 0.18, 4),  # too short to matter
        (3, 0.1, 0.18, 7),
        (3, 0.2, 0.18, 10),
        (0, 0.5, 0.18, 1),  # one stage: nothing to cover
        (3, 0.1, 0.0, 4),  # compute not measured yet
        (7, 100.0, 0.1, 20),  # bounded
    ],
)
def test_examples(stages_after: int, link_s: float, compute_s: float, depth: int) -> None:
    assert in_flight_depth(stages_after, link_s, compute_s, 20) == depth


def test_the_depth_is_never_under_one() -> None:
    assert in_flight_depth(3, 1.0, 1.0, 0) == 1


def measured(round_trips_s: list[float]) -> PathGauge:
    gauge = PathGauge()
    gauge.begin_round()
    for seconds in round_trips_s:
        gauge.forward.add(0.06)
        gauge.backward.add(0.12)
        gauge.returned(seconds)
    return gauge


def test_the_gauge_takes_compute_off_the_shortest_round_trip() -> None:
    gauge = measured([0.9, 3 * 0.18 + 3 * 0.1, 1.4])
    assert gauge.compute_s() == pytest.approx(0.18)
    assert gauge.link_s(3) == pytest.approx(0.1)
    assert gauge.depth(3, 100) == 7


def test_the_gauge_knows_nothing_before_the_first_gradient() -> None:
    assert PathGauge().depth(3, 100) == 4
    gauge = PathGauge()
    gauge.forward.add(0.06)
    assert gauge.compute_s() == 0.0
    assert gauge.link_s(3) == 0.0


def test_a_link_that_became_slower_counts_after_a_whole_round() -> None:
    gauge = measured([0.54])
    gauge.begin_round()
    gauge.returned(2.0)
    assert gauge.link_s(3) == pytest.approx(0.0)
    gauge.begin_round()
    assert gauge.link_s(3) == pytest.approx(2.0 / 3 - 0.18)
    assert gauge.compute_s() == pytest.approx(0.18)
