"""Blocks stepped by hand: transactions and their price, bounded history, requests and their errors, speed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from subnet.localnet.devchain import runtime_api
from subnet.localnet.devchain.chain import DevChain, DevChainConfig
from subnet.localnet.devchain.extrinsics import BAD_PROOF, STALE, InvalidTransaction
from subnet.localnet.devchain.rpc_methods import Methods, RpcError
from subnet.localnet.devchain.scale import octets
from tests.unit.devchain_actors import (
    BOB,
    DAVE,
    MINER,
    OTHER,
    PALLET,
    STAKE_RAO,
    Key,
    assert_nothing_lost,
    axon,
    free,
    new_chain,
    outcome,
    read,
    transfer,
)

# Transactions


def test_transfer_moves_rao_and_burns_the_fee() -> None:
    chain = new_chain()
    before = free(chain, BOB), free(chain, DAVE)
    assert outcome(chain, BOB, transfer(DAVE, 700)) == "ok"
    assert (free(chain, BOB), free(chain, DAVE)) == (before[0] - 700 - chain.config.fee_rao, before[1] + 700)
    assert_nothing_lost(chain)


def test_a_failed_call_costs_its_fee_and_nothing_else() -> None:
    chain = new_chain()
    before = free(chain, BOB)
    assert outcome(chain, BOB, transfer(DAVE, 10**17)) == "{'Token': 'FundsUnavailable'}"
    assert free(chain, BOB) == before - chain.config.fee_rao
    assert chain.nonce(BOB.address) == 1
    assert_nothing_lost(chain)


def test_a_stranger_without_money_is_refused_and_a_hotkeys_coldkey_pays() -> None:
    chain = new_chain()
    with pytest.raises(InvalidTransaction, match="pay some fees"):
        chain.submit(OTHER.signed(chain, axon(1, 1)))
    before = free(chain, DAVE)
    assert outcome(chain, MINER, axon(0x7F000001, 80)) == "ok"
    assert free(chain, DAVE) == before - chain.config.fee_rao


def test_nonces_wait_for_their_turn_and_are_used_once() -> None:
    chain = new_chain()
    first, second = (BOB.signed(chain, transfer(DAVE, 1000), nonce) for nonce in (0, 1))
    chain.submit(second)
    assert len(chain.produce().extrinsics) == 1
    chain.submit(first)
    with pytest.raises(InvalidTransaction) as imported:
        chain.submit(first)
    assert imported.value.code == 1013
    assert chain.next_nonce(BOB.address) == 2
    assert chain.produce().extrinsics[1:] == (first, second)
    with pytest.raises(InvalidTransaction, match=STALE):
        chain.submit(first)


def test_signatures_cover_the_call_and_the_chain() -> None:
    chain = new_chain()
    good = BOB.signed(chain, transfer(DAVE, 1000))
    forged = good[:-1] + bytes([good[-1] ^ 1])
    with pytest.raises(InvalidTransaction, match=BAD_PROOF):
        chain.submit(forged)
    elsewhere = DevChain(DevChainConfig(block_time_s=1.0))
    with pytest.raises(InvalidTransaction, match=BAD_PROOF):
        elsewhere.submit(good)


@given(st.binary(max_size=200), st.integers(0, 200), st.integers(0, 255))
def test_garbage_is_refused_and_never_stops_the_chain(tail: bytes, at: int, byte: int) -> None:
    good = BOB.signed(GARBAGE_CHAIN, transfer(DAVE, 1000), 0)
    spoilt = bytearray(good)
    spoilt[at % len(good)] ^= byte or 1
    for raw in (tail, octets(tail), octets(good[2:10] + tail), bytes(spoilt), good[: at % len(good)]):
        with pytest.raises(InvalidTransaction):
            GARBAGE_CHAIN.submit(raw)
    assert len(GARBAGE_CHAIN.produce().extrinsics) == 1


GARBAGE_CHAIN = new_chain()


def test_a_mortal_transaction_expires() -> None:
    chain = new_chain()
    for _ in range(9):
        chain.produce()
    told: list[Any] = []
    waiting = BOB.signed_in_era(chain, transfer(DAVE, 1000), {"period": 8, "phase": 1}, 9, nonce=1)
    chain.submit(waiting, told.append)  # waits for nonce 0, which never comes
    for _ in range(8):
        chain.produce()
    assert told == ["invalid"]
    assert chain.pool.waiting == {}
    with pytest.raises(InvalidTransaction, match=BAD_PROOF):
        chain.submit(waiting)


def test_a_watcher_hears_of_inclusion() -> None:
    chain = new_chain()
    told: list[Any] = []
    chain.submit(BOB.signed(chain, transfer(DAVE, 1000)), told.append)
    block = chain.produce()
    assert told == [{"inBlock": block.hash}, {"finalized": block.hash}]


# Blocks and requests


def test_history_is_bounded_and_earlier_blocks_stay_readable() -> None:
    chain = new_chain(Tempo=7)
    hashes = [chain.produce().hash for _ in range(200)]
    history = chain.config.history_blocks
    assert len(chain.blocks) <= history + 1
    assert len(chain.numbers) == len(chain.blocks)
    assert len(chain.state.overwritten) == history
    assert chain.view_at(hashes[0]) is None
    view = chain.view_at(hashes[-20])
    assert view is not None
    assert view.get("System", "Number") == 181
    assert chain.hash_at(0) is not None


def test_block_hashes_are_reproducible() -> None:
    assert [new_chain().produce().hash for _ in range(2)] == [new_chain().produce().hash] * 2


class NoSession:
    """A connection that subscribes to nothing."""

    def subscribe(self, topic: str) -> str:
        return topic

    def unsubscribe(self, subscription: str) -> bool:
        return True

    def notifier(self, subscription: str, method: str) -> Callable[[Any], None]:
        return lambda result: None

    def later(self, action: Callable[[], None]) -> None:
        action()


def test_requests_fail_with_substrates_codes() -> None:
    chain = new_chain()
    methods = Methods(chain)
    chain.faults.pool_rejection = "Custom error: 6"
    raw = "0x" + BOB.signed(chain, transfer(DAVE, 1)).hex()
    for method, params, code in (
        ("no_such", [], -32601),
        ("state_getStorage", ["xyz"], -32602),
        ("state_getStorage", [], -32602),
        ("state_getStorage", ["0x00", "0x" + "11" * 32], 4003),
        ("author_submitExtrinsic", [raw], 1010),
        ("author_submitAndWatchExtrinsic", [raw], 1010),
        ("devchain_fault", ["typo", True], -32602),
    ):
        with pytest.raises(RpcError) as refused:
            methods.call(method, params, NoSession())
        assert refused.value.code == code, method
    assert methods.call("devchain_fault", ["pool_rejection", None], NoSession()) == "Custom error: 6"
    assert methods.call("author_submitExtrinsic", [raw], NoSession()).startswith("0x")
    assert methods.call("devchain_produce", [2], NoSession()) == chain.head.hash
    assert free(chain, DAVE) > 10**15


def test_a_full_subnet_is_read_and_judged_quickly() -> None:
    """Generous bounds for a shared machine; the chain has a quarter of a second per block."""
    chain = new_chain(MaxAllowedUids=256, Tempo=1000)
    for number in range(253):
        hotkey = Key(f"//hot/{number}").address
        chain.register(1, BOB.address, hotkey)
        if number < 63:
            chain.set_stake(1, hotkey, STAKE_RAO + number)
    chain.produce()
    for uid in range(1, 64):
        chain.state.put(PALLET, "Weights", [(dest, 1 + dest * uid % 97) for dest in range(64, 256)], 1, uid)
    chain.state.put(PALLET, "LastUpdate", [1] * 256, 1)
    started = time.perf_counter()
    assert runtime_api.answer(chain.state, "SubnetInfoRuntimeApi", "get_metagraph", b"\1\0")
    read_s = time.perf_counter() - started
    chain.state.put(PALLET, "Tempo", 1, 1)
    started = time.perf_counter()
    chain.produce()
    epoch_s = time.perf_counter() - started
    assert sum(read(chain, "Incentive", 1)) == pytest.approx(65535, abs=200)
    assert read_s < 0.5, read_s
    assert epoch_s < 1.0, epoch_s
    print(f"metagraph {read_s * 1000:.0f} ms, epoch {epoch_s * 1000:.0f} ms")
