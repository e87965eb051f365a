"""Stake that people move: what add_stake and remove_stake check, in which order, and where the money is afterwards."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from subnet.localnet.devchain import subnets
from subnet.localnet.devchain.chain import DevChain
from subnet.localnet.devchain.pallet_staking import MIN_STAKE_RAO, PRICE_RAO, position_rao
from subnet.localnet.devchain.runtime_api import METHODS, answer
from subnet.localnet.devchain.subnets import POOL_START_RAO
from subnet.localnet.devchain.tables_apis import APIS
from tests.unit.devchain_actors import (
    BOB,
    DAVE,
    MINER,
    OTHER,
    PALLET,
    STAKE_RAO,
    VALIDATOR,
    Key,
    assert_nothing_lost,
    free,
    new_chain,
    outcome,
    read,
)

TAO = 10**9
POOR = Key("//poor")


def add(hotkey: Key, rao: int, netuid: int = 1) -> tuple[str, str, dict[str, Any]]:
    return PALLET, "add_stake", {"hotkey": hotkey.address, "netuid": netuid, "amount_staked": rao}


def remove(hotkey: Key, rao: int, netuid: int = 1) -> tuple[str, str, dict[str, Any]]:
    return PALLET, "remove_stake", {"hotkey": hotkey.address, "netuid": netuid, "amount_unstaked": rao}


def limited(
    call: tuple[str, str, dict[str, Any]], price: int, allow_partial: bool = False
) -> tuple[str, str, dict[str, Any]]:
    return PALLET, f"{call[1]}_limit", {**call[2], "limit_price": price, "allow_partial": allow_partial}


def assert_alpha_is_counted(chain: DevChain) -> None:
    assert_nothing_lost(chain)
    assert read(chain, "SubnetTAO", 1) == chain.state.get("System", "Account", subnets.pool_account(1))["data"]["free"]


@pytest.mark.parametrize(
    ("key", "call", "expected"),
    [
        (POOR, add(OTHER, 1, netuid=9), "SubnetNotExists"),
        (POOR, add(OTHER, MIN_STAKE_RAO - 1), "AmountTooLow"),
        (POOR, limited(add(OTHER, 2 * TAO), PRICE_RAO - 1), "SlippageTooHigh"),
        (POOR, add(OTHER, 2 * TAO), "NotEnoughBalanceToStake"),
        (BOB, add(OTHER, 2 * TAO), "HotKeyAccountNotExists"),
        (BOB, limited(add(VALIDATOR, 2 * TAO), PRICE_RAO - 1, allow_partial=True), "AmountTooLow"),
        (BOB, limited(add(VALIDATOR, 2 * TAO), PRICE_RAO), "ok"),
        (BOB, add(VALIDATOR, MIN_STAKE_RAO), "ok"),
        (DAVE, add(VALIDATOR, 2 * TAO), "ok"),
        (BOB, remove(VALIDATOR, 1, netuid=9), "SubtokenDisabled"),
        (BOB, limited(remove(VALIDATOR, 1, netuid=9), 0), "SubnetNotExists"),
        (BOB, remove(VALIDATOR, 0), "AmountTooLow"),
        (DAVE, remove(VALIDATOR, TAO), "AmountTooLow"),
        (DAVE, limited(remove(VALIDATOR, TAO), 0), "NotEnoughStakeToWithdraw"),
        (BOB, remove(VALIDATOR, MIN_STAKE_RAO - 1), "AmountTooLow"),
        (BOB, limited(remove(VALIDATOR, TAO), PRICE_RAO + 1), "SlippageTooHigh"),
        (BOB, limited(remove(VALIDATOR, TAO), PRICE_RAO), "ok"),
        (BOB, remove(VALIDATOR, 10**18), "ok"),
    ],
)
def test_staking_is_checked_in_the_order_of_the_real_chain(
    key: Key, call: tuple[str, str, dict[str, Any]], expected: str
) -> None:
    chain = new_chain()
    chain.endow(POOR.address, TAO)
    assert outcome(chain, key, call) == expected
    assert_alpha_is_counted(chain)


def test_stake_goes_there_and_back_without_a_loss() -> None:
    chain = new_chain()
    before, issuance = free(chain, DAVE), chain.state.get("Balances", "TotalIssuance")
    assert outcome(chain, DAVE, add(VALIDATOR, 5 * TAO)) == "ok"
    assert free(chain, DAVE) == before - 5 * TAO - chain.config.fee_rao
    assert subnets.stake_rao(chain.state, 1, VALIDATOR.address) == STAKE_RAO + 5 * TAO
    assert position_rao(chain.state, 1, VALIDATOR.address, DAVE.address) == 5 * TAO
    assert position_rao(chain.state, 1, VALIDATOR.address, BOB.address) == STAKE_RAO
    assert outcome(chain, DAVE, remove(VALIDATOR, 10**18)) == "ok"
    assert free(chain, DAVE) == before - 2 * chain.config.fee_rao
    assert position_rao(chain.state, 1, VALIDATOR.address, DAVE.address) == 0
    assert subnets.stake_rao(chain.state, 1, VALIDATOR.address) == STAKE_RAO
    assert chain.state.get("Balances", "TotalIssuance") == issuance - 2 * chain.config.fee_rao
    assert_alpha_is_counted(chain)


def test_no_tao_comes_out_that_never_went_in() -> None:
    chain = new_chain()
    chain.set_stake(1, VALIDATOR.address, 3 * POOL_START_RAO)
    assert outcome(chain, BOB, remove(VALIDATOR, POOL_START_RAO + 1)) == "InsufficientLiquidity"
    assert outcome(chain, BOB, remove(VALIDATOR, POOL_START_RAO)) == "ok"
    assert read(chain, "SubnetTAO", 1) == 0
    assert_alpha_is_counted(chain)


def test_an_account_keeps_the_existential_deposit() -> None:
    chain = new_chain()
    chain.endow(POOR.address, TAO)
    left = TAO - chain.config.fee_rao
    assert outcome(chain, POOR, add(VALIDATOR, left - 499)) == "NotEnoughBalanceToStake"
    assert outcome(chain, POOR, add(VALIDATOR, left - chain.config.fee_rao - 500)) == "ok"


def test_permits_and_votes_follow_at_the_epoch() -> None:
    chain = new_chain(MaxAllowedValidators=1)
    assert read(chain, "ValidatorPermit", 1) == [False, True, False]
    assert outcome(chain, DAVE, add(MINER, 2 * STAKE_RAO)) == "ok"
    assert read(chain, "ValidatorPermit", 1) == [False, True, False]
    while read(chain, "SubnetEpochIndex", 1) == 0:
        chain.produce()
    assert read(chain, "ValidatorPermit", 1) == [False, False, True]


@given(st.lists(st.tuples(st.sampled_from([BOB, DAVE]), st.sampled_from(["add", "remove"]), st.integers(0, 10**13))))
def test_positions_and_totals_agree_whatever_is_moved(moves: list[tuple[Key, str, int]]) -> None:
    chain = new_chain()
    for key, name, rao in moves[:6]:
        outcome(chain, key, add(VALIDATOR, rao) if name == "add" else remove(VALIDATOR, rao))
    total = sum(position_rao(chain.state, 1, VALIDATOR.address, who.address) for who in (BOB, DAVE))
    assert total == subnets.stake_rao(chain.state, 1, VALIDATOR.address)
    assert_alpha_is_counted(chain)


def test_clients_read_positions() -> None:
    chain = new_chain()
    assert outcome(chain, DAVE, add(VALIDATOR, 5 * TAO)) == "ok"
    infos = METHODS["StakeInfoRuntimeApi", "get_stake_info_for_coldkey"](chain.state, DAVE.address)
    assert [(info["hotkey"], info["stake"]) for info in infos] == [(VALIDATOR.address, 5 * TAO)]
    many = METHODS["StakeInfoRuntimeApi", "get_stake_info_for_coldkeys"](chain.state, [BOB.address, DAVE.address])
    assert [who for who, _ in many] == [BOB.address, DAVE.address]


# Answered by rpc_methods, because they are about the metadata or the fee.
OF_THE_SERVER = {"Metadata", "TransactionPaymentApi"}


def test_every_declared_api_has_an_answer_that_its_own_type_can_carry() -> None:
    chain = new_chain()
    declared = chain.runtime.runtime_api_map()
    samples = {"netuid": 1, "netuids": None, "tao": 5, "alpha": 6, "coldkey_accounts": [BOB.address]}
    samples |= dict.fromkeys(("account", "coldkey", "coldkey_account"), BOB.address)
    samples["hotkey_account"] = VALIDATOR.address
    found = set()
    for api in set(APIS) - OF_THE_SERVER:
        for method, described in declared[api].items():
            data = b"".join(bytes(chain.runtime.encode(kind, samples[name])) for name, kind in described["inputs"])
            chain.runtime.decode(described["output"], answer(chain.state, api, method, data))
            found.add((api, method))
    assert found == set(METHODS)
