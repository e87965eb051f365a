"""Hyperparameters: who may set what, when, and within which bounds; what the setters of the tools reach."""

from __future__ import annotations

from typing import Any

import pytest
from bittensor.intents.hyperparameters import OWNER_HYPERPARAMETERS

from subnet.localnet.devchain.chain import DevChain
from subnet.localnet.devchain.pallet_admin import GLOBAL_SETTERS, ONE_U64F64, SETTERS
from subnet.localnet.devchain.tables_pallets import PALLETS
from tests.unit.devchain_actors import ALICE, BOB, new_chain, outcome, read

ADMIN = "AdminUtils"


def call(name: str, value: Any, netuid: int = 1) -> tuple[str, str, dict[str, Any]]:
    (declared,) = [line for line in PALLETS[ADMIN].calls.values() if line.startswith(f"sudo_set_{name}(")]
    arguments = [part.split(":")[0].strip() for part in declared.split("(")[1].split(",")]
    named = {arguments[-1]: value}
    return ADMIN, f"sudo_set_{name}", named if len(arguments) == 1 else {"netuid": netuid, **named}


def sudo(chain: DevChain, inner: tuple[str, str, dict[str, Any]]) -> str:
    """The inner result of the sudo key's call: "ok" or the error's name."""
    wrapped = ("Sudo", "sudo", {"call": bytes(chain.runtime.compose_call(*inner))})
    assert outcome(chain, ALICE, wrapped) == "ok"
    (sudid,) = [record for record in chain.state.get("System", "Events") if record["event_id"] == "Sudid"]
    result = sudid["attributes"]["sudo_result"]
    if "Err" not in result:
        return "ok"
    module = result["Err"]["Module"]
    return str(chain.runtime.module_error(module["index"], bytes.fromhex(module["error"][2:])[0])[0])


BOUNDS = [
    ("max_allowed_uids", 2, "MaxAllowedUIdsLessThanCurrentUIds"),
    ("max_allowed_uids", 257, "MaxAllowedUidsGreaterThanDefaultMaxAllowedUids"),
    ("max_allowed_uids", 0, "MaxAllowedUidsLessThanMinAllowedUids"),
    ("max_allowed_validators", 257, "MaxValidatorsLargerThanMaxUIds"),
    ("min_burn", 10**9, "ValueNotInBounds"),
    ("max_burn", 10**8, "ValueNotInBounds"),
    ("burn_half_life", 0, "InvalidValue"),
    ("burn_increase_mult", {"bits": ONE_U64F64 - 1}, "InvalidValue"),
    ("activity_cutoff", 359, "ActivityCutoffTooLow"),
    ("activity_cutoff_factor", 999, "ActivityCutoffFactorMilliOutOfBounds"),
    ("commit_reveal_weights_interval", 0, "RevealPeriodTooSmall"),
    ("commit_reveal_weights_interval", 101, "RevealPeriodTooLarge"),
    ("owner_immune_neuron_limit", 11, "InvalidValue"),
]


@pytest.mark.parametrize(("name", "value", "expected"), BOUNDS)
def test_values_out_of_bounds_are_refused(name: str, value: Any, expected: str) -> None:
    assert sudo(new_chain(), call(name, value)) == expected


def test_some_bounds_are_the_owners_alone() -> None:
    chain = new_chain()
    assert outcome(chain, ALICE, call("tempo", 359)) == "TempoOutOfBounds"
    assert outcome(chain, ALICE, call("bonds_moving_average", 975_001)) == "BondsMovingAverageMaxReached"
    assert sudo(chain, call("bonds_moving_average", 975_001)) == "ok"
    assert sudo(chain, call("tempo", 5)) == "ok"
    assert read(chain, "Tempo", 1) == 5
    assert read(chain, "LastEpochBlock", 1) == chain.head.number, "a new tempo starts a new epoch"


