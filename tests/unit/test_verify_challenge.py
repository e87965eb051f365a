"""Challenges: everybody in every window, evenly, in segments that nobody can foresee."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from subnet.hashing import sha256
from subnet.types import Digest, Hotkey, RoundId
from subnet.verify.challenge import Challenge, challenges

VALIDATOR = Hotkey("validator")


def beacon_of(seed: int, round_: int) -> Digest:
    return sha256(f"{seed}/{round_}".encode())


def play(
    seed: int, num_rounds: int, window: int, replicas: list[Hotkey], validator: Hotkey = VALIDATOR
) -> list[tuple[Challenge, ...]]:
    """Challenges of every round of a run, as one validator draws them."""
    last: dict[Hotkey, RoundId] = {}
    drawn = []
    for number in range(num_rounds):
        members = [(hotkey, 3) for hotkey in replicas]
        found = challenges(beacon_of(seed, number), validator, RoundId(number), members, window, last)
        last |= {item.hotkey: RoundId(number) for item in found}
        drawn.append(found)
    return drawn


def replicas_of(count: int) -> list[Hotkey]:
    return [Hotkey(f"miner-{number}") for number in range(count)]


@given(seed=st.integers(0, 10**6), window=st.integers(1, 8), count=st.integers(1, 12))
def test_every_replica_is_challenged_in_every_window(seed: int, window: int, count: int) -> None:
    drawn = play(seed, 5 * window, window, replicas_of(count))
    for begin in range(4 * window + 1):
        seen = {item.hotkey for found in drawn[begin : begin + window] for item in found}
        assert seen == set(replicas_of(count))


@given(seed=st.integers(0, 10**6), joined=st.integers(0, 20))
def test_a_joiner_is_challenged_within_a_window(seed: int, joined: int) -> None:
    joiner, seen = [(Hotkey("joiner"), 1)], False
    for number in range(joined, joined + 4):
        seen = seen or bool(challenges(beacon_of(seed, number), VALIDATOR, RoundId(number), joiner, 4, {}))
    assert seen


def test_the_load_is_even() -> None:
    window, count = 4, 200
    sizes = [len(found) for found in play(3, 60, window, replicas_of(count))][window:]
    mean = 2 * count / (window + 1)  # the wait is uniform over 1..window
    assert all(0.6 * mean < size < 1.4 * mean for size in sizes)


def test_no_round_is_safe_even_right_after_a_challenge() -> None:
    window, replica = 4, [(Hotkey("miner"), 1)]
    hits = sum(
        bool(challenges(beacon_of(seed, 7), VALIDATOR, RoundId(7), replica, window, {Hotkey("miner"): RoundId(6)}))
        for seed in range(2000)
    )
    assert 0.2 < hits / 2000 < 0.3


def test_nothing_can_be_foreseen_without_the_beacon() -> None:
    """Over beacons, the same replica is drawn or spared, and each segment is as likely as another."""
    members, last = [(Hotkey("miner"), 4)], {Hotkey("miner"): RoundId(5)}
    drawn = [challenges(beacon_of(seed, 6), VALIDATOR, RoundId(6), members, 4, last) for seed in range(4000)]
    segments = Counter(item.segment for found in drawn for item in found)
    assert 0 < sum(segments.values()) < 4000
    assert set(segments) == set(range(4))
    assert max(segments.values()) < 1.35 * min(segments.values())


def test_validators_draw_differently() -> None:
    one, other = play(1, 12, 4, replicas_of(20)), play(1, 12, 4, replicas_of(20), Hotkey("another"))
    assert one != other


def test_suspects_are_challenged_in_every_round_and_first() -> None:
    members = [(hotkey, 2) for hotkey in replicas_of(9)]
    last = {hotkey: RoundId(10) for hotkey in replicas_of(9)}
    for seed in range(30):
        found = challenges(beacon_of(seed, 11), VALIDATOR, RoundId(11), members, 8, last, [Hotkey("miner-4")])
        assert found[0].hotkey == "miner-4"
        assert [item.hotkey for item in found].count(Hotkey("miner-4")) == 1


def test_whoever_committed_nothing_has_nothing_to_replay() -> None:
    assert challenges(beacon_of(0, 0), VALIDATOR, RoundId(0), [(Hotkey("idle"), 0)], 1, {}, [Hotkey("idle")]) == ()


def test_a_validator_that_was_away_catches_up_at_once() -> None:
    members = [(hotkey, 1) for hotkey in replicas_of(5)]
    last = {hotkey: RoundId(2) for hotkey in replicas_of(5)}
    found = challenges(beacon_of(0, 40), VALIDATOR, RoundId(40), members, 4, last)
    assert {item.hotkey for item in found} == set(replicas_of(5))
