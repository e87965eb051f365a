"""The unmodified SDK on the development chain: what a subnet's owner, validator and miner do with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from types import SimpleNamespace
from typing import Any

import bittensor as bt
import pytest
from bittensor.keyfiles import Keypair

from subnet.localnet.devchain.extrinsics import decode
from tests.contract.chains import Running, running_chain

TEMPO_BLOCKS = 20
STAKE_RAO = 10**12


def wallet(name: str) -> Any:
    cold, hot = Keypair.create_from_uri(f"//{name}"), Keypair.create_from_uri(f"//{name}//hot")
    return SimpleNamespace(coldkey=cold, coldkeypub=Keypair(ss58_address=cold.ss58_address), hotkey=hot)


ALICE, BOB, EVE = (wallet(name) for name in ("Alice", "Bob", "Eve"))
OWNER = (ALICE.coldkey.ss58_address, ALICE.hotkey.ss58_address)
BOB_HOTKEY = BOB.hotkey.ss58_address


@pytest.fixture
def running() -> Iterator[Running]:
    with running_chain(0.1, TEMPO_BLOCKS) as chain:
        chain.call(lambda: chain.chain.add_subnet(*OWNER, WeightsSetRateLimit=10))
        chain.call(lambda: chain.chain.set_stake(1, OWNER[1], STAKE_RAO))
        yield chain


@pytest.fixture
def client(running: Running) -> Iterator[Any]:
    subtensor = bt.Subtensor(running.url)
    yield subtensor
    subtensor.close()


def register(client: Any) -> Any:
    return client.submit_call(bt.calls.SubtensorModule.burned_register(netuid=1, hotkey=BOB_HOTKEY), BOB)


def test_reads(client: Any) -> None:
    assert client.block_time() == 0.1
    assert client.block >= 0
    assert client.time
    assert client.subnets.subnet_hyperparameters(netuid=1)["tempo"] == TEMPO_BLOCKS
    assert client.hyperparameters.weights_rate_limit(netuid=1) == 10
    assert client.epochs.epoch_status(netuid=1)["tempo"] == TEMPO_BLOCKS
    assert client.balances.get(BOB.coldkey.ss58_address).rao == 10**15
    assert client.subnets.metagraph(77) is None


def test_blocks_and_subscriptions(client: Any) -> None:
    first = client.block
    client.wait_for_block(first + 2, timeout=10)
    assert client.block >= first + 2
    assert client.finalized_block >= first + 2
    assert client.at(first).block == first
    with closing(client.blocks()) as blocks:
        heads = [head.number if hasattr(head, "number") else head for head in islice(blocks, 3)]
    assert heads == list(range(heads[0], heads[0] + 3))


def test_registering_serving_and_committing(client: Any) -> None:
    result = register(client)
    assert result.success, result
    assert result.fee.rao == 124_414
    result = register(client)
    assert not result.success
    assert (result.error.name, result.error.code) == ("HotKeyAlreadyRegisteredInSubNet", "already_exists")
    assert client.execute(bt.ServeAxon(netuid=1, ip="127.0.0.1", port=8091), BOB).success
    info = {"fields": [[{"Raw11": b"hello world"}]]}
    committed = client.submit_call(bt.calls.Commitments.set_commitment(netuid=1, info=info), BOB, signer="hotkey")
    assert committed.success
    metagraph = client.subnets.metagraph(1)
    assert metagraph.hotkeys == [OWNER[1], BOB_HOTKEY]
    assert metagraph.symbol == "α"
    assert metagraph.neurons[0].validator_permit
    assert metagraph.neurons[1].axon == "127.0.0.1:8091"
    assert metagraph.neurons[1].commitment.value == "hello world"
    assert client.subnets.metagraph(1, commitments=False).num_uids == 2
    for lite in (True, False):
        assert [neuron.uid for neuron in client.neurons.all(1, lite=lite)] == [0, 1]
    assert client.neurons.uid(hotkey_ss58=BOB_HOTKEY, netuid=1) == 1


def test_shielded_registration(running: Running, client: Any) -> None:
    """The SDK sends this intent only through the MEV shield, and finds what was inside by its hash."""
    result = client.execute(bt.BurnedRegister(netuid=1), BOB)
    assert result.success, result
    assert result.data["shielded"]
    assert client.neurons.uid(hotkey_ss58=BOB_HOTKEY, netuid=1) == 1
    assert running.chain.nonce(BOB.coldkey.ss58_address) == 2
    another = bt.Subtensor(
        running.url
    )  # the first one counts on from the carrier's nonce and would be refused as stale
    again = another.execute(bt.BurnedRegister(netuid=1), BOB)
    another.close()
    assert (again.success, again.error.name) == (False, "HotKeyAlreadyRegisteredInSubNet")


def test_transfers(client: Any) -> None:
    call = bt.calls.Balances.transfer_keep_alive(dest=EVE.coldkey.ss58_address, value=12_345)
    before = client.balances.get(EVE.coldkey.ss58_address).rao
    assert client.submit_call(call, BOB).success
    assert client.balances.get(EVE.coldkey.ss58_address).rao == before + 12_345


def test_staking(client: Any) -> None:
    amount = bt.Balance.from_tao(5)
    added = client.execute(bt.AddStake(hotkey_ss58=OWNER[1], netuid=1, amount_tao=amount), BOB)
    assert added.success, added
    assert {event["event_id"] for event in added.events} >= {"StakeAdded", "ExtrinsicSuccess"}
    named = {"coldkey_ss58": BOB.coldkey.ss58_address, "hotkey_ss58": OWNER[1], "netuid": 1}
    assert client.read("stake", **named).rao == amount.rao
    assert client.subnets.metagraph(1, commitments=False).neurons[0].alpha_stake.rao >= STAKE_RAO + amount.rao
    removed = client.execute(bt.RemoveStake(hotkey_ss58=OWNER[1], netuid=1, amount_alpha="all"), BOB, retries=2)
    assert removed.success, removed
    assert client.read("stake", **named).rao == 0
    nobodys = client.execute(bt.AddStake(hotkey_ss58=BOB_HOTKEY, netuid=1, amount_tao=amount), BOB, retries=2)
    assert nobodys.error.name == "HotKeyAccountNotExists"


def test_weights_and_pay(client: Any) -> None:
    assert register(client).success
    plan = client.plan(bt.SetWeights(netuid=1, weights={1: 1.0}), ALICE)
    assert plan.fee.rao == 124_414
    assert not plan.violations
    assert client.execute(bt.SetWeights(netuid=1, weights={1: 0.75, 0: 0.25}), ALICE, retries=2).success
    assert client.weights.weights(netuid=1) == {0: {0: pytest.approx(0.25, abs=1e-4), 1: pytest.approx(0.75, abs=1e-4)}}
    with pytest.raises(bt.ChainError):
        client.execute(bt.SetWeights(netuid=1, weights={1: 1}), ALICE)  # the rate limit
    with pytest.raises(bt.ChainError):
        client.execute(bt.SetWeights(netuid=1, weights={1: 1}), EVE)  # no neuron
    client.wait_for_block(client.block + 10, timeout=10)
    refused = client.execute(bt.SetWeights(netuid=1, weights={0: 1}), BOB)
    assert (refused.error.name, refused.error.code) == ("NeuronNoValidatorPermit", "not_authorized")
    assert client.wait_for_epoch(1, timeout=20)
    paid = client.subnets.metagraph(1).neurons[1]
    assert paid.incentive == pytest.approx(0.75, abs=1e-3)
    assert paid.emission.rao > 0


def test_nonces_count_on_without_waiting(running: Running, client: Any) -> None:
    """Three transactions at once: each takes the next nonce, all are carried out."""
    call = bt.calls.Balances.transfer_keep_alive(dest=EVE.coldkey.ss58_address, value=1000)
    before = running.chain.nonce(BOB.coldkey.ss58_address)
    for _ in range(3):
        client.submit_call(call, BOB, wait_for_inclusion=False, wait_for_finalization=False)
    client.wait_for_block(client.block + 2, timeout=10)
    assert running.chain.nonce(BOB.coldkey.ss58_address) == before + 3


def test_transactions_are_mortal(running: Running, client: Any) -> None:
    call = bt.calls.Balances.transfer_keep_alive(dest=EVE.coldkey.ss58_address, value=1000)
    assert client.submit_call(call, BOB, period=16).success
    chain = running.chain
    signed = running.call(lambda: [raw for block in chain.blocks.values() for raw in block.extrinsics[1:]])
    (era,) = [decode(chain.runtime, raw).era for raw in signed]
    assert era is not None
    assert era[0] == 16


def test_sudo_and_sealed_weights(client: Any) -> None:
    inner = client.compose(bt.calls.AdminUtils.sudo_set_commit_reveal_weights_enabled(netuid=1, enabled=True))
    assert client.submit_call(bt.calls.Sudo.sudo(call=inner), BOB).error.name == "RequireSudo"
    assert client.submit_call(bt.calls.Sudo.sudo(call=inner), ALICE).success
    assert client.subnets.subnet_hyperparameters(netuid=1)["commit_reveal_weights_enabled"] is True
    result = client.execute(bt.SetWeights(netuid=1, weights={0: 1.0}), ALICE, retries=2)
    assert result.success, result
    assert client.weights.timelocked_weight_commits(netuid=1)


def test_the_owner_sets_a_hyperparameter(client: Any) -> None:
    intent = bt.SetHyperparameter(netuid=1, name="immunity_period", value=77)
    assert client.execute(intent, ALICE).success
    assert client.hyperparameters.immunity_period(netuid=1) == 77
    assert client.execute(intent, BOB).success is False


def test_a_refusing_pool_is_an_error_with_a_code(running: Running, client: Any) -> None:
    running.call(lambda: setattr(running.server.faults, "pool_rejection", "Custom error: 6"))
    result = register(client)
    assert not result.success
    assert result.error.code == "rate_limited"
    running.call(lambda: setattr(running.server.faults, "pool_rejection", None))
    assert register(client).success
