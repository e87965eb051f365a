"""What the calls of a subnet do and refuse, and where every rao of an epoch goes."""

from __future__ import annotations

import itertools
from typing import Any

import bittensor_core as core
import pytest
from hypothesis import given
from hypothesis import strategies as st

from subnet.localnet.devchain import subnets
from subnet.localnet.devchain.chain import DRAND_ROUND_1000, DevChain, DevChainConfig
from subnet.localnet.devchain.dispatch import DispatchError
from subnet.localnet.devchain.epochs import MEMORY
from subnet.localnet.devchain.scale import octets, vector
from subnet.localnet.devchain.sealed import commits
from tests.unit.devchain_actors import (
    ALICE,
    BOB,
    DAVE,
    MINER,
    OTHER,
    OWNER,
    PALLET,
    STAKE_RAO,
    VALIDATOR,
    Key,
    assert_nothing_lost,
    axon,
    free,
    new_chain,
    outcome,
    read,
    register,
    transfer,
    weights,
)

# Neurons


def test_registration_costs_the_burn_and_refuses_in_order() -> None:
    chain = new_chain()
    before, price = free(chain, BOB), read(chain, "Burn", 1)
    assert outcome(chain, BOB, register(OTHER)) == "ok"
    assert before - free(chain, BOB) == price + chain.config.fee_rao
    assert read(chain, "Uids", 1, OTHER.address) == 3
    assert outcome(chain, BOB, register(OTHER)) == "HotKeyAlreadyRegisteredInSubNet"
    assert outcome(chain, BOB, (PALLET, "burned_register", {"netuid": 9, "hotkey": OTHER.address})) == "SubnetNotExists"
    root = (PALLET, "burned_register", {"netuid": 0, "hotkey": OTHER.address})
    assert outcome(chain, BOB, root) == "RegistrationNotPermittedOnRootSubnet"
    assert_nothing_lost(chain)


def test_a_hotkey_stays_with_its_coldkey() -> None:
    chain = new_chain()
    chain.add_subnet(ALICE.address, OWNER.address)
    stolen = (PALLET, "burned_register", {"netuid": 2, "hotkey": MINER.address})
    assert outcome(chain, BOB, stolen) == "NonAssociatedColdKey"


def test_a_full_subnet_reuses_the_uid_of_the_least_paid() -> None:
    chain = new_chain(MaxAllowedUids=4, ImmunityPeriod=5)
    chain.register(1, DAVE.address, Key("//hot/idle").address)
    chain.submit(VALIDATOR.signed(chain, weights([2], [1])))
    chain.submit(MINER.signed(chain, axon(0x7F000001, 80)))
    for _ in range(chain.config.tempo_blocks + 1):
        chain.produce()
    assert outcome(chain, BOB, register(OTHER)) == "ok"
    assert read(chain, "Uids", 1, OTHER.address) == 3
    assert read(chain, "Uids", 1, Key("//hot/idle").address) is None
    assert read(chain, "SubnetworkN", 1) == 4
    assert read(chain, "Keys", 1, 3) == OTHER.address
    assert read(chain, "LastUpdate", 1)[3] == chain.head.number


def test_immune_neurons_go_only_when_no_others_may() -> None:
    """Emission, then age, then uid; the owner's hotkey never."""
    chain = new_chain(MaxAllowedUids=3, ImmunityPeriod=30)
    assert outcome(chain, BOB, register(OTHER)) == "ok"
    assert read(chain, "Uids", 1, OTHER.address) == 1, "all are immune: the oldest that is not the owner's goes"
    for _ in range(30):
        chain.produce()
    chain.state.put(PALLET, "BlockAtRegistration", chain.head.number, 1, 1)
    chain.state.put(PALLET, "Emission", [0, 0, 7], 1)
    assert subnets.prunable(chain.state, 1) == 2, "uid 1 earns less but is immune"
    chain.state.put(PALLET, "MinNonImmuneUids", 1, 1)
    assert subnets.prunable(chain.state, 1) == 1, "one neuron past immunity has to be left"
    chain.state.put(PALLET, "BlockAtRegistration", 0, 1, 1)
    assert subnets.prunable(chain.state, 1) == 1


