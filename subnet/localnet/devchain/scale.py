"""SCALE, the byte format of Substrate chains: the few primitives that metadata, extrinsics and payloads are made of.

Encoders return bytes. `Reader` decodes with bounds checks and refuses what ends too early; values of declared types
go through `bittensor_core.Runtime` instead.

Source: SCALE specification (Polkadot wiki, "SCALE codec"): little-endian integers, compact lengths.
"""

from __future__ import annotations

from collections.abc import Iterable


def compact(number: int) -> bytes:
    """A variable-length unsigned integer; the two lowest bits say how many bytes it takes."""
    for mode, width in enumerate((1, 2, 4)):
        if number < 1 << (8 * width - 2):
            return (number << 2 | mode).to_bytes(width, "little")
    width = (number.bit_length() + 7) // 8
    return bytes([(width - 4) << 2 | 3]) + number.to_bytes(width, "little")


def octets(data: bytes) -> bytes:
    return compact(len(data)) + data


def string(text: str) -> bytes:
    return octets(text.encode())


def vector(items: Iterable[bytes]) -> bytes:
    encoded = list(items)
    return compact(len(encoded)) + b"".join(encoded)


def option(item: bytes | None) -> bytes:
    return b"\0" if item is None else b"\1" + item


def lines(text: str) -> bytes:
    """Documentation, which metadata keeps as a list of lines."""
    return vector(string(line) for line in text.splitlines())


NO_DOCS = lines("")


class Reader:
    """Reads from the front of ``data``; raises ValueError where the bytes end too early."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.offset = 0

    def take(self, size: int) -> bytes:
        end = self.offset + size
        if end > len(self.data):
            raise ValueError(f"{size} bytes wanted at {self.offset}, {len(self.data) - self.offset} left")
        taken = self.data[self.offset : end]
        self.offset = end
        return taken

    def integer(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def compact(self) -> int:
        first = self.integer(1)
        mode = first & 3
        if mode == 3:
            return self.integer((first >> 2) + 4)
        return (first | self.integer((1 << mode) - 1) << 8) >> 2

    def octets(self) -> bytes:
        return self.take(self.compact())

    def integers(self, size: int) -> list[int]:
        """A vector of fixed-width integers."""
        count = self.compact()
        taken = self.take(count * size)
        return [int.from_bytes(taken[at : at + size], "little") for at in range(0, len(taken), size)]

    def rest(self) -> bytes:
        return self.take(len(self.data) - self.offset)
