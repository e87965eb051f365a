"""Genesis from a JSON file: accounts, subnets with their owners, and neurons that are there from the first block.

    {"accounts": {SS58: RAO, ...},
     "subnets": [{"owner_coldkey": SS58, "owner_hotkey": SS58, "settings": {"Tempo": 20, ...},
                  "neurons": [{"coldkey": SS58, "hotkey": SS58, "stake_rao": 0}, ...]}]}

Subnets are numbered from 1 in the order of the file. Not here: what the settings mean (``subnets``).
Invariant: an unknown key or setting is refused, so that a typing error does not become a default.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from subnet.errors import ConfigError
from subnet.localnet.devchain.chain import DevChain


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class GenesisNeuron(_Part):
    """A neuron. ``stake_rao`` is alpha of its subnet."""

    coldkey: str
    hotkey: str
    stake_rao: int = Field(0, ge=0)


class GenesisSubnet(_Part):
    """A subnet; its owner's hotkey becomes uid 0."""

    owner_coldkey: str
    owner_hotkey: str
    settings: dict[str, int | bool] = {}
    neurons: list[GenesisNeuron] = []


class Genesis(_Part):
    """All that is there at block 0. ``accounts``: free balance in rao."""

    accounts: dict[str, int] = {}
    subnets: list[GenesisSubnet] = []


def read_genesis(path: Path) -> Genesis:
    """Raises ``ConfigError`` that names what is wrong."""
    try:
        return Genesis.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise ConfigError(f"The genesis file {path} cannot be used: {error}.") from None


def apply_genesis(chain: DevChain, genesis: Genesis) -> list[int]:
    """Put everything on a new chain, and at once in its state file; returns the subnets' numbers."""
    with chain.batch():
        for account, rao in genesis.accounts.items():
            chain.endow(account, rao)
        return [_apply_subnet(chain, number, subnet) for number, subnet in enumerate(genesis.subnets, 1)]


def _apply_subnet(chain: DevChain, number: int, subnet: GenesisSubnet) -> int:
    try:
        netuid = chain.add_subnet(subnet.owner_coldkey, subnet.owner_hotkey, **subnet.settings)
    except ValueError as error:
        raise ConfigError(f"The genesis file's subnet {number}: {error}.") from None
    for neuron in subnet.neurons:
        chain.register(netuid, neuron.coldkey, neuron.hotkey)
        if neuron.stake_rao:
            chain.set_stake(netuid, neuron.hotkey, neuron.stake_rao)
    return netuid
