"""Storage: transactions undo everything, earlier blocks stay readable, history stays bounded."""

from __future__ import annotations

import bittensor_core as core
import pytest
from hypothesis import given
from hypothesis import strategies as st

from subnet.localnet.devchain.metadata import build
from subnet.localnet.devchain.state import PREFIX_BYTES, READS_WITHOUT_INDEX, Codec, State

CODEC = Codec(core.Runtime(build(), 470, 1, 42))
HISTORY = 4


def fresh() -> State:
    return State(CODEC, HISTORY)


def key(name: int) -> bytes:
    return bytes([name % 2]) * PREFIX_BYTES + bytes([name])


def content(state: State) -> dict[bytes, bytes]:
    return {name: value for item in state.items.values() for name, value in item.items()}


def test_typed_values_and_defaults() -> None:
    state = fresh()
    assert state.get("SubtensorModule", "Tempo", 1) == 10
    assert state.get("SubtensorModule", "Uids", 1, core.Keypair.create_from_uri("//A").ss58_address) is None
    state.put("SubtensorModule", "Tempo", 30, 1)
    assert state.get("SubtensorModule", "Tempo", 1) == 30
    state.remove("SubtensorModule", "Tempo", 1)
    assert state.get("SubtensorModule", "Tempo", 1) == 10


WRITES = st.lists(st.tuples(st.integers(0, 5), st.none() | st.binary(max_size=2)), max_size=8)


@given(st.lists(WRITES, min_size=1, max_size=8))
def test_every_kept_block_reads_as_it_was(blocks: list[list[tuple[int, bytes | None]]]) -> None:
    state = fresh()
    copies = {}
    for number, writes in enumerate(blocks, 1):
        state.next_block(number)
        for name, value in writes:
            state.write(key(name), value)
        copies[number] = content(state)
    for number, copy in copies.items():
        view = state.at(number)
        if number <= len(blocks) - HISTORY:
            assert view is None
            continue
        assert view is not None
        for _ in range(2 + READS_WITHOUT_INDEX // 6):  # without the index of later blocks, and with it
            assert {name: view.raw(key(name)) for name in range(6)} == {name: copy.get(key(name)) for name in range(6)}
        for prefix in (b"", b"\0", key(0)[:PREFIX_BYTES], key(1)):
            assert view.raw_keys(prefix) == sorted(name for name in copy if name.startswith(prefix))
    assert len(state.overwritten) <= HISTORY


@given(WRITES, WRITES, WRITES)
def test_a_failed_transaction_leaves_no_trace(
    before: list[tuple[int, bytes | None]],
    outer: list[tuple[int, bytes | None]],
    inner: list[tuple[int, bytes | None]],
) -> None:
    state = fresh()
    state.next_block(1)
    for name, value in before:
        state.write(key(name), value)
    copy = content(state)
    state.next_block(2)

    def nested() -> None:
        with state.transaction():
            for name, value in outer:
                state.write(key(name), value)
            with state.transaction():
                for name, value in inner:
                    state.write(key(name), value)
            raise RuntimeError("outer")

    with pytest.raises(RuntimeError, match="outer"):
        nested()
    assert content(state) == copy
    assert state.pending == []
    with state.transaction():
        for name, value in inner:
            state.write(key(name), value)
    past = state.at(1)
    assert past is not None
    assert {name: past.raw(name) for name in map(key, range(6))} == {
        name: copy.get(name) for name in map(key, range(6))
    }


@given(st.lists(WRITES, min_size=1, max_size=8), WRITES)
def test_a_dropped_block_leaves_the_state_of_the_one_before(
    blocks: list[list[tuple[int, bytes | None]]], amended: list[tuple[int, bytes | None]]
) -> None:
    state, copies = fresh(), []
    for number, writes in enumerate(blocks, 1):
        copies.append(content(state))
        state.next_block(number)
        for name, value in writes + amended:
            state.write(key(name), value)
    for copy in copies[:-HISTORY:-1]:
        state.drop_block()
        assert content(state) == copy
    assert state.number == len(blocks) - min(len(blocks), HISTORY - 1)
    state.next_block(state.number + 1)


@given(st.lists(WRITES, min_size=1, max_size=8))
def test_a_restored_state_reads_the_same_at_every_block(blocks: list[list[tuple[int, bytes | None]]]) -> None:
    state, again = fresh(), fresh()
    for number, writes in enumerate(blocks, 1):
        state.next_block(number)
        for name, value in writes:
            state.write(key(name), value)
    again.restore(content(state), state.number, list(state.overwritten))
    for number in range(len(blocks) + 1):
        one, other = state.at(number), again.at(number)
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert {name: one.raw(name) for name in one.raw_keys(b"")} == {
                name: other.raw(name) for name in other.raw_keys(b"")
            }


def test_genesis_cannot_be_dropped() -> None:
    with pytest.raises(ValueError, match="block 0"):
        fresh().drop_block()


def test_blocks_follow_each_other() -> None:
    with pytest.raises(ValueError, match="follow"):
        fresh().next_block(2)
