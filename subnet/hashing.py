"""Canonical bytes and digests: what two machines must compute alike before they can agree on anything else.

Not here: signatures (``subnet.net.auth``), tensor digests (``subnet.codec.tensors``).
Invariants: canonical JSON has sorted keys and no white space, and refuses NaN and infinity; a Merkle leaf is never
confused with an inner node (domain prefixes, as in RFC 6962, section 2.1).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from subnet.types import Digest

LEAF_BYTES = 64 * 1024  # design.md section 4: pseudo-gradients are committed over 64 KiB leaves
EMPTY_ROOT = Digest(hashlib.sha256(b"").hexdigest())


def canonical_json(value: Any) -> bytes:
    """``value`` (plain JSON types) as the one byte string that is signed and hashed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def sha256(data: bytes | memoryview) -> Digest:
    """Digest of raw bytes."""
    return Digest(hashlib.sha256(data).hexdigest())


def digest_of(value: Any) -> Digest:
    """Digest of a plain JSON value."""
    return sha256(canonical_json(value))


def draw(*parts: object) -> int:
    """A uniform 64-bit integer fixed by ``parts``: the project's one source of agreed randomness."""
    return int.from_bytes(hashlib.sha256(canonical_json([str(part) for part in parts])).digest()[:8], "big")


def leaf_digest(data: bytes | memoryview) -> Digest:
    """Digest of one Merkle leaf."""
    hasher = hashlib.sha256(b"\0")
    hasher.update(data)
    return Digest(hasher.hexdigest())


def node_digest(left: Digest, right: Digest) -> Digest:
    """Digest of an inner node."""
    return Digest(hashlib.sha256(b"\1" + bytes.fromhex(left) + bytes.fromhex(right)).hexdigest())


def merkle_root(leaves: Sequence[Digest]) -> Digest:
    """Root over leaf digests; an odd node rises unchanged; no leaves give ``EMPTY_ROOT``."""
    level = list(leaves)
    if not level:
        return EMPTY_ROOT
    while len(level) > 1:
        paired = [node_digest(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        level = paired + level[len(level) - len(level) % 2 :]
    return level[0]


def merkle_proof(leaves: Sequence[Digest], index: int) -> tuple[Digest, ...]:
    """Sibling digests from leaf ``index`` up to the root, for ``merkle_verify``."""
    if not 0 <= index < len(leaves):
        raise IndexError(f"leaf {index} of {len(leaves)}")
    level, proof = list(leaves), []
    while len(level) > 1:
        sibling = index ^ 1
        if sibling < len(level):
            proof.append(level[sibling])
        paired = [node_digest(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        level = paired + level[len(level) - len(level) % 2 :]
        index //= 2
    return tuple(proof)


def merkle_verify(root: Digest, leaf: Digest, index: int, num_leaves: int, proof: Sequence[Digest]) -> bool:
    """Whether ``leaf`` stands at ``index`` of a tree of ``num_leaves`` leaves under ``root``."""
    if not 0 <= index < num_leaves:
        return False
    remaining, node, width = list(proof), leaf, num_leaves
    while width > 1:
        sibling = index ^ 1
        if sibling < width:
            if not remaining:
                return False
            other = remaining.pop(0)
            node = node_digest(other, node) if index & 1 else node_digest(node, other)
        index, width = index // 2, (width + 1) // 2
    return not remaining and node == root


def bytes_root(data: bytes | memoryview) -> Digest:
    """Merkle root over ``LEAF_BYTES`` leaves of ``data``."""
    view = memoryview(data).cast("B")
    return merkle_root([leaf_digest(view[start : start + LEAF_BYTES]) for start in range(0, len(view), LEAF_BYTES)])
