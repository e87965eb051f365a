"""The calls of pallet_subtensor that a subnet's programs make: register, serve, set weights, commit weights.

Each call checks in the order of the real one, so that a client meets the same error first. Mechanism 0 only; no proof
of work, no root subnet, no delegation. Loopback axon addresses are refused unless the chain's rules allow them.

Source: pallet_subtensor `macros/dispatches.rs`, `subnets/weights.rs`, `subnets/serving.rs` by behaviour.
"""

from __future__ import annotations

import ipaddress
from typing import Any

from subnet.localnet.devchain import pallet_balances, prices, sealed, subnets
from subnet.localnet.devchain.dispatch import Context, Handler, subtensor_error
from subnet.localnet.devchain.extrinsics import blake2_256
from subnet.localnet.devchain.subnets import PALLET, read
from subnet.localnet.devchain.yuma import U16_MAX

ROOT_NETUID = 0
NETUID_BYTES, MECID_BYTES = 2, 1  # encoded
MAX_UNREVEALED = 10  # commits of one hotkey in one epoch
MAX_MECHANISMS_STRIDE = 4096  # storage index of (mechanism, subnet) = mechanism * 4096 + netuid


def burned_register(context: Context, netuid: int, hotkey: str) -> None:
    state, coldkey = context.state, context.who
    if netuid == ROOT_NETUID:
        raise subtensor_error("RegistrationNotPermittedOnRootSubnet")
    if not subnets.exists(state, netuid):
        raise subtensor_error("SubnetNotExists")
    if not read(state, "NetworkRegistrationAllowed", netuid):
        raise subtensor_error("SubNetRegistrationDisabled")
    if read(state, "Uids", netuid, hotkey) is not None:
        raise subtensor_error("HotKeyAlreadyRegisteredInSubNet")
    price = int(read(state, "Burn", netuid))
    if pallet_balances.free_rao(state, coldkey) - price < pallet_balances.EXISTENTIAL_DEPOSIT_RAO:
        raise subtensor_error("NotEnoughBalanceToStake")
    uid = subnets.register(state, netuid, hotkey, coldkey)
    pallet_balances.burn(state, coldkey, price)
    prices.bump(state, netuid)
    context.emit(PALLET, "NeuronRegistered", [netuid, uid, hotkey])


def register_limit(context: Context, netuid: int, hotkey: str, limit_price: int) -> None:
    if netuid == ROOT_NETUID:
        raise subtensor_error("RegistrationNotPermittedOnRootSubnet")
    if not subnets.exists(context.state, netuid):
        raise subtensor_error("SubnetNotExists")
    if read(context.state, "Burn", netuid) > limit_price:
        raise subtensor_error("RegistrationPriceLimitExceeded")
    burned_register(context, netuid, hotkey)


def check_address(ip: int, ip_type: int, allow_loopback: bool) -> None:
    if ip_type not in (4, 6):
        raise subtensor_error("InvalidIpType")
    if ip >= 1 << (32 if ip_type == 4 else 128):
        raise subtensor_error("InvalidIpAddress")
    address = ipaddress.IPv4Address(ip) if ip_type == 4 else ipaddress.IPv6Address(ip)
    if address.is_unspecified or address.is_multicast or (address.is_loopback and not allow_loopback):
        raise subtensor_error("InvalidIpAddress")


def serve_axon(context: Context, netuid: int, ip: int, port: int, ip_type: int, **rest: int) -> None:
    """rest: version, protocol and two placeholders, stored as given"""
    state, hotkey = context.state, context.who
    if read(state, "Uids", netuid, hotkey) is None:
        raise subtensor_error("HotKeyNotRegisteredInNetwork")
    check_address(ip, ip_type, context.rules.allow_loopback)
    if port == 0:
        raise subtensor_error("InvalidPort")
    served = read(state, "Axons", netuid, hotkey)
    if served is not None and context.block - served["block"] < read(state, "ServingRateLimit", netuid):
        raise subtensor_error("ServingRateLimitExceeded")
    axon = {"block": context.block, "ip": ip, "port": port, "ip_type": ip_type, **rest}
    state.put(PALLET, "Axons", axon, netuid, hotkey)
    context.emit(PALLET, "AxonServed", [netuid, hotkey])


def check_mechanism(context: Context, netuid: int, mecid: int) -> None:
    if not subnets.exists(context.state, netuid) or mecid != 0:
        raise subtensor_error("MechanismDoesNotExist")


def voter(context: Context, netuid: int) -> int:
    """The signer's uid."""
    uid = read(context.state, "Uids", netuid, context.who)
    if uid is None:
        raise subtensor_error("HotKeyNotRegisteredInSubNet")
    return int(uid)


def check_stake(context: Context, netuid: int) -> None:
    if subnets.stake_rao(context.state, netuid, context.who) < read(context.state, "StakeThreshold"):
        raise subtensor_error("NotEnoughStakeToSetWeights")


def is_too_early(context: Context, netuid: int, uid: int) -> bool:
    """Within the rate limit since this uid's last weights; one that never had any, at block 0, is free."""
    last = read(context.state, "LastUpdate", netuid)[uid]
    limit = int(read(context.state, "WeightsSetRateLimit", netuid))
    return bool(last != 0 and context.block - last < limit)


