"""Who names a wallet that cannot be used is told which there are, and what to type."""

from __future__ import annotations

from pathlib import Path

import pytest

from subnet.chain.wallets import known_hotkeys, require_hotkey
from subnet.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("ann/hotkeys/one", "ann/hotkeys/onepub.txt", "ann/coldkey", "bob/hotkeys/two"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
    return tmp_path


def test_hotkeys_are_listed_without_their_public_halves(folder: Path) -> None:
    assert known_hotkeys(folder) == ["ann/one", "bob/two"]
    assert require_hotkey(folder, "ann", "one") == folder / "ann" / "hotkeys" / "one"


@pytest.mark.parametrize(
    ("name", "hotkey", "command"),
    [
        ("cid", "one", "btcli wallet create --wallet cid --wallet-hotkey one"),
        ("bob", "one", "btcli wallet new-hotkey --wallet bob --wallet-hotkey one"),
    ],
)
def test_what_is_there_and_what_to_type(folder: Path, name: str, hotkey: str, command: str) -> None:
    with pytest.raises(ConfigError) as caught:
        require_hotkey(folder, name, hotkey)
    assert "ann/one, bob/two" in str(caught.value)
    assert f"{command} --wallet-path {folder}" in str(caught.value)


def test_an_empty_folder_and_none_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none at all"):
        require_hotkey(tmp_path, "ann", "one")
    with pytest.raises(ConfigError, match="no such folder"):
        require_hotkey(tmp_path / "nowhere", "ann", "one")


def test_an_encrypted_hotkey_is_refused_instead_of_asking_for_a_password(folder: Path) -> None:
    (folder / "ann" / "hotkeys" / "one").write_bytes(b"$NACL" + bytes(64))
    with pytest.raises(ConfigError, match="encrypted"):
        require_hotkey(folder, "ann", "one")
