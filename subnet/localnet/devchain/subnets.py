"""Storage-level operations on subnets and their neurons: creation, registration, replacement, stake, permits.

No origins, prices or limits here; the calls in pallet_subtensor check those first. Invariants: `Keys` and `Uids` are
inverse to each other; the per-neuron vectors have SubnetworkN entries; a reused uid inherits nothing; stake belongs
to a hotkey and outlives its uid; SubnetAlphaOut counts every rao of alpha that exists in the subnet.

Source: pallet_subtensor, `subnets/uids.rs` and `registration.rs` by behaviour.
"""

from __future__ import annotations

from typing import Any

import bittensor_core as core

from subnet.localnet.devchain import pallet_balances
from subnet.localnet.devchain.dispatch import subtensor_error
from subnet.localnet.devchain.state import State, View

PALLET = "SubtensorModule"
SS58_FORMAT = 42
POOL_START_RAO = 10**12  # TAO of a new subnet: its price, which the real chain puts there as well
POOL_SEED = b"modlsubtensr"

# What a neuron starts with in each vector that has one entry per neuron; LastUpdate starts at the block.
PER_NEURON: dict[str, Any] = {
    "LastUpdate": 0,
    "Active": True,
    "ValidatorPermit": False,
    "ValidatorTrust": 0,
    "Consensus": 0,
    "Incentive": 0,
    "Dividends": 0,
    "Emission": 0,
}

# Settings of a new subnet that differ from the runtime's own defaults, so that a local run moves at once.
DEFAULTS: dict[str, Any] = {
    "Tempo": 20,
    "MaxAllowedUids": 256,
    "MaxAllowedValidators": 64,
    "WeightsSetRateLimit": 10,
    "ServingRateLimit": 0,
    "ImmunityPeriod": 100,
    "Burn": 10**8,
    "MinAllowedWeights": 0,
    "ActivityCutoffFactorMilli": 50_000,  # the most there may be: tempos are short here, scoring windows aren't
    "MinAllowedUids": 1,
    "MinNonImmuneUids": 0,
    "CommitRevealWeightsEnabled": False,
    "NetworkRegistrationAllowed": True,
    "NetworkPowRegistrationAllowed": False,
    "TokenSymbol": list("α".encode()),  # noqa: RUF001 - the sign of the first subnet's token
}

SETTABLE = frozenset(DEFAULTS) | {
    "MinBurn", "MaxBurn", "BurnHalfLife",
    "WeightsVersionKey", "MaxWeightsLimit", "RevealPeriodEpochs", "Kappa", "BondsMovingAverage",
    "ActivityCutoffFactorMilli", "ImmuneOwnerUidsLimit",
}  # fmt: skip


# Limits on administration that would keep a chain of short tempos closed most of the time.
GLOBAL_DEFAULTS = {"AdminFreezeWindow": 0, "OwnerHyperparamRateLimit": 0}


def set_globals(state: State) -> None:
    """What a new chain has before any subnet."""
    for item, value in GLOBAL_DEFAULTS.items():
        state.put(PALLET, item, value)


def read(view: View, item: str, *keys: Any) -> Any:
    return view.get(PALLET, item, *keys)


def exists(view: View, netuid: int) -> bool:
    return bool(read(view, "NetworksAdded", netuid))


def netuids(view: View) -> list[int]:
    """All subnets, in order."""
    prefix = view.codec.prefix(PALLET, "NetworksAdded")
    return sorted(int.from_bytes(key[-2:], "little") for key in view.raw_keys(prefix))


def hotkeys(view: View, netuid: int) -> list[str]:
    """Hotkeys by uid."""
    return [read(view, "Keys", netuid, uid) for uid in range(read(view, "SubnetworkN", netuid))]


def stake_rao(view: View, netuid: int, hotkey: str) -> int:
    return int(read(view, "TotalHotkeyAlpha", hotkey, netuid))


def pool_account(netuid: int) -> str:
    """The account that holds a subnet's TAO; nobody has its key."""
    return str(core.encode_ss58((POOL_SEED + netuid.to_bytes(2, "little")).ljust(32, b"\0"), SS58_FORMAT))


def create(state: State, netuid: int, owner: tuple[str, str], settings: dict[str, Any]) -> None:
    """owner: coldkey and hotkey; the hotkey becomes uid 0. settings: storage items by name, see SETTABLE"""
    unknown = sorted(set(settings) - SETTABLE)
    if unknown:
        raise ValueError(f"not settings of a subnet: {', '.join(unknown)}; known are {', '.join(sorted(SETTABLE))}")
    if exists(state, netuid):
        raise ValueError(f"subnet {netuid} exists")
    coldkey, hotkey = owner
    fixed = {
        "NetworksAdded": True,
        "SubtokenEnabled": True,
        "SubnetTAO": POOL_START_RAO,
        "NetworkRegisteredAt": state.number,
        "LastEpochBlock": state.number,
        "SubnetOwner": coldkey,
        "SubnetOwnerHotkey": hotkey,
    }
    for item, value in {**DEFAULTS, **settings, **fixed}.items():
        state.put(PALLET, item, value, netuid)
    pallet_balances.endow(state, pool_account(netuid), POOL_START_RAO)
    register(state, netuid, hotkey, coldkey)


