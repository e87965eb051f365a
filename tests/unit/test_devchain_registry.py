"""SCALE, type expressions and metadata: strict reading, exact bytes, and a blob that the SDK's own engine accepts."""

from __future__ import annotations

import bittensor_core as core
import pytest
from hypothesis import given
from hypothesis import strategies as st

from subnet.localnet.devchain.metadata import build
from subnet.localnet.devchain.registry import Registry, type_of
from subnet.localnet.devchain.runtime_api import METHODS
from subnet.localnet.devchain.scale import Reader, compact, octets, vector
from subnet.localnet.devchain.tables_types import EXTENSIONS, TYPES


@given(st.integers(0, 2**200))
def test_compact_comes_back(number: int) -> None:
    reader = Reader(compact(number))
    assert reader.compact() == number
    assert reader.rest() == b""


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "00"), (1, "04"), (63, "fc"), (64, "0101"), (16383, "fdff"), (16384, "02000100"), (2**30, "0300000040")],
)
def test_compact_has_the_specifications_bytes(number: int, text: str) -> None:
    assert compact(number).hex() == text


@given(st.binary(max_size=300), st.lists(st.integers(0, 65535), max_size=100))
def test_reader_undoes_the_encoders_and_stops_at_the_end(data: bytes, numbers: list[int]) -> None:
    whole = octets(data) + vector(number.to_bytes(2, "little") for number in numbers)
    reader = Reader(whole)
    assert reader.octets() == data
    assert reader.integers(2) == numbers
    with pytest.raises(ValueError, match="wanted"):
        reader.take(1)
    if data:
        with pytest.raises(ValueError, match="wanted"):
            Reader(whole[: len(octets(data)) - 1]).octets()


@pytest.mark.parametrize("wrong", ["Vec<u8", "Vec<u8> u8", "(u16 u16)", "[u8 32]", "[u8; 32", "", "Option", "<u8>"])
def test_wrong_expressions_are_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"expected|needs arguments"):
        Registry(TYPES).number(wrong)


def test_unknown_types_are_named() -> None:
    with pytest.raises(KeyError, match="Nothing"):
        Registry(TYPES).number("Vec<Nothing>")


def test_a_type_is_described_once_and_spelling_does_not_matter() -> None:
    registry = Registry(TYPES)
    assert registry.number("Vec<(u16,u16)>") == registry.number("Vec< (u16, u16) >")
    assert len(registry.entries) == 3
    assert type_of("[u8; 32]") == ("array", (("u8", ()), 32))


def test_a_type_may_contain_itself() -> None:
    registry = Registry({"a::Tree": "children: Vec<Tree>"})
    registry.number("Tree")
    assert all(registry.entries)


def test_the_blob_depends_on_nothing_but_its_parameters() -> None:
    build.cache_clear()
    first = build(15, 250)
    build.cache_clear()
    assert build(15, 250) == first
    assert build(15, 500) != first
    with pytest.raises(ValueError, match="13"):
        build(13)


def test_the_engine_reads_the_blob() -> None:
    runtime = core.Runtime(build(15, 125), 470, 1, 42)
    assert runtime.is_v15
    assert runtime.extrinsic_version == 4
    assert runtime.signed_extension_identifiers() == list(EXTENSIONS)
    assert runtime.constant("Aura", "SlotDuration") == 125
    assert runtime.module_error(7, 76)[0] == "SubnetNotExists"
    assert not core.Runtime(build(14, 125), 470, 1, 42).is_v15


def test_every_default_decodes_as_its_type() -> None:
    runtime = core.Runtime(build(), 470, 1, 42)
    for pallet in runtime.metadata_ir()["pallets"]:
        for item in pallet["storage"]:
            entry = runtime.storage_entry(pallet["name"], item["name"])
            if entry.modifier == "Default":
                runtime.decode(entry.value_type, bytes(entry.default_bytes))


def test_every_served_runtime_api_is_declared() -> None:
    declared = core.Runtime(build(), 470, 1, 42).runtime_api_map()
    for api, method in METHODS:
        assert method in declared[api]
