"""Wallets and genesis of a network on one machine.

Not here: the chain. Invariant: wallets are throw-away and unencrypted; they live in the network's own folder.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from subnet.chain.live import create_wallet
from subnet.localnet.options import Options
from subnet.types import Hotkey

BALANCE_RAO = 10**12  # a thousand TAO per coldkey: enough for the fees of days
STAKE_RAO = 10**12  # alpha behind every validator
OWNER = "owner"


@dataclass(frozen=True)
class Keys:
    """All keys of a network. ``hotkeys``: by name; ``names`` is the inverse."""

    wallets: Path
    coldkeys: dict[str, str]
    hotkeys: dict[str, Hotkey]

    @property
    def names(self) -> dict[Hotkey, str]:
        """Who is behind a hotkey."""
        return {hotkey: name for name, hotkey in self.hotkeys.items()}


def make_keys(folder: Path, options: Options) -> Keys:
    """A wallet for the owner, every miner and every validator."""
    coldkeys, hotkeys = {}, {}
    for name in [OWNER, *options.miners, *options.validator_names]:
        coldkeys[name], hotkeys[name] = create_wallet(folder / "wallets", name)
    return Keys(folder / "wallets", coldkeys, hotkeys)


def write_genesis(path: Path, keys: Keys, options: Options) -> None:
    """One subnet of the owner, with all miners and validators registered."""
    neurons = [
        {
            "coldkey": keys.coldkeys[name],
            "hotkey": keys.hotkeys[name],
            "stake_rao": STAKE_RAO if name in options.validator_names else 0,
        }
        for name in [*options.miners, *options.validator_names]
    ]
    subnet = {"owner_coldkey": keys.coldkeys[OWNER], "owner_hotkey": keys.hotkeys[OWNER], "neurons": neurons}
    accounts = dict.fromkeys(keys.coldkeys.values(), BALANCE_RAO)
    path.write_text(json.dumps({"accounts": accounts, "subnets": [subnet]}))
