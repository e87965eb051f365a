"""Every item that the development chain declares, held against the metadata of a real runtime (spec 461).

The real blob is not part of the project. LIQUID_SUBTENSOR_METADATA names it (xz); without it the tests are skipped.
Deviations that are known and wanted stand in the table; any other, and any that has gone, fails.
"""

from __future__ import annotations

import inspect
import lzma
import os
import re
from collections.abc import Iterator
from pathlib import Path

import bittensor_core as core
import pytest

from subnet.localnet.devchain import metadata
from subnet.localnet.devchain.calls import HANDLERS
from subnet.localnet.devchain.metadata import build
from subnet.localnet.devchain.tables_pallets import PALLETS
from tests.contract.metadata_reader import Metadata, read_metadata

DEFAULT_PATH = Path(__file__).resolve().parents[3] / "shared" / "data" / "subtensor-spec461-metadata-v15.scale.xz"
REAL_PATH = Path(os.environ.get("LIQUID_SUBTENSOR_METADATA", DEFAULT_PATH))

# Every deviation and its reason.
KNOWN = {
    "System.Account: default": "the real one marks accounts of its newer balance logic with a flag",
    "SubtensorModule.TokenSymbol: default": "a letter there, empty here; every subnet stores one",
    "SubtensorModule.SubnetEpochConsensus: missing": "newer than spec 461; the SDK reads it",
}

Found = Iterator[str]


@pytest.fixture(scope="module")
def real_blob() -> bytes:
    if not REAL_PATH.exists():
        pytest.skip("no real metadata: set LIQUID_SUBTENSOR_METADATA to the xz file")
    return lzma.decompress(REAL_PATH.read_bytes())


class Comparison:
    """Types are compared by their bytes: a struct of one field counts as that field, an enum of ours may be smaller."""

    def __init__(self, own: Metadata, real: Metadata) -> None:
        self.own = own
        self.real = real
        self.seen: set[tuple[int, int]] = set()

    def kinds(self, ours: int, theirs: int, where: str) -> Found:
        if (ours, theirs) in self.seen:
            return
        self.seen.add((ours, theirs))
        own, real = self.own.kinds[ours], self.real.kinds[theirs]
        if own.path and real.path and own.path[-1] != real.path[-1]:
            yield f"{where}: {own.path[-1]} instead of {real.path[-1]}"
        if own.shape != real.shape:
            if real.shape == "struct" and len(real.body) == 1:
                yield from self.kinds(ours, real.body[0][1], where)
            elif not (own.shape == "tuple" and real.shape == "struct" and own.body == real.body == []):
                yield f"{where}: {own.shape} instead of {real.shape}"
        elif own.shape == "struct":
            yield from self.fields(own.body, real.body, where)
        elif own.shape == "enum":
            yield from self.enums(own.body, real.body, where)
        elif own.shape in ("vector", "compact"):
            yield from self.kinds(own.body, real.body, where)
        elif own.shape == "array":
            if own.body[0] != real.body[0]:
                yield f"{where}: length"
            yield from self.kinds(own.body[1], real.body[1], where)
        elif own.shape == "tuple":
            if len(own.body) != len(real.body):
                yield f"{where}: number of elements"
            for one, other in zip(own.body, real.body, strict=False):
                yield from self.kinds(one, other, where)
        elif own.body != real.body:
            yield f"{where}: primitive"

    def fields(self, ours: list[tuple[str | None, int]], theirs: list[tuple[str | None, int]], where: str) -> Found:
        if [name for name, _ in ours] != [name for name, _ in theirs]:
            yield f"{where}: names or order of fields"
            return
        for (name, one), (_, other) in zip(ours, theirs, strict=True):
            yield from self.kinds(one, other, f"{where}.{name}")

    def enums(self, ours: dict[int, list[object]], theirs: dict[int, list[object]], where: str) -> Found:
        for index, (name, fields) in ours.items():
            there = theirs.get(index)
            if there is None or there[0] != name:
                yield f"{where}.{name}: index {index}"
            else:
                yield from self.fields(fields, there[1], f"{where}.{name}")  # type: ignore[arg-type]

    def pallet(self, name: str) -> Found:
        own, real = self.own.pallets[name], self.real.pallets[name]
        if own["index"] != real["index"]:
            yield f"{name}: index"
        for part in ("calls", "events", "errors"):
            if own[part] is not None:
                yield from self.kinds(own[part], real[part], f"{name}.{part}")
        for item, one in own["storage"].items():
            where = f"{name}.{item}"
            other = real["storage"].get(item)
            if other is None:
                yield f"{where}: missing"
                continue
            for part in ("modifier", "hashers", "default"):
                if one[part] != other[part]:
                    yield f"{where}: {part}"
            if one["key"] is not None:
                yield from self.kinds(one["key"], other["key"], f"{where} key")
            yield from self.kinds(one["value"], other["value"], where)
        for constant, (kind, value) in own["constants"].items():
            other_kind, other_value = real["constants"][constant]
            yield from self.kinds(kind, other_kind, f"{name}.{constant}")
            if value != other_value:
                yield f"{name}.{constant}: value"

    def apis(self) -> Found:
        for api, methods in self.own.apis.items():
            for method, (inputs, output) in methods.items():
                real_inputs, real_output = self.real.apis[api][method]
                yield from self.fields(inputs, real_inputs, f"{api}.{method}")
                yield from self.kinds(output, real_output, f"{api}.{method} result")

    def transactions(self) -> Found:
        if self.own.extrinsic[0] != self.real.extrinsic[0]:
            yield "extrinsic version"
        if [name for name, _, _ in self.own.extensions] != [name for name, _, _ in self.real.extensions]:
            yield "names or order of extensions"
        for (name, *ours), (_, *theirs) in zip(self.own.extensions, self.real.extensions, strict=False):
            for one, other in zip(ours, theirs, strict=True):
                yield from self.kinds(one, other, f"extension {name}")
        for one, other in zip(self.own.extrinsic[1:4], self.real.extrinsic[1:4], strict=True):
            yield from self.kinds(one, other, "extrinsic")
        for one, other in zip(self.own.outer, self.real.outer, strict=True):
            yield from self.kinds(one, other, "outer")