def test_only_so_many_neurons_of_the_owners_are_safe() -> None:
    chain = new_chain(MaxAllowedUids=4, ImmunityPeriod=0, ImmuneOwnerUidsLimit=2)
    chain.register(1, ALICE.address, OTHER.address)
    chain.state.put(PALLET, "Emission", [0, 5, 5, 0], 1)
    assert subnets.owners_uids(chain.state, 1) == {0, 3}
    assert subnets.prunable(chain.state, 1) == 1
    chain.state.put(PALLET, "ImmuneOwnerUidsLimit", 1, 1)
    assert subnets.prunable(chain.state, 1) == 3


def test_a_subnet_of_its_owner_alone_has_no_uid_to_give() -> None:
    chain = DevChain()
    chain.add_subnet(ALICE.address, OWNER.address, MaxAllowedUids=1)
    assert outcome(chain, BOB, register(OTHER)) == "NoNeuronIdAvailable"


def test_serving_checks_the_address() -> None:
    chain = new_chain()
    assert outcome(chain, MINER, axon(0x7F000001, 80, 5)) == "InvalidIpType"
    assert outcome(chain, MINER, axon(0, 80)) == "InvalidIpAddress"
    assert outcome(chain, MINER, axon(1 << 40, 80)) == "InvalidIpAddress"
    assert outcome(chain, MINER, axon(0x7F000001, 0)) == "InvalidPort"
    assert outcome(chain, MINER, axon(0x7F000001, 80)) == "ok"
    assert read(chain, "Axons", 1, MINER.address)["port"] == 80
    strict = DevChain(DevChainConfig(allow_loopback=False))
    strict.add_subnet(ALICE.address, OWNER.address)
    assert outcome(strict, OWNER, axon(0x7F000001, 80)) == "InvalidIpAddress"
    assert outcome(strict, OWNER, axon(0x08080808, 80)) == "ok"


# Weights


@pytest.mark.parametrize(
    ("key", "call", "expected"),
    [
        (VALIDATOR, weights([1, 2], [1]), "WeightVecNotEqualSize"),
        (VALIDATOR, weights([0, 1, 2, 2], [1, 1, 1, 1]), "UidsLengthExceedUidsInSubNet"),
        (BOB, weights([2], [1]), "HotKeyNotRegisteredInSubNet"),
        (VALIDATOR, weights([2], [1], version_key=6), "IncorrectWeightVersionKey"),
        (MINER, weights([1], [1], 7), "NeuronNoValidatorPermit"),
        (VALIDATOR, weights([2, 2], [1, 1], 7), "DuplicateUids"),
        (VALIDATOR, weights([2, 5], [1, 1], 7), "UidVecContainInvalidOne"),
        (VALIDATOR, weights([2], [1], 7), "WeightVecLengthIsLow"),
        (VALIDATOR, weights([0, 2], [1, 9], 7), "MaxWeightExceeded"),
        (VALIDATOR, weights([0, 2], [4, 5], 7), "ok"),
        (MINER, weights([2], [1], 7), "ok"),
        (OWNER, weights([0, 2], [4, 5], 7), "ok"),
    ],
)
def test_weights_are_checked_as_on_the_real_chain(
    key: Key, call: tuple[str, str, dict[str, Any]], expected: str
) -> None:
    chain = new_chain(WeightsVersionKey=7, MinAllowedWeights=2, MaxWeightsLimit=40000)
    assert outcome(chain, key, call) == expected


def test_weights_are_scaled_up_and_limited_in_rate() -> None:
    chain = new_chain(WeightsSetRateLimit=5)
    assert outcome(chain, VALIDATOR, weights([0, 2], [50, 100])) == "ok"
    assert read(chain, "Weights", 1, 1) == [(0, 32767), (2, 65535)]
    assert outcome(chain, VALIDATOR, weights([2], [1])) == "SettingWeightsTooFast"
    for _ in range(4):
        chain.produce()
    assert outcome(chain, VALIDATOR, weights([2], [1])) == "ok"


def u16_vector(numbers: list[int]) -> bytes:
    return vector(number.to_bytes(2, "little") for number in numbers)


