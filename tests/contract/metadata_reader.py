"""An independent reader of runtime metadata, versions 15 and 14. It shares no code with the writer.

Source: `RuntimeMetadataV15` and `RuntimeMetadataV14` of the frame-metadata crate, `PortableRegistry` of scale-info.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class Cursor:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def raw(self, size: int) -> bytes:
        self.at += size
        assert self.at <= len(self.data), "the metadata ends too early"
        return self.data[self.at - size : self.at]

    def u8(self) -> int:
        return self.raw(1)[0]

    def compact(self) -> int:
        mode = self.data[self.at] & 3
        if mode == 3:
            return int.from_bytes(self.raw((self.u8() >> 2) + 4), "little")
        return int.from_bytes(self.raw((1, 2, 4)[mode]), "little") >> 2

    def text(self) -> str:
        return self.raw(self.compact()).decode()

    def many(self, read: Callable[[], Any]) -> list[Any]:
        return [read() for _ in range(self.compact())]

    def maybe(self, read: Callable[[], Any]) -> Any:
        return read() if self.u8() else None


@dataclass
class Kind:
    """One type. body: fields, variants by index, element, (length, element), elements, or the primitive's number"""

    path: list[str]
    shape: str
    body: Any


def read_field(cursor: Cursor) -> tuple[str | None, int]:
    name = cursor.maybe(cursor.text)
    kind = cursor.compact()
    cursor.maybe(cursor.text)
    cursor.many(cursor.text)
    return name, kind


def read_variant(cursor: Cursor) -> tuple[int, str, list[Any]]:
    name = cursor.text()
    fields = cursor.many(lambda: read_field(cursor))
    index = cursor.u8()
    cursor.many(cursor.text)
    return index, name, fields


def read_kind(cursor: Cursor) -> Kind:
    cursor.compact()
    path = cursor.many(cursor.text)
    cursor.many(lambda: (cursor.text(), cursor.maybe(cursor.compact)))
    shape = ("struct", "enum", "vector", "array", "tuple", "primitive", "compact", "bits")[cursor.u8()]
    body: dict[str, Callable[[], Any]] = {
        "struct": lambda: cursor.many(lambda: read_field(cursor)),
        "enum": lambda: {index: rest for index, *rest in cursor.many(lambda: read_variant(cursor))},
        "vector": cursor.compact,
        "array": lambda: (int.from_bytes(cursor.raw(4), "little"), cursor.compact()),
        "tuple": lambda: cursor.many(cursor.compact),
        "primitive": cursor.u8,
        "compact": cursor.compact,
        "bits": lambda: (cursor.compact(), cursor.compact()),
    }
    kind = Kind(path, shape, body[shape]())
    cursor.many(cursor.text)
    return kind


def read_storage(cursor: Cursor) -> tuple[str, dict[str, Any]]:
    name, modifier, is_map = cursor.text(), cursor.u8(), cursor.u8()
    item: dict[str, Any] = {"modifier": modifier, "hashers": [], "key": None}
    if is_map:
        item.update(hashers=cursor.many(cursor.u8), key=cursor.compact())
    item.update(value=cursor.compact(), default=cursor.raw(cursor.compact()))
    cursor.many(cursor.text)
    return name, item


def read_constant(cursor: Cursor) -> tuple[str, tuple[int, bytes]]:
    name, kind, value = cursor.text(), cursor.compact(), cursor.raw(cursor.compact())
    cursor.many(cursor.text)
    return name, (kind, value)


def read_pallet(cursor: Cursor, version: int = 15) -> tuple[str, dict[str, Any]]:
    name = cursor.text()
    storage = cursor.maybe(lambda: (cursor.text(), dict(cursor.many(lambda: read_storage(cursor)))))
    pallet = {
        "storage": storage[1] if storage else {},
        "calls": cursor.maybe(cursor.compact),
        "events": cursor.maybe(cursor.compact),
        "constants": dict(cursor.many(lambda: read_constant(cursor))),
        "errors": cursor.maybe(cursor.compact),
        "index": cursor.u8(),
    }
    if version >= 15:
        cursor.many(cursor.text)
    return name, pallet


def read_method(cursor: Cursor) -> tuple[str, tuple[list[Any], int]]:
    name, inputs, output = cursor.text(), cursor.many(lambda: (cursor.text(), cursor.compact())), cursor.compact()
    cursor.many(cursor.text)
    return name, (inputs, output)


def read_api(cursor: Cursor) -> tuple[str, dict[str, Any]]:
    name, methods = cursor.text(), dict(cursor.many(lambda: read_method(cursor)))
    cursor.many(cursor.text)
    return name, methods


@dataclass
class Metadata:
    kinds: list[Kind]
    pallets: dict[str, dict[str, Any]]
    extrinsic: list[int]
    extensions: list[tuple[str, int, int]]
    apis: dict[str, dict[str, Any]]
    outer: list[int]


def read_metadata(blob: bytes) -> Metadata:
    """extrinsic: version, then the types of address, call, signature, extra; outer: types of call, event, error.

    Version 14 has neither APIs nor outer types, and of the extrinsic only the whole's type and version.
    """
    cursor = Cursor(blob)
    assert cursor.raw(4) == b"meta"
    version = cursor.u8()
    assert version in (14, 15)
    kinds = cursor.many(lambda: read_kind(cursor))
    pallets = dict(cursor.many(lambda: read_pallet(cursor, version)))
    if version == 14:
        whole, extrinsic_version = cursor.compact(), cursor.u8()
        extensions = cursor.many(lambda: (cursor.text(), cursor.compact(), cursor.compact()))
        cursor.compact()
        assert cursor.at == len(blob), "bytes after the metadata"
        return Metadata(kinds, pallets, [extrinsic_version, whole], extensions, {}, [])
    extrinsic = [cursor.u8(), *(cursor.compact() for _ in range(4))]
    extensions = cursor.many(lambda: (cursor.text(), cursor.compact(), cursor.compact()))
    cursor.compact()
    apis = dict(cursor.many(lambda: read_api(cursor)))
    outer = [cursor.compact() for _ in range(3)]
    cursor.many(lambda: (cursor.text(), cursor.compact(), cursor.raw(cursor.compact())))
    assert cursor.at == len(blob), "bytes after the metadata"
    return Metadata(kinds, pallets, extrinsic, extensions, apis, outer)