def touch(context: Context, netuid: int, uid: int) -> None:
    last_update = list(read(context.state, "LastUpdate", netuid))
    last_update[uid] = context.block
    context.state.put(PALLET, "LastUpdate", last_update, netuid)


def check_vote(context: Context, netuid: int, uid: int, dests: list[int], weights: list[int]) -> None:
    state = context.state
    is_self_vote = dests == [uid]
    is_owner = context.who == read(state, "SubnetOwnerHotkey", netuid)
    if not (is_self_vote or is_owner or read(state, "ValidatorPermit", netuid)[uid]):
        raise subtensor_error("NeuronNoValidatorPermit")
    if len(set(dests)) < len(dests):
        raise subtensor_error("DuplicateUids")
    num_uids = read(state, "SubnetworkN", netuid)
    if any(dest >= num_uids for dest in dests):
        raise subtensor_error("UidVecContainInvalidOne")
    if not is_self_vote and len(dests) < min(read(state, "MinAllowedWeights", netuid), num_uids):
        raise subtensor_error("WeightVecLengthIsLow")
    limit = read(state, "MaxWeightsLimit", netuid)
    if not is_self_vote and limit < U16_MAX and max(weights, default=0) * U16_MAX > limit * sum(weights):
        raise subtensor_error("MaxWeightExceeded")


def upscaled(weights: list[int]) -> list[int]:
    """Scaled so that the largest is U16_MAX."""
    largest = max(weights, default=0)
    return [weight * U16_MAX // largest for weight in weights] if largest else weights


def store_weights(context: Context, netuid: int, uid: int, dests: list[int], weights: list[int]) -> None:
    context.state.put(PALLET, "Weights", list(zip(dests, upscaled(weights), strict=True)), netuid, uid)


def set_mechanism_weights(
    context: Context, netuid: int, mecid: int, dests: list[int], weights: list[int], version_key: int
) -> None:
    state = context.state
    if read(state, "CommitRevealWeightsEnabled", netuid):
        raise subtensor_error("CommitRevealEnabled")
    if netuid == ROOT_NETUID:
        raise subtensor_error("CanNotSetRootNetworkWeights")
    if len(dests) != len(weights):
        raise subtensor_error("WeightVecNotEqualSize")
    check_mechanism(context, netuid, mecid)
    if len(dests) > read(state, "SubnetworkN", netuid):
        raise subtensor_error("UidsLengthExceedUidsInSubNet")
    uid = voter(context, netuid)
    check_stake(context, netuid)
    if version_key < read(state, "WeightsVersionKey", netuid):
        raise subtensor_error("IncorrectWeightVersionKey")
    if is_too_early(context, netuid, uid):
        raise subtensor_error("SettingWeightsTooFast")
    check_vote(context, netuid, uid, list(dests), list(weights))
    store_weights(context, netuid, uid, list(dests), list(weights))
    touch(context, netuid, uid)
    context.emit(PALLET, "WeightsSet", [mecid * MAX_MECHANISMS_STRIDE + netuid, uid])


def commit_timelocked_mechanism_weights(
    context: Context, netuid: int, mecid: int, commit: Any, reveal_round: int, commit_reveal_version: int
) -> None:
    """The sealed weights wait under this epoch's index; `reveals` opens them. Stake and permit count only then."""
    state = context.state
    check_mechanism(context, netuid, mecid)
    if not read(state, "CommitRevealWeightsEnabled", netuid):
        raise subtensor_error("CommitRevealDisabled")
    if commit_reveal_version != read(state, "CommitRevealWeightsVersion"):
        raise subtensor_error("IncorrectCommitRevealVersion")
    uid = voter(context, netuid)
    if is_too_early(context, netuid, uid):
        raise subtensor_error("CommittingWeightsTooFast")
    epoch = read(state, "SubnetEpochIndex", netuid)
    waiting = sealed.commits(state, netuid, epoch)
    if sum(commit.hotkey == context.who for commit in waiting) >= MAX_UNREVEALED:
        raise subtensor_error("TooManyUnrevealedCommits")
    arguments = context.encoded_arguments
    arguments.take(NETUID_BYTES + MECID_BYTES)
    secret = arguments.octets()
    sealed.append(state, netuid, epoch, sealed.Commit(context.who, context.block, secret, reveal_round))
    touch(context, netuid, uid)
    digest = "0x" + blake2_256(secret).hex()
    context.emit(PALLET, "TimelockedWeightsCommitted", [context.who, netuid, digest, reveal_round])


CALLS: dict[str, Handler] = {
    "burned_register": burned_register,
    "register_limit": register_limit,
    "serve_axon": serve_axon,
    "set_mechanism_weights": set_mechanism_weights,
    "commit_timelocked_mechanism_weights": commit_timelocked_mechanism_weights,
}

# Signed by a hotkey, paid for by the coldkey that owns it.
PAID_BY_OWNER = frozenset({"serve_axon", "set_mechanism_weights", "commit_timelocked_mechanism_weights"})
