"""Blocks, and which of them are final: what is still to be said of those that are not.

Not here: making blocks (chain) and when finality may move (faults). Invariants: blocks become final in order, each
once; a block that was replaced never does; only the newest can be replaced, and only before it is final.

Source: substrate's finality notifications; transaction statuses of the `author` RPC.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from subnet.localnet.devchain.extrinsics import Waiting


@dataclass(frozen=True)
class Block:
    number: int
    hash: str
    parent: str
    extrinsics: tuple[bytes, ...]
    time_ms: int


@dataclass(frozen=True)
class Included:
    """A block with the pool entries that it took."""

    block: Block
    entries: tuple[Waiting, ...]


class Finality:
    """number: the newest final block; open: the later blocks, in order"""

    def __init__(self, number: int) -> None:
        self.number = number
        self.open: deque[Included] = deque()

    def add(self, block: Block, entries: list[Waiting]) -> None:
        self.open.append(Included(block, tuple(entries)))

    def advance(self, number: int) -> Iterator[Included]:
        """What becomes final when block ``number`` does, in order."""
        while self.open and self.open[0].block.number <= number:
            included = self.open.popleft()
            self.number = included.block.number
            yield included

    def retract(self) -> Included:
        """Takes the newest block back; IndexError if it is final."""
        return self.open.pop()
