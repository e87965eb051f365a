"""The queue of sealed weights of a subnet and epoch, read and extended as bytes.

The engine decodes byte strings lossily: valid UTF-8 comes back as text, other bytes as hex, so "0x61" and "a" cannot be
told apart afterwards. Whatever has to keep a stranger's bytes exactly therefore goes around it.

Source: layout of SubtensorModule.TimelockedWeightCommits as tables_pallets declares it.
"""

from __future__ import annotations

from dataclasses import dataclass

import bittensor_core as core

from subnet.localnet.devchain.scale import Reader, compact
from subnet.localnet.devchain.state import State, View
from subnet.localnet.devchain.subnets import PALLET

ITEM = "TimelockedWeightCommits"
SS58_FORMAT = 42
# Where a storage key holds netuid and epoch: each stands behind the eight bytes of its own hash.
NETUID_AND_EPOCH_KEY_BYTES = (slice(40, 42), slice(50, 58))


@dataclass(frozen=True)
class Commit:
    """Sealed weights. block: when they were committed; reveal_round: the drand round that opens them"""

    hotkey: str
    block: int
    sealed: bytes
    reveal_round: int


def read_commit(reader: Reader) -> Commit:
    hotkey = core.encode_ss58(reader.take(32), SS58_FORMAT)
    return Commit(hotkey, reader.integer(8), reader.octets(), reader.integer(8))


def commits(view: View, netuid: int, epoch: int) -> list[Commit]:
    raw = view.raw(view.codec.key(PALLET, ITEM, (netuid, epoch)))
    if raw is None:
        return []
    reader = Reader(raw)
    return [read_commit(reader) for _ in range(reader.compact())]


def oldest_block(view: View, netuid: int) -> dict[str, int]:
    """For every hotkey with a waiting commit, the block of its first."""
    oldest: dict[str, int] = {}
    index = NETUID_AND_EPOCH_KEY_BYTES
    for key in view.raw_keys(view.codec.prefix(PALLET, ITEM)):
        if int.from_bytes(key[index[0]], "little") == netuid:
            for commit in commits(view, netuid, int.from_bytes(key[index[1]], "little")):
                oldest[commit.hotkey] = min(commit.block, oldest.get(commit.hotkey, commit.block))
    return oldest


def append(state: State, netuid: int, epoch: int, commit: Commit) -> None:
    key = state.codec.key(PALLET, ITEM, (netuid, epoch))
    queue = Reader(state.raw(key) or compact(0))
    count = queue.compact()
    entry = (commit.hotkey, commit.block, list(commit.sealed), commit.reveal_round)
    alone = Reader(state.codec.encode(PALLET, ITEM, [entry]))
    alone.compact()
    state.write(key, compact(count + 1) + queue.rest() + alone.rest())
