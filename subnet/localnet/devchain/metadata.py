"""Runtime metadata of the development chain: its tables as one blob, version 15 or 14.

A Substrate chain describes itself to its clients: storage items and how their keys are hashed, calls, events and
errors of every pallet, runtime APIs, the layout of a transaction, and the registry of types that all of these point
into. A client needs nothing else to talk to the chain.

Invariants: the same tables and block time give the same bytes; a type is described once. Version 14 differs by four
details that its main reader, py-scale-codec, needs. The blob is the interface: nothing here knows what a call does.

Source: `RuntimeMetadataV15` and `RuntimeMetadataV14` of the frame-metadata crate.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from subnet.localnet.devchain.registry import Expression, Registry, Type
from subnet.localnet.devchain.scale import NO_DOCS, octets, option, string, vector
from subnet.localnet.devchain.tables_apis import APIS
from subnet.localnet.devchain.tables_pallets import PALLETS, Pallet
from subnet.localnet.devchain.tables_types import EXTENSIONS, EXTRINSIC_VERSION, TYPES

HASHERS = ["Blake2_128", "Blake2_256", "Blake2_128Concat", "Twox128", "Twox256", "Twox64Concat", "Identity"]


def assignment(registry: Registry, expression: Expression) -> tuple[Type, bytes]:
    """A type and the value after "=", or else its natural value."""
    kind = expression.type()
    value = registry.value(kind, int(expression.name()) if expression.take("=") else 0)
    expression.expect("")
    return kind, value


def storage_item(registry: Registry, name: str, line: str) -> bytes:
    expression = Expression(line)
    keys = expression.sequence(expression.item, "->")
    value, default = assignment(registry, expression)
    modifier = b"\1"
    if value[0] == "Option":
        modifier, (value,) = b"\0", value[1]
    hashers = vector(bytes([HASHERS.index(hasher)]) for hasher, _ in keys)
    kinds = tuple(kind for _, ((_, kind),) in keys)
    layout = b"\0"
    if kinds:
        layout = b"\1" + hashers + registry.number(kinds[0] if len(kinds) == 1 else ("tuple", kinds))
    return string(name) + modifier + layout + registry.number(value) + octets(default) + NO_DOCS


def constant(registry: Registry, name: str, line: str) -> bytes:
    kind, value = assignment(registry, Expression(line))
    return string(name) + registry.number(kind) + octets(value) + NO_DOCS


def pallet(registry: Registry, name: str, declared: Pallet, version: int) -> bytes:
    def enum(kind: str, items: dict[int, str]) -> bytes:
        return option(registry.number(f"{declared.crate}::pallet::{kind}") if items else None)

    storage = vector(storage_item(registry, item, line) for item, line in declared.storage.items())
    blob = string(name) + option(string(name) + storage if declared.storage else None)
    blob += enum("Call", declared.calls) + enum("Event", declared.events)
    blob += vector(constant(registry, item, line) for item, line in declared.constants.items())
    blob += enum("Error", declared.errors) + bytes([declared.index])
    return blob + (NO_DOCS if version >= 15 else b"")


def api_method(registry: Registry, line: str) -> bytes:
    expression = Expression(line)
    name, inputs = expression.item()
    expression.expect("->")
    output = expression.type()
    expression.expect("")
    arguments = vector(string(argument or "") + registry.number(kind) for argument, kind in inputs)
    return string(name) + arguments + registry.number(output) + NO_DOCS


RUNTIME = "node_subtensor_runtime"  # one segment: py-scale-codec knows a call by the path "*::RuntimeCall"

OUTER_ENUMS = ("Call", "Event", "Error")


def declare_outer_enums(registry: Registry, pallets: Mapping[str, Pallet], version: int) -> None:
    """Each pallet's enums, and the runtime's enums of pallets that contain them."""
    outer: dict[str, dict[int, str]] = {kind: {} for kind in OUTER_ENUMS}
    for name, declared in pallets.items():
        errors = declared.errors
        if version == 14:  # its main reader, py-scale-codec, finds an error by position instead of by index
            errors = {index: errors.get(index, f"Unused{index}") for index in range(max(errors, default=-1) + 1)}
        for kind, items in zip(OUTER_ENUMS, (declared.calls, declared.events, errors), strict=True):
            if items:
                registry.declare(f"{declared.crate}::pallet::{kind}", items)
                outer[kind][declared.index] = f"{name}({declared.crate}::pallet::{kind})"
    for kind, items in outer.items():
        registry.declare(f"{RUNTIME}::Runtime{kind}", items)


def extrinsic_14(registry: Registry, extensions: bytes, runtime: bytes) -> bytes:
    return registry.number("UncheckedExtrinsic") + bytes([EXTRINSIC_VERSION]) + extensions + runtime


def extrinsic_15(registry: Registry, extensions: bytes, runtime: bytes) -> bytes:
    """The transaction format, then what version 15 adds: runtime APIs, outer enums, custom values (none)."""
    parts = ("MultiAddress", "RuntimeCall", "MultiSignature", f"({', '.join(EXTENSIONS)})")
    blob = bytes([EXTRINSIC_VERSION]) + b"".join(map(registry.number, parts)) + extensions + runtime
    blob += vector(
        string(api) + vector(api_method(registry, line) for line in methods) + NO_DOCS for api, methods in APIS.items()
    )
    return blob + b"".join(registry.number(f"Runtime{kind}") for kind in OUTER_ENUMS) + vector([])


@cache
def build(version: int = 15, block_time_ms: int = 250) -> bytes:
    """The whole blob. version: 14 or 15; block_time_ms: what clients read as Aura.SlotDuration"""
    if version not in (14, 15):
        raise ValueError(f"metadata version {version} is not one of 14 and 15")
    declared = {**PALLETS, "Aura": Pallet(3, "pallet_aura", constants={"SlotDuration": f"u64 = {block_time_ms}"})}
    registry = Registry(TYPES)
    declare_outer_enums(registry, declared, version)
    for name, (carried, _) in EXTENSIONS.items():
        registry.declare(f"{RUNTIME}::{name}", carried)
    registry.declare(f"{RUNTIME}::Runtime", "")
    pallets = vector(pallet(registry, name, item, version) for name, item in declared.items())
    extensions = vector(
        string(name) + registry.number(name) + registry.number(signed) for name, (_, signed) in EXTENSIONS.items()
    )
    runtime = registry.number("Runtime")
    rest = (extrinsic_14 if version == 14 else extrinsic_15)(registry, extensions, runtime)
    return b"meta" + bytes([version]) + vector(registry.entries) + pallets + rest
