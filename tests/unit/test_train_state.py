"""States of a stage: their roots, their file, and what happens to a stranger's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from subnet.codec.tensors import pack
from subnet.errors import JournalCorrupt, Malformed
from subnet.hashing import EMPTY_ROOT
from subnet.train.checkpoint import ROOT, SnapshotWriter, decode_state, encode_state, load_state, save_state
from subnet.train.optim import Moments
from subnet.train.state import HEADS, PENDING, STASH, PendingHead, PendingInput, StageState
from subnet.types import Hotkey, MicrobatchId

SIZE = 50


def pending(count: int, version: int = 2) -> tuple[PendingInput, ...]:
    found = []
    for number in range(count):
        head = PendingHead(microbatch=MicrobatchId(number), version=version, attempt=1, peer=Hotkey("5" * 48))
        inputs = {"levels": torch.full((2, 4, 3), number % 100, dtype=torch.int8), "scale": torch.full((2, 4, 1), 0.5)}
        found.append(PendingInput(head, torch.full((2, 5), number % 256, dtype=torch.uint8), inputs))
    return tuple(found)


def state(count: int = 0) -> StageState:
    vector = np.linspace(-1, 1, SIZE, dtype=np.float32)
    moments = Moments(torch.full((SIZE,), 0.1), torch.full((SIZE,), 0.2), 7)
    stash = {1: vector * 2, 0: vector * 3} if count else None
    return StageState(vector, moments, 4, 2 if count else 0, pending(count), stash)


@pytest.mark.parametrize("count", [0, 1, 200])
def test_a_state_comes_back_from_its_file_however_much_is_in_flight(count: int, tmp_path: Path) -> None:
    before = state(count)
    save_state(tmp_path / "s.safetensors", before, {"note": "x"})
    after, meta = load_state(tmp_path / "s.safetensors")
    assert after.root == before.root
    assert after.version == before.version
    assert [item.head for item in after.pending] == [item.head for item in before.pending]
    assert meta["note"] == "x"
    # And again: what was read can be written.
    save_state(tmp_path / "s.safetensors", after, {})
    assert load_state(tmp_path / "s.safetensors")[0].root == before.root


def test_first_stages_microbatches_have_tokens_only() -> None:
    before = state(3)
    before = replace(before, pending=tuple(replace(item, inputs=None) for item in before.pending))
    after, _ = decode_state(encode_state(before, {}))
    assert [item.inputs for item in after.pending] == [None] * 3
    assert after.root == before.root


def test_a_state_with_nothing_in_flight_is_its_parameters_and_its_optimiser() -> None:
    assert state().carry_root() == EMPTY_ROOT
    assert replace(state(), version=5).root == state().root
    assert state(1).carry_root() != EMPTY_ROOT


def changed(vector: Tensor) -> Tensor:
    copy = vector.clone()
    copy[SIZE // 2] += 1e-6
    return copy


def test_the_root_covers_everything() -> None:
    whole = state(2)
    first, moments = whole.pending[0], whole.moments
    tampered = [
        replace(whole, params=changed(torch.from_numpy(whole.params)).numpy()),
        replace(whole, moments=replace(moments, first=changed(moments.first))),
        replace(whole, moments=replace(moments, second=changed(moments.second))),
        replace(whole, moments=replace(moments, step=8)),
        replace(whole, version=3),
        replace(whole, pending=whole.pending[:1]),
        replace(whole, pending=whole.pending[::-1]),
        replace(whole, pending=(replace(first, tokens=first.tokens + 1), whole.pending[1])),
        replace(whole, pending=(replace(first, head=first.head.model_copy(update={"attempt": 0})), whole.pending[1])),
        replace(whole, stash={0: whole.params * 3}),
        replace(whole, stash={0: whole.params * 3, 1: whole.params * 3}),
    ]
    roots = [item.root for item in tampered]
    assert whole.root not in roots
    assert len(set(roots)) == len(roots)


def test_a_state_with_other_parameters_keeps_its_optimiser_and_nothing_in_flight() -> None:
    merged = state(2).with_params(np.zeros(SIZE, dtype=np.float32))
    assert (merged.version, merged.pending, merged.stash) == (0, (), None)
    assert merged.optim_root == state().optim_root


def tensors_and_text() -> tuple[dict[str, Tensor], dict[str, str]]:
    tensors, text = state(2).to_tensors()
    return tensors, {**text, ROOT: state(2).root}


HOSTILE_TENSORS: dict[str, Tensor | None] = {
    "params": torch.zeros(SIZE, dtype=torch.bfloat16),
    "first": torch.zeros(SIZE, dtype=torch.float64),
    "second": torch.tensor(1.0),
    f"{STASH}0": torch.zeros(SIZE + 1),
    f"{STASH}x": torch.zeros(SIZE),
    f"{PENDING}tokens": None,
    f"{PENDING}levels": torch.zeros((2, 2, 4, 3), dtype=torch.float64),
    f"{PENDING}scale": torch.zeros((3, 2, 4, 1)),
    f"{PENDING}more": torch.tensor(1.0),
    HEADS: None,
}


@pytest.mark.parametrize("name", HOSTILE_TENSORS)
def test_a_strangers_tensors_are_refused(name: str) -> None:
    tensors, text = tensors_and_text()
    value = HOSTILE_TENSORS[name]
    if value is None:
        del tensors[name]
    else:
        tensors[name] = value
    with pytest.raises(Malformed):
        decode_state(pack(tensors, text))


@pytest.mark.parametrize("name", ["step", "version", "num_shards"])
@pytest.mark.parametrize("value", [None, "", "x", "-1", "1e3", "9" * 400, "9" * 5000])
def test_a_strangers_numbers_are_refused(name: str, value: str | None) -> None:
    tensors, text = tensors_and_text()
    if value is None:
        del text[name]
    else:
        text[name] = value
    with pytest.raises(Malformed):
        decode_state(pack(tensors, text))


@pytest.mark.parametrize("num_shards", ["0", str(SIZE + 1)])
def test_more_shards_than_parameters_are_refused(num_shards: str) -> None:
    tensors, text = tensors_and_text()
    with pytest.raises(Malformed):
        decode_state(pack(tensors, {**text, "num_shards": num_shards}))


HEAD = {"microbatch": 0, "version": 2, "attempt": 0, "peer": None}


@pytest.mark.parametrize(
    "heads",
    [b"[]", b"{}", b"\xff", b"[" * 5000, json.dumps([HEAD]).encode(), json.dumps([{**HEAD, "more": 1}, HEAD]).encode()],
)
def test_a_strangers_heads_are_refused(heads: bytes) -> None:
    tensors, text = tensors_and_text()
    tensors[HEADS] = torch.frombuffer(bytearray(heads), dtype=torch.uint8)
    with pytest.raises(Malformed):
        decode_state(pack(tensors, text))


@pytest.mark.parametrize("data", [b"", b"\0" * 8, b"\xff" * 64, b"PK\x03\x04" + b"\0" * 60])
def test_what_is_no_state_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        decode_state(data)


def test_a_damaged_or_missing_snapshot_is_corruption(tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    with pytest.raises(JournalCorrupt):
        load_state(path)
    save_state(path, state(1), {})
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(JournalCorrupt):
        load_state(path)


def test_a_half_written_snapshot_does_not_replace_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    save_state(path, state(), {})
    # What a process leaves that dies while it writes the next one.
    path.with_suffix(".part").write_bytes(encode_state(state(3), {})[:100])
    assert load_state(path)[0].root == state().root
    save_state(path, state(3), {})
    assert load_state(path)[0].root == state(3).root
    assert [item.name for item in tmp_path.iterdir()] == ["s.safetensors"]


def test_a_writer_writes_in_turn_and_ends_with_everything_on_disk(tmp_path: Path) -> None:
    writer, states = SnapshotWriter(), [state(), state(2), state(1)]
    roots = [writer.save(tmp_path / f"{place}", item, {"place": f"{place}"}) for place, item in enumerate(states)]
    assert all(root.done() for root in roots[:-1])  # no more than one state waits
    writer.close()
    for place, root in enumerate(roots):
        found, meta = load_state(tmp_path / f"{place}")
        assert (found.root, meta["place"]) == (root.result(), f"{place}")


def test_a_writer_tells_of_what_it_could_not_write(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    writer = SnapshotWriter()
    root = writer.save(tmp_path / "file" / "state", state(), {})
    with pytest.raises(FileExistsError):
        root.result()
    with pytest.raises(FileExistsError):
        writer.save(tmp_path / "next", state(), {})
    writer.close()
    assert not (tmp_path / "next").exists()