def test_every_declared_item_is_the_real_one(real_blob: bytes) -> None:
    comparison = Comparison(read_metadata(build(15, 250)), read_metadata(real_blob))
    found = [line for name in comparison.own.pallets for line in comparison.pallet(name)]
    found += [*comparison.apis(), *comparison.transactions()]
    assert sorted(found) == sorted(KNOWN)


def test_the_two_versions_describe_the_same_chain() -> None:
    """Version 14 fills the gaps between errors, because its main reader finds an error by position; no more."""
    newer, older = read_metadata(build(15, 250)), read_metadata(build(14, 250))
    forth, back = Comparison(newer, older), Comparison(older, newer)
    assert list(newer.pallets) == list(older.pallets)
    assert [line for name in newer.pallets for line in forth.pallet(name)] == []
    found = [line for name in older.pallets for line in back.pallet(name)]
    assert all(re.fullmatch(r"\w+\.errors\.Unused\d+: index \d+", line) for line in found), found
    assert [name for name, _, _ in newer.extensions] == [name for name, _, _ in older.extensions]
    for (name, *ours), (_, *theirs) in zip(newer.extensions, older.extensions, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert list(forth.kinds(one, other, name)) == []
    assert newer.extrinsic[0] == older.extrinsic[0]


# Declared, because every block carries it; refused from anybody else.
NOT_SERVED = {("Timestamp", "set")}


def test_every_declared_call_is_served_with_its_arguments_by_name() -> None:
    """A handler that lacks an argument would stop the chain in the middle of a block."""
    own = read_metadata(build(15, 250))
    declared = set()
    for pallet, described in own.pallets.items():
        calls = own.kinds[described["calls"]].body if described["calls"] is not None else {}
        for name, fields in calls.values():
            declared.add((pallet, name))
            if (pallet, name) not in NOT_SERVED:
                inspect.signature(HANDLERS[pallet][name]).bind(None, **{field: None for field, _ in fields})
    assert declared - {(pallet, name) for pallet, calls in HANDLERS.items() for name in calls} == NOT_SERVED
    assert {(pallet, name) for pallet, calls in HANDLERS.items() for name in calls} <= declared


def test_every_event_and_error_that_is_named_is_declared() -> None:
    """`module_error` and `emit` take names; a wrong one would only show when it happens."""
    folder = Path(metadata.__file__).parent
    source = "".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py")))
    errors = set(re.findall(r'subtensor_error\(\s*"(\w+)"', source))
    declared = {line.split(":")[0] for line in PALLETS["SubtensorModule"].errors.values()}
    assert errors
    assert errors <= declared
    events = set(re.findall(r'emit\(PALLET, "(\w+)"', source)) - {"EncryptedSubmitted"}
    assert events <= {line.split("(")[0] for line in PALLETS["SubtensorModule"].events.values()}


def test_the_comparison_sees_deviations(real_blob: bytes) -> None:
    own, real = read_metadata(build(15, 250)), read_metadata(real_blob)
    own.pallets["Sudo"]["index"] = 99
    own.pallets["SubtensorModule"]["storage"]["Tempo"]["hashers"] = [0]
    own.pallets["SubtensorModule"]["storage"]["Burn"]["value"] = own.pallets["Timestamp"]["calls"]
    own.extensions[0] = ("Nothing", *own.extensions[0][1:])
    comparison = Comparison(own, real)
    found = [*comparison.pallet("Sudo"), *comparison.pallet("SubtensorModule"), *comparison.transactions()]
    for expected in ("Sudo: index", "Tempo: hashers", "Burn: enum instead of", "order of extensions"):
        assert any(expected in line for line in found), (expected, found)


def test_transactions_and_keys_have_the_real_bytes(real_blob: bytes) -> None:
    own, real = (core.Runtime(blob, 461, 1, 42) for blob in (build(15, 250), real_blob))
    who = core.Keypair.create_from_uri("//Alice").ss58_address
    calls = [
        ("SubtensorModule", "burned_register", {"netuid": 3, "hotkey": who}),
        ("Balances", "transfer_keep_alive", {"dest": who, "value": 10**12}),
        ("Commitments", "set_commitment", {"netuid": 3, "info": {"fields": [[{"Raw5": b"hello"}]]}}),
        ("AdminUtils", "sudo_set_tempo", {"netuid": 3, "tempo": 20}),
        ("AdminUtils", "sudo_set_burn_increase_mult", {"netuid": 3, "burn_increase_mult": {"bits": 1 << 65}}),
        ("SubtensorModule", "add_stake", {"hotkey": who, "netuid": 3, "amount_staked": 10**9}),
        ("SubtensorModule", "register_limit", {"netuid": 3, "hotkey": who, "limit_price": 7}),
        ("MevShield", "submit_encrypted", {"ciphertext": [1, 2, 255]}),
    ]
    named = {"netuid": 3, "mecid": 0, "dests": [1, 2], "weights": [7, 65535], "version_key": 9}
    calls.append(("SubtensorModule", "set_mechanism_weights", named))
    for call in calls:
        assert bytes(own.compose_call(*call)) == bytes(real.compose_call(*call)), call
    carried = {"era": {"period": 64, "phase": 7}, "nonce": 5, "tip": 0, "tip_asset_id": None}
    data = bytes(own.compose_call(*calls[0]))
    hashes = {"genesis_hash": b"g" * 32, "era_block_hash": b"b" * 32}
    assert own.signature_payload(data, **carried, **hashes) == real.signature_payload(data, **carried, **hashes)
    for keys in (
        ("SubtensorModule", "Uids", [3, who]),
        ("System", "Account", [who]),
        ("SubtensorModule", "Tempo", [3]),
        ("SubtensorModule", "Alpha", [who, who, 3]),
        ("SubtensorModule", "LastRateLimitedBlock", [{"OwnerHyperparamUpdate": (3, "ImmunityPeriod")}]),
        ("MevShield", "NextKey", []),
    ):
        assert own.storage_key(*keys) == real.storage_key(*keys)
