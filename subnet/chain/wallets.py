"""Wallets on this machine, as a folder of files; nothing is read but names.

Not here: keys (``live``, ``net.auth``). Invariant: who names a wallet that is not there is told which are.
Source: the layout of bittensor-wallet, PATH/NAME/hotkeys/HOTKEY (bittensor-v11.md, section 1.3).
"""

from __future__ import annotations

from pathlib import Path

from subnet.errors import ConfigError

PUBLIC_SUFFIX = "pub.txt"
MAX_LISTED = 12


def known_hotkeys(path: Path) -> list[str]:
    """All hotkeys in a folder of wallets, as NAME/HOTKEY."""
    files = [file for file in path.glob("*/hotkeys/*") if not file.name.endswith(PUBLIC_SUFFIX)]
    return sorted(f"{file.parent.parent.name}/{file.name}" for file in files)


def require_hotkey(path: Path, name: str, hotkey: str) -> Path:
    """The file of a hotkey; ``ConfigError`` tells which there are, and how to make one."""
    file = path / name / "hotkeys" / hotkey
    if file.is_file():
        return file
    known = known_hotkeys(path)
    listed = ", ".join(known[:MAX_LISTED]) + (", ..." if len(known) > MAX_LISTED else "")
    found = f"it has {listed}" if known else "there is none at all" if path.is_dir() else "there is no such folder"
    command = "new-hotkey" if (path / name).is_dir() else "create"
    raise ConfigError(
        f"Wallet {name!r} in {path} has no hotkey {hotkey!r}: {found} (wallet/hotkey).",
        remedy="Name one with --wallet.name, --wallet.hotkey and --wallet.path, or make it: "
        f"btcli wallet {command} --wallet {name} --wallet-hotkey {hotkey} --wallet-path {path}",
    )
