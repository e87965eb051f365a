"""What clients read in one piece through `state_call`: neurons, the metagraph, hyperparameters, epochs, fees.

Pure functions of a storage view. Fields of things that this chain does not have (prices, proof of work, collateral,
liquid alpha) hold constants. Values are in the shapes that `bittensor_core.Runtime` encodes.

Source: runtime APIs of spec 461 as tables_apis declares them; formulas as on the real chain where they exist here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from subnet.localnet.devchain import stake_api, subnets
from subnet.localnet.devchain.pallet_balances import account
from subnet.localnet.devchain.state import View
from subnet.localnet.devchain.subnets import read

NO_AXON = {
    "block": 0, "version": 0, "ip": 0, "port": 0, "ip_type": 0, "protocol": 0, "placeholder1": 0, "placeholder2": 0,
}  # fmt: skip
NO_PROMETHEUS = {"block": 0, "version": 0, "ip": 0, "port": 0, "ip_type": 0}

REGISTRATION_COST_RAO = 10**12  # price of a new subnet; subnets are created by the launcher here
POOL_RESERVE_RAO = 10**12  # the alpha side of the price curve that does not exist
UNIT_PRICE = 1 << 32  # one, in I96F32 bits

COLUMNS = (
    "LastUpdate",
    "ValidatorPermit",
    "Active",
    "Incentive",
    "Dividends",
    "Consensus",
    "ValidatorTrust",
    "Emission",
)


@dataclass(frozen=True)
class Neuron:
    uid: int
    hotkey: str
    coldkey: str
    axon: dict[str, int]
    stake: int
    registered: int
    column: dict[str, Any]


def neurons(view: View, netuid: int) -> Iterator[Neuron]:
    columns = {item: read(view, item, netuid) for item in COLUMNS}
    for uid, hotkey in enumerate(subnets.hotkeys(view, netuid)):
        yield Neuron(
            uid=uid,
            hotkey=hotkey,
            coldkey=read(view, "Owner", hotkey),
            axon=read(view, "Axons", netuid, hotkey) or dict(NO_AXON),
            stake=subnets.stake_rao(view, netuid, hotkey),
            registered=read(view, "BlockAtRegistration", netuid, uid),
            column={item: values[uid] for item, values in columns.items()},
        )


def neuron_lite(neuron: Neuron, netuid: int) -> dict[str, Any]:
    column = neuron.column
    return {
        "hotkey": neuron.hotkey,
        "coldkey": neuron.coldkey,
        "uid": neuron.uid,
        "netuid": netuid,
        "active": column["Active"],
        "axon_info": neuron.axon,
        "prometheus_info": dict(NO_PROMETHEUS),
        "stake": [(neuron.coldkey, neuron.stake)],
        "rank": 0,
        "emission": column["Emission"],
        "incentive": column["Incentive"],
        "consensus": column["Consensus"],
        "trust": 0,
        "validator_trust": column["ValidatorTrust"],
        "dividends": column["Dividends"],
        "last_update": column["LastUpdate"],
        "validator_permit": column["ValidatorPermit"],
        "pruning_score": min(column["Emission"], 65535),
    }


def get_neurons_lite(view: View, netuid: int) -> list[dict[str, Any]]:
    return [neuron_lite(neuron, netuid) for neuron in neurons(view, netuid)]


def get_neurons(view: View, netuid: int) -> list[dict[str, Any]]:
    return [
        {
            **neuron_lite(neuron, netuid),
            "weights": read(view, "Weights", netuid, neuron.uid),
            "bonds": read(view, "Bonds", netuid, neuron.uid),
        }
        for neuron in neurons(view, netuid)
    ]


def subnet_fields(view: View, netuid: int) -> dict[str, Any]:
    return {
        "netuid": netuid,
        "name": list(b"devnet"),
        # The codec reads bytes that are UTF-8 as text.
        "symbol": list(read(view, "TokenSymbol", netuid).encode()),
        "identity": None,
        "network_registered_at": read(view, "NetworkRegisteredAt", netuid),
        "owner_hotkey": read(view, "SubnetOwnerHotkey", netuid),
        "owner_coldkey": read(view, "SubnetOwner", netuid),
        "block": view.get("System", "Number"),
        "tempo": read(view, "Tempo", netuid),
        "last_step": read(view, "LastEpochBlock", netuid),
        "blocks_since_last_step": read(view, "BlocksSinceLastStep", netuid),
        "alpha_out": read(view, "SubnetAlphaOut", netuid),
        "kappa": read(view, "Kappa", netuid),
        "min_allowed_weights": read(view, "MinAllowedWeights", netuid),
        "max_weights_limit": read(view, "MaxWeightsLimit", netuid),
        "weights_version": read(view, "WeightsVersionKey", netuid),
        "weights_rate_limit": read(view, "WeightsSetRateLimit", netuid),
        "activity_cutoff": subnets.activity_cutoff_blocks(view, netuid),
        "max_validators": read(view, "MaxAllowedValidators", netuid),
        "num_uids": read(view, "SubnetworkN", netuid),
        "max_uids": read(view, "MaxAllowedUids", netuid),
        "burn": read(view, "Burn", netuid),
        "registration_allowed": read(view, "NetworkRegistrationAllowed", netuid),
        "immunity_period": read(view, "ImmunityPeriod", netuid),
        "min_burn": read(view, "MinBurn", netuid),
        "max_burn": read(view, "MaxBurn", netuid),
        "serving_rate_limit": read(view, "ServingRateLimit", netuid),
        "commit_reveal_weights_enabled": read(view, "CommitRevealWeightsEnabled", netuid),
        "commit_reveal_period": read(view, "RevealPeriodEpochs", netuid),
        "bonds_moving_avg": read(view, "BondsMovingAverage", netuid),
        "tao_in": read(view, "SubnetTAO", netuid),
    }


# Of mechanisms that this chain does not have; defaults of the real one where they are known.
ABSENT: dict[str, Any] = {
    "subnet_emission": 0, "alpha_in": POOL_RESERVE_RAO, "alpha_out_emission": 10**9,
    "alpha_in_emission": 0, "tao_in_emission": 0, "pending_alpha_emission": 0, "pending_root_emission": 0,
    "subnet_volume": 0, "moving_price": {"bits": UNIT_PRICE}, "rho": 10, "difficulty": 10_000_000,
    "pow_registration_allowed": False, "min_difficulty": 10_000_000, "max_difficulty": (1 << 62) - 1,
    "adjustment_alpha": 0, "adjustment_interval": 100, "target_regs_per_interval": 1, "max_regs_per_block": 1,
    "liquid_alpha_enabled": False, "alpha_high": 58982, "alpha_low": 45875, "tao_dividends_per_hotkey": [],
    "alpha_dividends_per_hotkey": [],
}  # fmt: skip


def get_metagraph(view: View, netuid: int) -> dict[str, Any] | None:
    if not subnets.exists(view, netuid):
        return None
    all_neurons = list(neurons(view, netuid))
    zeros = [0] * len(all_neurons)
    stakes = [neuron.stake for neuron in all_neurons]

    def column(item: str) -> list[Any]:
        return [neuron.column[item] for neuron in all_neurons]

    return {
        **ABSENT,
        **subnet_fields(view, netuid),
        "hotkeys": [neuron.hotkey for neuron in all_neurons],
        "coldkeys": [neuron.coldkey for neuron in all_neurons],
        "identities": [None] * len(all_neurons),
        "axons": [neuron.axon for neuron in all_neurons],
        "active": column("Active"),
        "validator_permit": column("ValidatorPermit"),
        "pruning_score": [min(emission, 65535) for emission in column("Emission")],
        "last_update": column("LastUpdate"),
        "emission": column("Emission"),
        "dividends": column("Dividends"),
        "incentives": column("Incentive"),
        "consensus": column("Consensus"),
        "trust": zeros,
        "rank": zeros,
        "block_at_registration": [neuron.registered for neuron in all_neurons],
        "alpha_stake": stakes,
        "tao_stake": zeros,
        "total_stake": stakes,
        "collateral_locked": zeros,
        "collateral_min": zeros,
        "collateral_earned": zeros,
    }


# Name in the API's answer: how the value travels, storage item.
HYPERPARAMETERS: dict[str, tuple[str, str]] = {
    "kappa": ("U16", "Kappa"),
    "immunity_period": ("U16", "ImmunityPeriod"),
    "min_allowed_weights": ("U16", "MinAllowedWeights"),
    "max_weights_limit": ("U16", "MaxWeightsLimit"),
    "tempo": ("U16", "Tempo"),
    "weights_version": ("U64", "WeightsVersionKey"),
    "weights_rate_limit": ("U64", "WeightsSetRateLimit"),
    "activity_cutoff_factor": ("U32", "ActivityCutoffFactorMilli"),
    "registration_allowed": ("Bool", "NetworkRegistrationAllowed"),
    "min_burn": ("TaoBalance", "MinBurn"),
    "max_burn": ("TaoBalance", "MaxBurn"),
    "bonds_moving_avg": ("U64", "BondsMovingAverage"),
    "serving_rate_limit": ("U64", "ServingRateLimit"),
    "max_validators": ("U16", "MaxAllowedValidators"),
    "commit_reveal_period": ("U64", "RevealPeriodEpochs"),
    "commit_reveal_weights_enabled": ("Bool", "CommitRevealWeightsEnabled"),
}


def get_subnet_hyperparams_v3(view: View, netuid: int) -> list[dict[str, Any]] | None:
    if not subnets.exists(view, netuid):
        return None
    values = {name: {kind: read(view, item, netuid)} for name, (kind, item) in HYPERPARAMETERS.items()}
    values["activity_cutoff"] = {"U16": min(subnets.activity_cutoff_blocks(view, netuid), 65535)}
    return [{"name": list(name.encode()), "value": value} for name, value in values.items()]


def get_next_epoch_start_block(view: View, netuid: int) -> int | None:
    if not subnets.exists(view, netuid):
        return None
    return int(read(view, "LastEpochBlock", netuid)) + max(1, int(read(view, "Tempo", netuid)))


def account_nonce(view: View, who: str) -> int:
    return int(account(view, who)["nonce"])


def get_network_registration_cost(view: View) -> int:
    return REGISTRATION_COST_RAO


METHODS: dict[tuple[str, str], Callable[..., Any]] = {
    **stake_api.METHODS,
    ("AccountNonceApi", "account_nonce"): account_nonce,
    ("NeuronInfoRuntimeApi", "get_neurons"): get_neurons,
    ("NeuronInfoRuntimeApi", "get_neurons_lite"): get_neurons_lite,
    ("SubnetInfoRuntimeApi", "get_metagraph"): get_metagraph,
    ("SubnetInfoRuntimeApi", "get_subnet_hyperparams_v3"): get_subnet_hyperparams_v3,
    ("SubnetInfoRuntimeApi", "get_next_epoch_start_block"): get_next_epoch_start_block,
    ("SubnetRegistrationRuntimeApi", "get_network_registration_cost"): get_network_registration_cost,
}


def answer(view: View, api: str, method: str, data: bytes) -> bytes:
    """The encoded result. Raises KeyError for a method that isn't served, ValueError for bad arguments."""
    runtime = view.codec.runtime
    declared = runtime.runtime_api_map()[api][method]
    arguments = []
    for _, kind in declared["inputs"]:
        argument = runtime.decode(kind, data, False)
        arguments.append(argument)
        data = data[len(runtime.encode(kind, argument)) :]
    return bytes(runtime.encode(declared["output"], METHODS[api, method](view, *arguments)))
