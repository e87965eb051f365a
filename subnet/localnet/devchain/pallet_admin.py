"""Hyperparameters of a subnet through pallet_admin_utils: by the sudo key, some of them by the subnet's owner.

No freeze window before an epoch and no rate limit on the owner, unlike the real chain. Each call stores one value.

Source: pallet_admin_utils (`ensure_root` or `ensure_subnet_owner_or_root` per call) by behaviour.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from subnet.localnet.devchain import subnets
from subnet.localnet.devchain.dispatch import Context, Handler, bad_origin, subtensor_error
from subnet.localnet.devchain.subnets import PALLET, read

# call: storage item it sets, whether the subnet's owner may
SETTERS: dict[str, tuple[str, bool]] = {
    "sudo_set_serving_rate_limit": ("ServingRateLimit", True),
    "sudo_set_weights_version_key": ("WeightsVersionKey", True),
    "sudo_set_weights_set_rate_limit": ("WeightsSetRateLimit", False),
    "sudo_set_immunity_period": ("ImmunityPeriod", True),
    "sudo_set_min_allowed_weights": ("MinAllowedWeights", True),
    "sudo_set_max_allowed_uids": ("MaxAllowedUids", False),
    "sudo_set_kappa": ("Kappa", False),
    "sudo_set_activity_cutoff": ("ActivityCutoff", True),
    "sudo_set_network_registration_allowed": ("NetworkRegistrationAllowed", False),
    "sudo_set_max_allowed_validators": ("MaxAllowedValidators", False),
    "sudo_set_bonds_moving_average": ("BondsMovingAverage", True),
    "sudo_set_tempo": ("Tempo", False),
    "sudo_set_commit_reveal_weights_enabled": ("CommitRevealWeightsEnabled", True),
    "sudo_set_commit_reveal_weights_interval": ("RevealPeriodEpochs", True),
}


def set_hyperparameter(context: Context, item: str, by_owner: bool, netuid: int, **value: Any) -> None:
    is_owner = context.signer is not None and context.signer == read(context.state, "SubnetOwner", netuid)
    if context.signer is not None and not (by_owner and is_owner):
        raise bad_origin()
    if not subnets.exists(context.state, netuid):
        raise subtensor_error("SubnetNotExists")
    (new,) = value.values()
    if item == "MaxAllowedUids" and new < read(context.state, "SubnetworkN", netuid):
        raise subtensor_error("NoNeuronIdAvailable")
    context.state.put(PALLET, item, new, netuid)


CALLS: dict[str, Handler] = {
    call: partial(set_hyperparameter, item=item, by_owner=by_owner) for call, (item, by_owner) in SETTERS.items()
}
