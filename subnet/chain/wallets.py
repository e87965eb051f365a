"""Wallets on this machine, as a folder of files; of a key, no more is read than whether it is encrypted.

Not here: keys (``live``, ``net.auth``). Invariants: who names a wallet that is not there is told which are; a program
that nobody watches never waits for a password.
Source: the layout of bittensor-wallet, PATH/NAME/hotkeys/HOTKEY (bittensor-v11.md, section 1.3), and how its encrypted
files begin.
"""

from __future__ import annotations

from pathlib import Path

from subnet.errors import ConfigError

PUBLIC_SUFFIX = "pub.txt"
MAX_LISTED = 12
ENCRYPTED = (b"$NACL", b"$ANSIBLE_VAULT", b"gAAAAA")  # today's, and two older ways


def known_hotkeys(path: Path) -> list[str]:
    """All hotkeys in a folder of wallets, as NAME/HOTKEY."""
    files = [file for file in path.glob("*/hotkeys/*") if not file.name.endswith(PUBLIC_SUFFIX)]
    return sorted(f"{file.parent.parent.name}/{file.name}" for file in files)


def require_hotkey(path: Path, name: str, hotkey: str) -> Path:
    """The file of a hotkey; ``ConfigError`` tells which there are, and how to make one."""
    file = path / name / "hotkeys" / hotkey
    if file.is_file():
        with file.open("rb") as opened:
            if opened.read(max(map(len, ENCRYPTED))).startswith(ENCRYPTED):
                raise ConfigError(
                    f"The hotkey at {file} is encrypted, and nobody will be there to type its password.",
                    remedy="Neurons need a hotkey that is not; the coldkey may be.",
                )
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
