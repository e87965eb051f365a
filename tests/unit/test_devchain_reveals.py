"""Sealed weights from commit to effect: order of checks, who is judged, and what happens to an account of a vote."""

from __future__ import annotations

from typing import Any

import bittensor_core as core
import numpy as np
import pytest

from subnet.localnet.devchain import epochs
from subnet.localnet.devchain.chain import DevChain
from subnet.localnet.devchain.pallet_subtensor import MAX_UNREVEALED
from subnet.localnet.devchain.scale import octets, vector
from subnet.localnet.devchain.sealed import commits, oldest_block
from tests.unit.devchain_actors import BOB, DAVE, MINER, OTHER, PALLET, VALIDATOR, Key, new_chain, outcome, read


def sealed(key: Key, dests: list[int], values: list[int]) -> bytes:
    pair = [vector(number.to_bytes(2, "little") for number in numbers) for numbers in (dests, values)]
    payload = octets(bytes(key.pair.public_key)) + b"".join(pair) + bytes(8)
    return bytes(core.encrypt_at_round(payload, 1000)[0])


def commit(secret: bytes, netuid: int = 1, mecid: int = 0, version: int = 4) -> tuple[str, str, dict[str, Any]]:
    named = {"netuid": netuid, "mecid": mecid, "commit": list(secret), "reveal_round": 1000}
    return PALLET, "commit_timelocked_mechanism_weights", {**named, "commit_reveal_version": version}


def epochs_later(chain: DevChain, count: int) -> None:
    target = read(chain, "SubnetEpochIndex", 1) + count
    while read(chain, "SubnetEpochIndex", 1) < target:
        chain.produce()


@pytest.mark.parametrize(
    ("key", "call", "expected"),
    [
        (BOB, commit(b"x", netuid=9), "MechanismDoesNotExist"),
        (BOB, commit(b"x", mecid=1), "MechanismDoesNotExist"),
        (BOB, commit(b"x", version=3), "IncorrectCommitRevealVersion"),
        (BOB, commit(b"x"), "HotKeyNotRegisteredInSubNet"),
        (MINER, commit(b"x"), "ok"),  # without stake or a permit, which only the reveal asks for
    ],
)
def test_commits_are_checked_in_the_order_of_the_real_chain(
    key: Key, call: tuple[str, str, dict[str, Any]], expected: str
) -> None:
    assert outcome(new_chain(CommitRevealWeightsEnabled=True), key, call) == expected


def test_a_chain_without_commit_reveal_says_so_before_the_version() -> None:
    assert outcome(new_chain(), BOB, commit(b"x", version=3)) == "CommitRevealDisabled"


def test_a_hotkey_has_ten_commits_an_epoch() -> None:
    chain = new_chain(CommitRevealWeightsEnabled=True, Tempo=50)
    for _ in range(MAX_UNREVEALED):
        assert outcome(chain, VALIDATOR, commit(b"x")) == "ok"
    assert outcome(chain, VALIDATOR, commit(b"x")) == "TooManyUnrevealedCommits"
    assert outcome(chain, MINER, commit(b"x")) == "ok"


def test_plain_weights_name_a_missing_mechanism_before_too_many_uids() -> None:
    named = {"netuid": 1, "mecid": 1, "dests": list(range(9)), "weights": [1] * 9, "version_key": 0}
    assert outcome(new_chain(), VALIDATOR, (PALLET, "set_mechanism_weights", named)) == "MechanismDoesNotExist"


def test_a_commit_is_accepted_opened_and_applied() -> None:
    chain = new_chain(CommitRevealWeightsEnabled=True)
    assert outcome(chain, VALIDATOR, commit(sealed(VALIDATOR, [2], [9]))) == "ok"
    assert read(chain, "LastUpdate", 1)[1] == chain.head.number
    epochs_later(chain, 1)
    assert len(commits(chain.state, 1, 0)) == 1
    assert read(chain, "Weights", 1, 1) == []
    epochs_later(chain, 1)
    assert commits(chain.state, 1, 0) == []
    assert read(chain, "Weights", 1, 1) == [(2, 65535)]
    assert read(chain, "Incentive", 1) == [0, 0, 65535]
    assert [record["event_id"] for record in chain.state.get("System", "Events")].count("TimelockedWeightsRevealed")


def test_a_reveal_asks_for_permit_and_key() -> None:
    chain = new_chain(CommitRevealWeightsEnabled=True)
    assert outcome(chain, MINER, commit(sealed(MINER, [1], [9]))) == "ok"  # has no permit
    assert outcome(chain, VALIDATOR, commit(sealed(MINER, [2], [9]))) == "ok"  # copied from another hotkey
    epochs_later(chain, 2)
    assert read(chain, "Weights", 1, 1) == read(chain, "Weights", 1, 2) == []


def test_a_miner_that_came_after_the_oldest_waiting_commit_is_not_judged_by_it() -> None:
    """The weights in force are older than that commit; the uid may have been another's then."""
    chain = new_chain(CommitRevealWeightsEnabled=True)
    assert outcome(chain, VALIDATOR, commit(b"waiting")) == "ok"
    chain.register(1, DAVE.address, OTHER.address)
    chain.state.put(PALLET, "BlockAtRegistration", chain.head.number + 1, 1, 3)
    chain.state.put(PALLET, "Weights", [(2, 65535), (3, 65535)], 1, 1)
    chain.state.put(PALLET, "LastUpdate", [0, chain.head.number + 5, 0, 0], 1)
    assert oldest_block(chain.state, 1) == {VALIDATOR.address: 1}
    assert epochs.ballot(chain.state, 1, 10).weights_VN[1].tolist() == [0, 0, 65535, 0]
    chain.state.put(PALLET, "CommitRevealWeightsEnabled", False, 1)
    assert epochs.ballot(chain.state, 1, 10).weights_VN[1].tolist() == [0, 0, 65535, 65535]


def test_weights_for_a_uid_do_not_pass_to_its_next_neuron() -> None:
    chain = new_chain(MaxAllowedUids=3, ImmunityPeriod=0)
    chain.state.put(PALLET, "Weights", [(2, 65535)], 1, 1)
    chain.state.put(PALLET, "LastUpdate", [1, 1, 1], 1)
    chain.state.put(PALLET, "Emission", [0, 9, 0], 1)
    chain.produce()
    chain.produce()
    assert chain.register(1, DAVE.address, OTHER.address) == 2
    assert not epochs.ballot(chain.state, 1, chain.head.number).weights_VN.any()


def test_a_validator_that_votes_too_seldom_stops_to_count() -> None:
    """Twice the tempo here; the stake of who falls silent for longer neither votes nor holds bonds."""
    chain = new_chain(Tempo=5, ActivityCutoffFactorMilli=2000)
    chain.state.put(PALLET, "Weights", [(2, 65535)], 1, 1)
    chain.state.put(PALLET, "LastUpdate", [1, 1, 1], 1)
    assert epochs.ballot(chain.state, 1, 11).stake_N[1] > 0
    assert not np.any(epochs.ballot(chain.state, 1, 12).stake_N)


def test_losing_the_permit_loses_the_bonds() -> None:
    chain = new_chain(MaxAllowedValidators=1)
    chain.state.put(PALLET, "Bonds", [(2, 65535)], 1, 1)
    chain.set_stake(1, MINER.address, 10**13)
    assert read(chain, "ValidatorPermit", 1) == [False, False, True]
    assert read(chain, "Bonds", 1, 1) == []