VALUES: dict[str, Any] = {
    "Kappa": 40000,
    "ActivityCutoff": 360,
    "ActivityCutoffFactorMilli": 2000,
    "MinBurn": 600_000,
    "MaxBurn": 2 * 10**9,
    "BurnIncreaseMult": {"bits": 2 * ONE_U64F64},
    "BondsMovingAverage": 900_001,
    "MaxAllowedUids": 200,
    "MaxAllowedValidators": 3,
    "Tempo": 400,
    "CommitRevealWeightsEnabled": True,
    "NetworkRegistrationAllowed": False,
    "SubtokenEnabled": False,
}


@pytest.mark.parametrize("name", sorted(SETTERS))
def test_every_setter_sets_its_item(name: str) -> None:
    chain = new_chain()
    setter, value = SETTERS[name], VALUES.get(SETTERS[name].item, 7)
    assert sudo(chain, call(name.removeprefix("sudo_set_"), value)) == "ok"
    assert read(chain, setter.item, 1) == value
    other = call(name.removeprefix("sudo_set_"), value, netuid=9)
    if not setter.frozen or setter.item != "Tempo":
        assert sudo(chain, other) == "SubnetDoesNotExist"
    owner = outcome(chain, ALICE, call(name.removeprefix("sudo_set_"), value))
    assert owner == ("ok" if setter.by_owner else "BadOrigin")
    assert outcome(chain, BOB, call(name.removeprefix("sudo_set_"), value)) == "BadOrigin"


@pytest.mark.parametrize("name", sorted(GLOBAL_SETTERS))
def test_what_concerns_all_subnets_is_the_sudo_keys(name: str) -> None:
    chain = new_chain()
    assert outcome(chain, ALICE, call(name.removeprefix("sudo_set_"), 3)) == "BadOrigin"
    assert sudo(chain, call(name.removeprefix("sudo_set_"), 3)) == "ok"
    assert read(chain, GLOBAL_SETTERS[name]) == 3


def test_the_last_blocks_of_a_tempo_are_frozen_for_sudo_too() -> None:
    chain = new_chain()
    assert sudo(chain, call("admin_freeze_window", 5)) == "ok"
    results = []
    while read(chain, "SubnetEpochIndex", 1) == 0:
        results.append(sudo(chain, call("immunity_period", chain.head.number)))
    frozen = "AdminActionProhibitedDuringWeightsWindow"
    # Block 20 holds the epoch and then the call: a new tempo has begun. 16 to 19 have fewer than 5 blocks left.
    assert results == ["ok"] * 14 + [frozen] * 4 + ["ok"]
    assert sudo(chain, call("kappa", 30000)) == "ok"


def test_an_owner_waits_between_changes_of_the_same_thing() -> None:
    chain = new_chain()
    assert sudo(chain, call("owner_hparam_rate_limit", 1)) == "ok"
    first = chain.head.number + 1
    assert outcome(chain, ALICE, call("immunity_period", 5)) == "ok"
    assert outcome(chain, ALICE, call("immunity_period", 6)) == "TxRateLimitExceeded"
    assert outcome(chain, ALICE, call("min_allowed_weights", 1)) == "ok"
    assert sudo(chain, call("immunity_period", 7)) == "ok"
    while chain.head.number < first + chain.config.tempo_blocks - 1:
        chain.produce()
    assert outcome(chain, ALICE, call("immunity_period", 8)) == "ok"


# What `btcli sudo set` offers and this chain has no mechanism for.
ABSENT = {
    "adjustment_alpha", "alpha_high", "alpha_low", "alpha_sigmoid_steepness", "bonds_penalty", "bonds_reset_enabled",
    "collateral_drain_ratio", "collateral_lock_share", "epoch_consensus", "liquid_alpha_enabled", "max_difficulty",
    "min_childkey_take", "network_pow_registration_allowed", "owner_cut_auto_lock_enabled", "owner_cut_enabled", "rho",
    "transfers_enabled", "yuma3_enabled",
}  # fmt: skip


def test_every_owner_hyperparameter_of_the_tools_is_there_or_known_to_be_absent() -> None:
    served = {name for name, (setter, _) in OWNER_HYPERPARAMETERS.items() if setter in SETTERS}
    assert set(OWNER_HYPERPARAMETERS) - served == ABSENT
    assert all(SETTERS[OWNER_HYPERPARAMETERS[name][0]].by_owner for name in served)