def register(state: State, netuid: int, hotkey: str, coldkey: str) -> int:
    """A uid for ``hotkey``: a new one, or that of the neuron that is pruned for it. Raises DispatchError."""
    if read(state, "Uids", netuid, hotkey) is not None:
        raise subtensor_error("HotKeyAlreadyRegisteredInSubNet")
    if owner_of(state, hotkey) not in (None, coldkey):
        raise subtensor_error("NonAssociatedColdKey")
    uid = int(read(state, "SubnetworkN", netuid))
    if uid < read(state, "MaxAllowedUids", netuid):
        state.put(PALLET, "SubnetworkN", uid + 1, netuid)
    else:
        uid = prunable(state, netuid)
        forget(state, netuid, uid)
    for item, start in PER_NEURON.items():
        column = list(read(state, item, netuid))
        column[uid:] = [start, *column[uid + 1 :]]
        state.put(PALLET, item, column, netuid)
    last_update = list(read(state, "LastUpdate", netuid))
    last_update[uid] = state.number
    state.put(PALLET, "LastUpdate", last_update, netuid)
    state.put(PALLET, "Uids", uid, netuid, hotkey)
    state.put(PALLET, "Keys", hotkey, netuid, uid)
    state.put(PALLET, "Owner", coldkey, hotkey)
    for item in ("OwnedHotkeys", "StakingHotkeys"):
        known = list(read(state, item, coldkey))
        if hotkey not in known:
            state.put(PALLET, item, [*known, hotkey], coldkey)
    state.put(PALLET, "IsNetworkMember", True, hotkey, netuid)
    state.put(PALLET, "BlockAtRegistration", state.number, netuid, uid)
    return uid


def owner_of(view: View, hotkey: str) -> str | None:
    """The coldkey that a hotkey belongs to, if it was ever registered."""
    if view.raw(view.codec.key(PALLET, "Owner", (hotkey,))) is None:
        return None
    owner: str = read(view, "Owner", hotkey)
    return owner


def activity_cutoff_blocks(view: View, netuid: int) -> int:
    """For how long after its last weights a validator counts."""
    return int(read(view, "ActivityCutoffFactorMilli", netuid)) * int(read(view, "Tempo", netuid)) // 1000


def owners_uids(view: View, netuid: int) -> set[int]:
    """Uids that are never pruned: the owner hotkey's, then the oldest of the owner coldkey's, ImmuneOwnerUidsLimit."""
    owner_hotkey = read(view, "SubnetOwnerHotkey", netuid)
    owned = read(view, "OwnedHotkeys", read(view, "SubnetOwner", netuid))
    uids = {hotkey: read(view, "Uids", netuid, hotkey) for hotkey in {owner_hotkey, *owned}}
    ages = sorted(
        (hotkey != owner_hotkey, read(view, "BlockAtRegistration", netuid, uid), uid)
        for hotkey, uid in uids.items()
        if uid is not None
    )
    return {uid for _, _, uid in ages[: read(view, "ImmuneOwnerUidsLimit", netuid)]}


def prunable(view: View, netuid: int) -> int:
    """The uid to give away: the lowest emission, of equal ones the longest registered.

    Neurons in their immunity period are only taken if MinNonImmuneUids others or fewer are left.
    """
    immunity, number = read(view, "ImmunityPeriod", netuid), view.get("System", "Number")
    emission, kept = read(view, "Emission", netuid), owners_uids(view, netuid)
    candidates: dict[bool, list[tuple[int, int, int]]] = {True: [], False: []}
    for uid in set(range(len(emission))) - kept:
        registered = read(view, "BlockAtRegistration", netuid, uid)
        candidates[number - registered < immunity].append((emission[uid], registered, uid))
    is_taken_from = len(candidates[False]) <= read(view, "MinNonImmuneUids", netuid)
    if not candidates[is_taken_from]:
        raise subtensor_error("NoNeuronIdAvailable")
    return min(candidates[is_taken_from])[2]


def forget(state: State, netuid: int, uid: int) -> None:
    """Everything that is kept under a uid and its hotkey's membership; not the hotkey's stake."""
    hotkey = read(state, "Keys", netuid, uid)
    for item, keys in (
        ("Uids", (netuid, hotkey)),
        ("IsNetworkMember", (hotkey, netuid)),
        ("Axons", (netuid, hotkey)),
        ("Weights", (netuid, uid)),
        ("Bonds", (netuid, uid)),
    ):
        state.remove(PALLET, item, *keys)
    state.remove("Commitments", "CommitmentOf", netuid, hotkey)
    for validator in range(read(state, "SubnetworkN", netuid)):
        bonds = read(state, "Bonds", netuid, validator)
        if any(miner == uid for miner, _ in bonds):
            state.put(PALLET, "Bonds", [pair for pair in bonds if pair[0] != uid], netuid, validator)


def add_stake(state: State, netuid: int, hotkey: str, rao: int) -> None:
    state.put(PALLET, "TotalHotkeyAlpha", stake_rao(state, netuid, hotkey) + rao, hotkey, netuid)


def change_alpha_out(state: State, netuid: int, rao: int) -> None:
    state.put(PALLET, "SubnetAlphaOut", read(state, "SubnetAlphaOut", netuid) + rao, netuid)


def update_permits(state: State, netuid: int) -> None:
    """Permits for the MaxAllowedValidators largest stakes of at least StakeThreshold and above zero."""
    staked = sorted(
        ((-stake_rao(state, netuid, hotkey), uid) for uid, hotkey in enumerate(hotkeys(state, netuid))),
    )
    least = max(1, read(state, "StakeThreshold"))
    permitted = {uid for rao, uid in staked[: read(state, "MaxAllowedValidators", netuid)] if -rao >= least}
    before = read(state, "ValidatorPermit", netuid)
    state.put(PALLET, "ValidatorPermit", [uid in permitted for uid in range(len(staked))], netuid)
    for uid, had in enumerate(before):
        if had and uid not in permitted:
            state.remove(PALLET, "Bonds", netuid, uid)
