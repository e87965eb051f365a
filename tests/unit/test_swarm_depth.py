"""In-flight depth: its formula, its measurement, and that it is enough, by a small simulation of a pipeline."""

from __future__ import annotations

import heapq

import pytest

from subnet.swarm.depth import PathGauge, in_flight_depth

FORWARD_S, BACKWARD_S = 1.0, 2.0
COMPUTE_S = FORWARD_S + BACKWARD_S


class Pipeline:
    """Stages that take backward before forward, links that only delay, and so many microbatches in flight."""

    def __init__(self, num_stages: int, hop_s: float, depth: int, num_microbatches: int = 64) -> None:
        self.last, self.hop_s, self.depth, self.todo = num_stages - 1, hop_s, depth, num_microbatches
        self.waiting: list[list[tuple[bool, int]]] = [[] for _ in range(num_stages)]  # (is forward, order of arrival)
        self.is_busy = [False] * num_stages
        self.events: list[tuple[float, int, int, bool, bool]] = []  # time, order, stage, is forward, is done
        self.in_flight = self.num_events = 0

    def at(self, time_s: float, stage: int, is_forward: bool, is_done: bool) -> None:
        self.num_events += 1
        heapq.heappush(self.events, (time_s, self.num_events, stage, is_forward, is_done))

    def work(self, stage: int, now_s: float) -> None:
        if self.is_busy[stage]:
            return
        if not self.waiting[stage]:
            if stage or not self.todo or self.in_flight >= self.depth:
                return
            self.todo, self.in_flight = self.todo - 1, self.in_flight + 1
            self.waiting[0].append((True, self.num_events))
        item = min(self.waiting[stage])
        self.waiting[stage].remove(item)
        takes_s = (FORWARD_S if item[0] else BACKWARD_S) + (BACKWARD_S if item[0] and stage == self.last else 0.0)
        self.is_busy[stage] = True
        self.at(now_s + takes_s, stage, item[0], True)

    def seconds(self) -> float:
        now_s = 0.0
        self.work(0, now_s)
        while self.events:
            now_s, order, stage, is_forward, is_done = heapq.heappop(self.events)
            if not is_done:
                self.waiting[stage].append((is_forward, order))
            else:
                self.is_busy[stage] = False
                to = stage + 1 if is_forward and stage < self.last else stage - 1
                if to < 0:
                    self.in_flight -= 1
                else:
                    self.at(now_s + self.hop_s, to, is_forward and stage < self.last, False)
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