def sealed(dests: list[int], values: list[int]) -> bytes:
    hotkey = octets(bytes(VALIDATOR.pair.public_key))
    payload = hotkey + u16_vector(dests) + u16_vector(values) + (0).to_bytes(8, "little")
    return bytes(core.encrypt_at_round(payload, 1000)[0])


def test_committed_weights_are_revealed_by_the_recorded_round() -> None:
    chain = new_chain(CommitRevealWeightsEnabled=True)
    assert chain.rules.drand_signatures[1000] == DRAND_ROUND_1000
    assert outcome(chain, VALIDATOR, weights([2], [1])) == "CommitRevealEnabled"
    named = {"netuid": 1, "mecid": 0, "commit": list(sealed([0, 2], [1, 3])), "reveal_round": 1000}
    commit = (PALLET, "commit_timelocked_mechanism_weights", {**named, "commit_reveal_version": 4})
    assert outcome(chain, VALIDATOR, commit) == "ok"
    chain.submit(VALIDATOR.signed(chain, (PALLET, commit[1], {**commit[2], "commit": [1, 2, 3]})))
    for _ in range(chain.config.tempo_blocks):
        chain.produce()
    assert read(chain, "Weights", 1, 1) == []
    for _ in range(chain.config.tempo_blocks):
        chain.produce()
    assert read(chain, "Weights", 1, 1) == [(0, 21845), (2, 65535)]
    assert read(chain, "TimelockedWeightCommits", 1, 0) == []


# Emission


def epoch(chain: DevChain) -> None:
    before = read(chain, "SubnetEpochIndex", 1)
    while read(chain, "SubnetEpochIndex", 1) == before:
        chain.produce()


def test_an_epoch_pays_41_41_18_and_burns_the_owners_incentive() -> None:
    chain = new_chain()
    chain.submit(VALIDATOR.signed(chain, weights([0, 2], [1, 3])))
    epoch(chain)
    payment = chain.payments[1]
    created = chain.config.tempo_blocks * chain.config.emission_rao
    miners = created * 41 // 100
    assert payment.created == created
    assert payment.owner == created * 18 // 100
    assert payment.per_uid[1] == miners
    assert payment.per_uid[2] == pytest.approx(miners * 3 / 4, rel=1e-4)
    assert payment.burnt == miners - payment.per_uid[2]
    assert payment.per_uid[0] == 0
    assert subnets.stake_rao(chain.state, 1, VALIDATOR.address) == STAKE_RAO + miners
    assert_nothing_lost(chain)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 65535)), max_size=3), st.integers(0, 10**10 + 7))
def test_no_rao_is_lost_or_created(votes: list[tuple[int, int]], emission_rao: int) -> None:
    clock = itertools.count(1_700_000_000_000, 250)
    chain = DevChain(DevChainConfig(emission_rao=emission_rao, tempo_blocks=3), lambda: next(clock))
    chain.add_subnet(ALICE.address, OWNER.address)
    chain.register(1, BOB.address, VALIDATOR.address)
    chain.register(1, DAVE.address, MINER.address)
    chain.set_stake(1, VALIDATOR.address, STAKE_RAO)
    dests = dict(votes)
    chain.submit(VALIDATOR.signed(chain, weights(list(dests), list(dests.values()))))
    burnt = 0
    for _ in range(2):
        epoch(chain)
        payment = chain.payments[1]
        assert payment.created == sum(payment.per_uid) + payment.owner + payment.burnt
        assert payment.burnt >= 0
        burnt += payment.burnt
        held = sum(chain.state.values(PALLET, "TotalHotkeyAlpha")) + sum(read(chain, item, 1) for item in MEMORY)
        assert held + burnt == read(chain, "SubnetAlphaOut", 1) == STAKE_RAO + chain.head.number * emission_rao


def test_permits_go_to_the_largest_stakes() -> None:
    chain = new_chain(MaxAllowedValidators=2)
    chain.set_stake(1, MINER.address, STAKE_RAO + 1)
    chain.set_stake(1, OWNER.address, STAKE_RAO - 1)
    assert read(chain, "ValidatorPermit", 1) == [False, True, True]


# Administration


def admin(name: str, **value: Any) -> tuple[str, str, dict[str, Any]]:
    return "AdminUtils", name, {"netuid": 1, **value}


