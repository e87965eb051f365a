"""Attack: a key or path that points outside the blob store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from subnet.errors import Malformed
from subnet.net.base import split_target
from subnet.net.blobs import StoreBlobs

ESCAPES = [
    "../secret",
    "a/../../secret",
    "a/..",
    "..",
    ".",
    "./secret",
    "/etc/passwd",
    "a/./b",
    "a\\..\\secret",
    "%2e%2e/secret",
    "a/%2e%2e/secret",
    "..%2fsecret",
    "a\0/../secret",
    "a\n../secret",
    "~/secret",
    "C:secret",
]


@pytest.mark.parametrize("key", ESCAPES)
def test_no_key_leaves_the_store(tmp_path: Path, key: str) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"mine")

    async def scenario() -> None:
        store = StoreBlobs(tmp_path / "blobs")
        for operation in (store.get(key), store.put(key, b"theirs"), store.delete(key), store.size(key)):
            with pytest.raises(Malformed) as caught:
                await operation
            assert "secret" not in str(caught.value)
        with pytest.raises(Malformed):
            await store.keys(key)

    asyncio.run(scenario())
    assert secret.read_bytes() == b"mine"
    assert [path.name for path in tmp_path.rglob("*")] in (["secret", "blobs"], ["blobs", "secret"])


@pytest.mark.parametrize(
    "target",
    [
        "/v1/blobs/../x",
        "/v1/./x",
        "/v1/blobs/%2e%2e/x",
        "/v1/blobs/a%2fb",
        "/v1/blobs/a\\b",
        "v1/blobs/a",
        "//v1/x",
        "",
    ],
)
def test_no_target_with_a_second_spelling_reaches_a_handler(target: str) -> None:
    with pytest.raises(Malformed):
        split_target(target)
