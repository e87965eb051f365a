"""Hyperparameters of a subnet through pallet_admin_utils: by the sudo key, most of them by the subnet's owner too.

Checks, in this order: origin; how soon an owner may change the same thing again (OwnerHyperparamRateLimit tempos); the
freeze in a tempo's last AdminFreezeWindow blocks, which binds the sudo key as well; that the subnet exists; bounds. A
new chain has both limits at zero, unlike the real one; `sudo_set_admin_freeze_window` and
`sudo_set_owner_hparam_rate_limit` set them. A new tempo starts a new epoch. Not here: the separate rate limit of the
weights version.

Source: pallet_admin_utils, `ensure_sn_owner_or_root_with_limits`, `ensure_admin_window_open` by behaviour and order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from subnet.localnet.devchain import subnets
from subnet.localnet.devchain.dispatch import Context, Handler, bad_origin, module_error, subtensor_error
from subnet.localnet.devchain.subnets import PALLET, read

ADMIN = "AdminUtils"
MIN_TEMPO_BLOCKS, MAX_TEMPO_BLOCKS = 360, 50_400  # for owners
MAX_UIDS = 256
MAX_BONDS_MOVING_AVERAGE = 975_000  # for owners
MIN_BURN_BELOW_RAO, MAX_BURN_ABOVE_RAO = 10**9, 10**8
MIN_CUTOFF_BLOCKS = 360
CUTOFF_MILLI = range(1_000, 50_001)
REVEAL_EPOCHS = range(1, 101)
OWNER_UIDS = range(1, 11)
ONE_U64F64 = 1 << 64

# Raises for a value out of bounds. by_owner: the subnet's owner signs
Bound = Callable[[Context, int, Any, bool], None]


def demand(is_good: bool, pallet: str, error: str) -> None:
    if not is_good:
        raise module_error(pallet, error)


def check_max_uids(context: Context, netuid: int, new: int, by_owner: bool) -> None:
    demand(new >= read(context.state, "MinAllowedUids", netuid), ADMIN, "MaxAllowedUidsLessThanMinAllowedUids")
    demand(new >= read(context.state, "SubnetworkN", netuid), ADMIN, "MaxAllowedUIdsLessThanCurrentUIds")
    demand(new <= MAX_UIDS, ADMIN, "MaxAllowedUidsGreaterThanDefaultMaxAllowedUids")


def check_max_validators(context: Context, netuid: int, new: int, by_owner: bool) -> None:
    demand(new <= read(context.state, "MaxAllowedUids", netuid), ADMIN, "MaxValidatorsLargerThanMaxUIds")


def check_min_burn(context: Context, netuid: int, new: int, by_owner: bool) -> None:
    demand(new < min(MIN_BURN_BELOW_RAO, read(context.state, "MaxBurn", netuid)), ADMIN, "ValueNotInBounds")


def check_max_burn(context: Context, netuid: int, new: int, by_owner: bool) -> None:
    demand(new > max(MAX_BURN_ABOVE_RAO, read(context.state, "MinBurn", netuid)), ADMIN, "ValueNotInBounds")


def check_bonds(context: Context, netuid: int, new: int, by_owner: bool) -> None:
    demand(not by_owner or new <= MAX_BONDS_MOVING_AVERAGE, ADMIN, "BondsMovingAverageMaxReached")


def check_cutoff(context: Context, netuid: int, new: int, by_owner: bool) -> None:
    demand(new >= MIN_CUTOFF_BLOCKS, PALLET, "ActivityCutoffTooLow")


def check_cutoff_factor(context: Context, netuid: int, new: int, by_owner: bool) -> None:
    demand(new in CUTOFF_MILLI, PALLET, "ActivityCutoffFactorMilliOutOfBounds")


def check_reveal(context: Context, netuid: int, new: int, by_owner: bool) -> None:
    demand(new >= REVEAL_EPOCHS[0], PALLET, "RevealPeriodTooSmall")
    demand(new <= REVEAL_EPOCHS[-1], PALLET, "RevealPeriodTooLarge")


def check_owner_uids(context: Context, netuid: int, new: int, by_owner: bool) -> None:
    demand(new in OWNER_UIDS, PALLET, "InvalidValue")


def check_half_life(context: Context, netuid: int, new: int, by_owner: bool) -> None:
    demand(new > 0, ADMIN, "InvalidValue")


def check_multiplier(context: Context, netuid: int, new: dict[str, int], by_owner: bool) -> None:
    demand(ONE_U64F64 <= new["bits"] <= 3 * ONE_U64F64, ADMIN, "InvalidValue")


def check_tempo(context: Context, netuid: int, new: int, by_owner: bool) -> None:
    demand(not by_owner or MIN_TEMPO_BLOCKS <= new <= MAX_TEMPO_BLOCKS, PALLET, "TempoOutOfBounds")


@dataclass(frozen=True)
class Setter:
    """item: the storage item; by_owner: whether the subnet's owner may
    limit: the name under which an owner's last change is remembered; frozen: not in a tempo's last blocks
    """

    item: str
    by_owner: bool = False
    limit: str | None = None
    frozen: bool = True
    check: Bound | None = None


def owners(item: str, limit: str | None = None, check: Bound | None = None) -> Setter:
    return Setter(item, by_owner=True, limit=limit or item, check=check)


SETTERS: dict[str, Setter] = {
    "sudo_set_serving_rate_limit": owners("ServingRateLimit"),
    "sudo_set_weights_version_key": Setter("WeightsVersionKey", by_owner=True),
    "sudo_set_weights_set_rate_limit": Setter("WeightsSetRateLimit", frozen=False),
    "sudo_set_immunity_period": owners("ImmunityPeriod"),
    "sudo_set_min_allowed_weights": owners("MinAllowedWeights"),
    "sudo_set_max_allowed_uids": owners("MaxAllowedUids", check=check_max_uids),
    "sudo_set_kappa": Setter("Kappa", frozen=False),
    "sudo_set_activity_cutoff": owners("ActivityCutoff", check=check_cutoff),
    "sudo_set_activity_cutoff_factor": owners("ActivityCutoffFactorMilli", check=check_cutoff_factor),
    "sudo_set_network_registration_allowed": Setter("NetworkRegistrationAllowed", by_owner=True, frozen=False),
    "sudo_set_min_burn": owners("MinBurn", check=check_min_burn),
    "sudo_set_max_burn": owners("MaxBurn", check=check_max_burn),
    "sudo_set_burn_half_life": owners("BurnHalfLife", check=check_half_life),
    "sudo_set_burn_increase_mult": owners("BurnIncreaseMult", check=check_multiplier),
    "sudo_set_max_allowed_validators": Setter("MaxAllowedValidators", check=check_max_validators),
    "sudo_set_bonds_moving_average": owners("BondsMovingAverage", check=check_bonds),
    "sudo_set_tempo": Setter("Tempo", by_owner=True, check=check_tempo),
    "sudo_set_commit_reveal_weights_enabled": owners("CommitRevealWeightsEnabled", "CommitRevealEnabled"),
    "sudo_set_commit_reveal_weights_interval": owners("RevealPeriodEpochs", "WeightCommitInterval", check_reveal),
    "sudo_set_owner_immune_neuron_limit": owners("ImmuneOwnerUidsLimit", "ImmuneNeuronLimit", check_owner_uids),
    "sudo_set_min_allowed_uids": Setter("MinAllowedUids", frozen=False),
    "sudo_set_min_non_immune_uids": Setter("MinNonImmuneUids", frozen=False),
    "sudo_set_subtoken_enabled": Setter("SubtokenEnabled", frozen=False),
}

# Of the whole chain, by the sudo key alone.
GLOBAL_SETTERS: dict[str, str] = {
    "sudo_set_stake_threshold": "StakeThreshold",
    "sudo_set_admin_freeze_window": "AdminFreezeWindow",
    "sudo_set_owner_hparam_rate_limit": "OwnerHyperparamRateLimit",
}


def is_owner(context: Context, netuid: int, setter: Setter) -> bool:
    """Whether the owner signs, False for the sudo key; anybody else is refused."""
    if context.signer is None:
        return False
    if not setter.by_owner or context.signer != read(context.state, "SubnetOwner", netuid):
        raise bad_origin()
    return True


def is_frozen(context: Context, netuid: int) -> bool:
    tempo = int(read(context.state, "Tempo", netuid))
    left = int(read(context.state, "LastEpochBlock", netuid)) + tempo - context.block
    return tempo > 0 and max(0, left) < read(context.state, "AdminFreezeWindow")


def set_hyperparameter(context: Context, setter: Setter, netuid: int, **value: Any) -> None:
    state, (new,) = context.state, value.values()
    by_owner = is_owner(context, netuid, setter)
    key = None
    if by_owner and setter.limit is not None:
        key = {"OwnerHyperparamUpdate": (netuid, setter.limit)}
        last = int(read(state, "LastRateLimitedBlock", key))
        limit = int(read(state, "OwnerHyperparamRateLimit")) * int(read(state, "Tempo", netuid))
        if last != 0 and context.block - last < limit:
            raise subtensor_error("TxRateLimitExceeded")
    if setter.frozen and is_frozen(context, netuid):
        raise subtensor_error("AdminActionProhibitedDuringWeightsWindow")
    if not subnets.exists(state, netuid):
        raise module_error(ADMIN, "SubnetDoesNotExist")
    if setter.check is not None:
        setter.check(context, netuid, new, by_owner)
    state.put(PALLET, setter.item, new, netuid)
    if setter.item == "Tempo":
        state.put(PALLET, "LastEpochBlock", context.block, netuid)
    if key is not None:
        state.put(PALLET, "LastRateLimitedBlock", context.block, key)


def set_global(context: Context, item: str, **value: Any) -> None:
    if context.signer is not None:
        raise bad_origin()
    (new,) = value.values()
    context.state.put(PALLET, item, new)


CALLS: dict[str, Handler] = {
    **{call: partial(set_hyperparameter, setter=setter) for call, setter in SETTERS.items()},
    **{call: partial(set_global, item=item) for call, item in GLOBAL_SETTERS.items()},
}