def test_sudo_sets_hyperparameters_and_reports_the_inner_result() -> None:
    chain = new_chain()

    def through_sudo(call: tuple[str, str, dict[str, Any]]) -> tuple[str, str, dict[str, Any]]:
        return "Sudo", "sudo", {"call": bytes(chain.runtime.compose_call(*call))}

    tempo = through_sudo(admin("sudo_set_tempo", tempo=99))
    assert outcome(chain, BOB, tempo) == "RequireSudo"
    assert outcome(chain, ALICE, tempo) == "ok"
    assert read(chain, "Tempo", 1) == 99
    elsewhere = through_sudo(("AdminUtils", "sudo_set_tempo", {"netuid": 9, "tempo": 5}))
    assert outcome(chain, ALICE, elsewhere) == "ok"
    (sudid,) = [record for record in chain.state.get("System", "Events") if record["event_id"] == "Sudid"]
    assert "Err" in str(sudid["attributes"])
    assert outcome(chain, ALICE, through_sudo(transfer(BOB, 1))) == "ok"
    assert_nothing_lost(chain)


def test_the_owner_sets_what_owners_may() -> None:
    chain = new_chain()
    assert outcome(chain, ALICE, admin("sudo_set_immunity_period", immunity_period=7)) == "ok"
    assert read(chain, "ImmunityPeriod", 1) == 7
    assert outcome(chain, BOB, admin("sudo_set_immunity_period", immunity_period=8)) == "BadOrigin"
    assert outcome(chain, ALICE, admin("sudo_set_kappa", kappa=8)) == "BadOrigin"


def test_calls_that_are_declared_but_not_served_are_filtered() -> None:
    chain = new_chain()
    assert outcome(chain, BOB, ("Timestamp", "set", {"now": 1})) == "CallFiltered"


def test_commitments_need_a_neuron_and_are_replaced() -> None:
    chain = new_chain()

    def commit(data: bytes) -> tuple[str, str, dict[str, Any]]:
        info = {"fields": [[{f"Raw{len(data)}": list(data)}]]}
        return "Commitments", "set_commitment", {"netuid": 1, "info": info}

    assert outcome(chain, BOB, commit(b"hello")) == "AccountNotAllowedCommit"
    for data in (b"hello", b"bye", b"0x6162", b"\xff\x00"):
        assert outcome(chain, MINER, commit(data)) == "ok"
        raw = chain.state.raw(chain.state.codec.key("Commitments", "CommitmentOf", (1, MINER.address)))
        assert raw is not None
        assert raw.endswith(data)
        assert chain.state.get("Commitments", "CommitmentOf", 1, MINER.address)["block"] == chain.head.number


@given(st.lists(st.binary(max_size=40) | st.text(max_size=20).map(str.encode), min_size=1, max_size=3))
def test_any_bytes_are_kept_exactly_and_never_stop_the_chain(blobs: list[bytes]) -> None:
    chain = new_chain(CommitRevealWeightsEnabled=True)
    for blob in blobs:
        named = {"netuid": 1, "mecid": 0, "commit": list(blob), "reveal_round": 1000, "commit_reveal_version": 4}
        assert outcome(chain, VALIDATOR, (PALLET, "commit_timelocked_mechanism_weights", named)) == "ok"
        assert outcome(chain, BOB, ("System", "remark_with_event", {"remark": list(blob)})) == "ok"
        info = {"fields": [[{"BigRaw": list(blob)}]]}
        assert outcome(chain, MINER, ("Commitments", "set_commitment", {"netuid": 1, "info": info})) == "ok"
        raw = chain.state.raw(chain.state.codec.key("Commitments", "CommitmentOf", (1, MINER.address)))
        assert raw is not None
        assert raw.endswith(octets(blob))
    assert [commit.sealed for commit in commits(chain.state, 1, 0)] == blobs
    assert [entry[3] for entry in read(chain, "TimelockedWeightCommits", 1, 0)] == [1000] * len(blobs)


def test_unknown_settings_are_named() -> None:
    with pytest.raises(ValueError, match="Tepmo"):
        DevChain().add_subnet(ALICE.address, OWNER.address, Tepmo=3)
    with pytest.raises(DispatchError, match="AlreadyRegistered"):
        new_chain().register(1, BOB.address, VALIDATOR.address)
