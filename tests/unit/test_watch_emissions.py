"""The account of an epoch, from hand-made facts: parts, burning, ranks, reused uids, and epochs that were missed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from rich.console import Console

from neurons.watch import Follower
from subnet.chain.emissions import EpochFacts, EpochReader, Place, Pots, StateGone, Tip
from subnet.types import Hotkey, Uid
from subnet.watch import emission_views as views
from subnet.watch.emissions import EpochReport, Missed, as_json, only, report, weights_received

OWNER, VAL, ANN, BOB, CID = (Hotkey(name) for name in ("owner", "validator", "ann", "bob", "cid"))
PENDING, ACCRUED = Pots(369, 369, 162), Pots(41, 41, 18)  # miners 410, validators 410, owner 180: 1000 in all


def place(uid: int, hotkey: Hotkey, assigned: int | None, event: int = 0, **changed: Any) -> Place:
    known: dict[str, Any] = {
        "uid": Uid(uid),
        "hotkey": hotkey,
        "is_owners": hotkey == OWNER,
        "is_replaced": assigned is None,
        "is_voter": hotkey == VAL,
        "stake_before_rao": 0,
        "stake_after_rao": (assigned or 0) + (180 if hotkey == OWNER else 0),
        "registered_block": 1,
        "last_update_block": 5,
        "assigned_rao": assigned,
        "event_rao": event,
        "incentive": None if assigned is None else 0.5,
        "consensus": None if assigned is None else 0.5,
        "trust": None if assigned is None else 0.0,
        "dividends": None if assigned is None else 0.0,
    }
    return Place(**{**known, **changed})


def facts(*places: Place, weights: Mapping[int, Mapping[int, int]] | None = None, **changed: Any) -> EpochFacts:
    known: dict[str, Any] = {
        "netuid": 1,
        "epoch": 3,
        "block": 30,
        "previous_block": 20,
        "owner_hotkey": OWNER,
        "owner_stake_change_rao": 180,
        "alpha_out_change_rao": 100,
        "pending": PENDING,
        "accrued": ACCRUED,
        "places": places,
        "weights": {Uid(uid): {Uid(to): value for to, value in row.items()} for uid, row in (weights or {}).items()},
    }
    return EpochFacts(**{**known, **changed})


def rows(found: EpochReport) -> dict[str, tuple[int, int, int]]:
    return {row.hotkey: (row.miner_rao, row.validator_rao, row.rank) for row in found.hotkeys}


def assert_adds_up(found: EpochReport) -> None:
    assert found.created_rao == found.owner_cut_rao + found.miners_rao + found.validators_rao + found.burned_rao
    assert found.miners_rao + found.validators_rao == sum(row.earned_rao for row in found.hotkeys)


def test_pay_is_split_into_a_miners_and_a_validators_part() -> None:
    found = report(facts(place(0, OWNER, 0), place(1, VAL, 410), place(2, ANN, 300, 300), place(3, BOB, 110, 110)))
    assert rows(found) == {OWNER: (0, 0, 4), VAL: (0, 410, 1), ANN: (300, 0, 2), BOB: (110, 0, 3)}
    assert (found.created_rao, found.owner_cut_rao, found.burned_rao) == (1000, 180, 0)
    assert (found.first_block, found.block) == (21, 30)
    assert_adds_up(found)


def test_incentive_of_an_owners_uid_is_burned_and_its_dividends_are_not() -> None:
    owner = place(0, OWNER, 160, stake_after_rao=180 + 50)
    found = report(facts(owner, place(1, VAL, 360), place(2, ANN, 300, 300), owner_stake_change_rao=230))
    assert rows(found)[OWNER] == (0, 50, 3)
    assert found.burned_rao == 110
    assert found.burned_share == 0.11
    assert_adds_up(found)


def test_an_event_that_names_the_owners_incentive_burns_the_same() -> None:
    owner = place(0, OWNER, 160, 110, stake_after_rao=10**6)  # the stake is not needed then
    found = report(facts(owner, place(1, VAL, 360), place(2, ANN, 300, 300)))
    assert rows(found)[OWNER] == (0, 50, 3)
    assert found.burned_rao == 110


def test_another_hotkey_of_the_owners_coldkey_burns_too() -> None:
    second = place(2, BOB, 410, is_owners=True, stake_after_rao=0)
    found = report(facts(place(0, OWNER, 0), place(1, VAL, 410), second))
    assert rows(found)[BOB] == (0, 0, 2)
    assert found.burned_rao == 410


def test_stake_that_somebody_moved_is_not_earned() -> None:
    moved = place(2, ANN, 410, 410, stake_before_rao=5, stake_after_rao=10**9)
    found = report(facts(place(0, OWNER, 0), place(1, VAL, 410), moved))
    assert rows(found)[ANN] == (410, 0, 1)
    assert_adds_up(found)


def test_an_epoch_without_votes_burns_what_nobody_receives() -> None:
    found = report(facts(place(0, OWNER, 0), place(1, ANN, 0)))
    assert {row.earned_rao for row in found.hotkeys} == {0}
    assert {row.rank for row in found.hotkeys} == {1}
    assert found.burned_rao == 820
    assert_adds_up(found)


def test_an_epoch_without_emission() -> None:
    empty = Pots(0, 0, 0)
    found = report(facts(place(0, OWNER, 0, stake_after_rao=0), pending=empty, accrued=empty))
    assert (found.created_rao, found.burned_rao, found.burned_share) == (0, 0, 0.0)


def test_an_uid_given_away_in_the_epochs_own_block_is_paid_by_its_stake() -> None:
    gone = place(2, ANN, None, 300, stake_before_rao=1000, stake_after_rao=1310)
    found = report(facts(place(0, OWNER, 0), place(1, VAL, 510), gone))
    assert rows(found)[ANN] == (300, 10, 2)
    assert found.hotkeys[2].incentive is None
    assert_adds_up(found)


def test_an_epoch_of_one_block() -> None:
    none = Pots(0, 0, 0)
    alone = facts(
        place(0, OWNER, 0, stake_after_rao=18),
        place(1, VAL, 41),
        place(2, ANN, 41, 41),
        pending=none,
        accrued=None,
        owner_stake_change_rao=18,
    )
    found = report(alone)
    assert (found.created_rao, found.owner_cut_rao, found.burned_rao) == (100, 18, 0)
    unassigned = facts(place(0, OWNER, 0, stake_after_rao=18), pending=none, accrued=None, owner_stake_change_rao=18)
    assert (report(unassigned).owner_cut_rao, report(unassigned).burned_rao) == (18, 82)


def test_rank_changes_go_by_hotkey_and_a_reused_uid_is_a_newcomer() -> None:
    before = report(
        facts(place(0, OWNER, 0), place(1, VAL, 410), place(2, ANN, 300, 300), place(3, BOB, 110, 110), epoch=2)
    )
    found = report(
        facts(place(0, OWNER, 0), place(1, VAL, 410), place(2, CID, 10, 10), place(3, BOB, 400, 400)), before
    )
    assert {row.hotkey: row.rank_change for row in found.hotkeys} == {OWNER: 0, VAL: 0, CID: None, BOB: 1}
    assert found.left == (ANN,)


def test_equal_pay_shares_a_rank() -> None:
    found = report(facts(place(0, OWNER, 0), place(1, VAL, 410), place(2, ANN, 205, 205), place(3, BOB, 205, 205)))
    assert [row.rank for row in found.hotkeys] == [4, 1, 2, 2]


def test_weights_received_are_by_stake_and_without_votes_that_do_not_count() -> None:
    voters = {"is_voter": True, "stake_before_rao": 300}
    known = facts(
        place(0, OWNER, 0, is_voter=True, stake_before_rao=100),
        place(1, VAL, 0, **voters),
        place(2, ANN, 0),
        place(3, BOB, 0, registered_block=7),  # younger than the votes
        weights={0: {0: 10, 2: 10}, 1: {1: 5, 2: 30, 0: 10, 3: 99}, 2: {2: 1}},
    )
    assert weights_received(known) == {0: 0.25 * 0.5 + 0.75 * 0.25, 1: 0.0, 2: 0.25 * 0.5 + 0.75 * 0.75, 3: 0.0}


def test_one_hotkey_can_be_followed() -> None:
    found = only(report(facts(place(0, OWNER, 0), place(1, VAL, 410), place(2, ANN, 410, 410))), ANN)
    assert [row.hotkey for row in found.hotkeys] == [ANN]
    assert found.created_rao == 1000
    (item,) = as_json(found)
    assert item["followed"] == ANN


# --- views


def plain(renderable: Any, width: int = 232) -> str:
    console = Console(width=width, no_color=True, force_terminal=False)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


def test_amounts_are_shown_to_the_rao() -> None:
    assert views.alpha(1_234_000_000_001) == "1,234.000000001"
    assert views.alpha(-1) == "-0.000000001"


def test_the_table_reads_as_plain_text() -> None:
    found = report(facts(place(0, OWNER, 0), place(1, VAL, 410), place(2, ANN, 410, 410)))
    text = plain(views.table(found, has_before=False, width=232))
    assert "epoch 3 (blocks 21-30): created 0.000001000" in text
    assert "\x1b" not in text
    assert ANN in text


def test_a_narrow_terminal_gets_the_amounts_whole() -> None:
    ann = Hotkey("5" + "x" * 47)
    found = report(facts(place(0, OWNER, 0), place(1, VAL, 410), place(2, ann, 410, 410)))
    text = plain(views.table(found, has_before=False, width=120), width=120)
    assert ann not in text
    assert ann[:8] in text
    assert text.count("0.000000410") > 2


def test_a_followed_hotkey_without_a_place_is_said() -> None:
    found = only(report(facts(place(0, OWNER, 0))), CID)
    assert "cid had no place" in plain(views.table(found, has_before=True, width=232))


def test_csv_has_a_line_per_hotkey_under_its_header() -> None:
    found = report(facts(place(0, OWNER, 0), place(1, VAL, 410), place(2, ANN, None, 410, stake_after_rao=410)))
    lines = views.csv_lines(found).splitlines()
    header = views.csv_header().strip().split(",")
    assert len(lines) == 3
    ann = dict(zip(header, lines[2].split(","), strict=True))
    assert (ann["hotkey"], ann["earned_rao"], ann["incentive"], ann["epoch"]) == (ANN, "410", "", "3")


def test_json_is_one_object_per_epoch_and_a_missed_one_has_no_figures() -> None:
    lines = views.json_lines(Missed(1, 4, 5)).splitlines()
    assert [json.loads(line) for line in lines] == [
        {"netuid": 1, "epoch": 4, "missed": True},
        {"netuid": 1, "epoch": 5, "missed": True},
    ]
    assert "epochs 4 to 5 missed" in views.missed_text(Missed(1, 4, 5))


# --- following


class Node(EpochReader):
    """A chain with an epoch every ten blocks, whose node forgets."""

    def __init__(self) -> None:
        self.epochs = 0
        self.oldest = 1
        self.reads: list[int] = []

    async def tip(self) -> Tip:
        return Tip(1, 10 * self.epochs + 1, self.epochs, 10 * self.epochs, 10, 0.25, PENDING)

    async def epoch(self, block: int) -> EpochFacts:
        if block // 10 < self.oldest:
            raise StateGone("gone")
        self.reads.append(block)
        return facts(place(0, OWNER, 0), epoch=block // 10, block=block, previous_block=block - 10)


def numbers(follower: Follower) -> list[Any]:
    _, found = asyncio.run(follower.look())
    return [(item.first, item.last) if isinstance(item, Missed) else item.epoch for item in found]


def test_a_follower_starts_with_the_last_finished_epoch_and_shows_each_once() -> None:
    node = Node()
    follower = Follower(node)
    assert numbers(follower) == []
    node.epochs = 7
    assert numbers(follower) == [7]
    assert numbers(follower) == []
    node.epochs = 10
    assert numbers(follower) == [8, 9, 10]
    assert node.reads.count(70) == 1, "an epoch that was seen is not read again"


def test_the_first_epoch_of_a_late_start_knows_the_ranks_before() -> None:
    node = Node()
    node.epochs = 7
    _, (found,) = asyncio.run(Follower(node).look())
    assert isinstance(found, EpochReport)
    assert found.hotkeys[0].rank_change == 0


@pytest.mark.parametrize(("history", "shown"), [(2, [5, 6, 7]), (99, [1, 2, 3, 4, 5, 6, 7])])
def test_history_begins_earlier(history: int, shown: list[int]) -> None:
    node = Node()
    node.epochs = 7
    assert numbers(Follower(node, history)) == shown


def test_what_the_node_forgot_is_said_to_be_missed() -> None:
    node = Node()
    node.epochs = 2
    follower = Follower(node)
    assert numbers(follower) == [2]
    node.epochs, node.oldest = 9, 7
    assert numbers(follower) == [(3, 6), 7, 8, 9]
    node.epochs, node.oldest = 11, 12
    assert numbers(follower) == [(10, 11)]
    node.epochs = 12
    _, (found,) = asyncio.run(follower.look())
    assert isinstance(found, EpochReport)
    assert found.epoch == 12
    assert found.hotkeys[0].rank_change is None, "the epoch before was never seen"
