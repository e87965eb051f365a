"""NeuronConfig: what one operator decides for one machine, by flags, environment or TOML, in that order.

Not here: what the whole run agrees on (``subnet.config.RunConfig``).
Invariants: operators keep the flags that they know (``--netuid``, ``--wallet.name``, ``--subtensor.network``,
``--axon.port``, ``--logging.debug``); every setting is read once, at start; an unknown flag is an error.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from subnet.errors import ConfigError

CONFIG_FILE = "LIQUID_CONFIG"  # environment variable that names a TOML file
NO_CHAIN = "none"
NETWORKS = ("finney", "test", "archive", "devnet", "local")  # names that the SDK knows
# What btcli and the SDK read: counts where neither a flag nor our own variable says something.
BITTENSOR_ENVIRONMENT = {
    "BT_NETWORK": ("subtensor", "network"),
    "BT_CHAIN_ENDPOINT": ("subtensor", "chain_endpoint"),
    "BT_WALLET": ("wallet", "name"),
    "BT_WALLET_HOTKEY": ("wallet", "hotkey"),
    "BT_WALLET_PATH": ("wallet", "path"),
}


class WalletSettings(BaseModel):
    """Which keys this neuron signs with."""

    path: Path = Field(Path("~/.bittensor/wallets"), description="folder of wallets")
    name: str = Field("default", description="name of the coldkey")
    hotkey: str = Field("default", description="name of the hotkey")


class SubtensorSettings(BaseModel):
    """Which chain this neuron talks to."""

    network: str = Field("finney", description="finney, test, local, a ws:// or wss:// URL, or none")
    chain_endpoint: str = Field("", description="URL that replaces the network's own")

    @field_validator("network")
    @classmethod
    def _is_known(cls, value: str) -> str:
        if value not in (*NETWORKS, NO_CHAIN) and not value.startswith(("ws://", "wss://")):
            raise ValueError(f"there is no network {value!r}; known are {', '.join(NETWORKS)}, ws:// and wss:// URLs")
        return value

    @field_validator("chain_endpoint")
    @classmethod
    def _is_url(cls, value: str) -> str:
        if value and not value.startswith(("ws://", "wss://")):
            raise ValueError(f"{value!r} is no URL of a chain; write ws://HOST:PORT or wss://HOST")
        return value


class AxonSettings(BaseModel):
    """Where other peers reach this neuron."""

    ip: str = Field("0.0.0.0", description="address to listen on")
    port: int = Field(8091, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    external_ip: str = Field("", description="address to publish; empty: the one to listen on")
    external_port: int = Field(0, ge=0, le=65535, description="port to publish; 0: the one to listen on")
    relay: Literal["auto", "never", "always"] = Field(
        "auto", description="whether to be reached through the orchestrator's relay; auto: if not reached otherwise"
    )


class LoggingSettings(BaseModel):
    """What this neuron says on standard error."""

    debug: bool = Field(False, description="say more")
    json_lines: bool = Field(False, description="one JSON object per event instead of text")


class OrchestratorSettings(BaseModel):
    """Where the run is scheduled; empty: the subnet owner's axon on chain."""

    url: str = Field("", description="http://HOST:PORT of the orchestrator")
    hotkey: str = Field("", description="ss58 address that must sign round documents")


class MachineSettings(BaseModel):
    """This machine."""

    data_dir: Path = Field(Path("~/.liquid"), description="folder of journals, snapshots and the ledger")
    device: str = Field("cpu", description="torch device of the tensors")


def _bittensor_environment() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, (section, field) in BITTENSOR_ENVIRONMENT.items():
        if os.environ.get(name):
            found.setdefault(section, {})[field] = os.environ[name]
    return found


class NeuronConfig(BaseSettings):
    """Settings that all three programs have."""

    model_config = SettingsConfigDict(
        env_prefix="LIQUID_",
        env_nested_delimiter="__",
        extra="forbid",
        cli_avoid_json=True,
        nested_model_default_partial_update=True,
    )

    netuid: int = Field(1, ge=0, description="number of the subnet")
    wallet: WalletSettings = WalletSettings()
    subtensor: SubtensorSettings = SubtensorSettings()
    axon: AxonSettings = AxonSettings()
    logging: LoggingSettings = LoggingSettings()
    orchestrator: OrchestratorSettings = OrchestratorSettings()
    neuron: MachineSettings = MachineSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags (given to ``init``), our environment, Bittensor's, the file: the first that speaks counts."""
        file = os.environ.get(CONFIG_FILE)
        if file and not Path(file).is_file():
            raise ConfigError(f"{CONFIG_FILE} names {file}, which is no file.")
        toml = (TomlConfigSettingsSource(settings_cls, Path(file)),) if file else ()
        return (init_settings, env_settings, InitSettingsSource(settings_cls, _bittensor_environment()), *toml)

    @property
    def has_chain(self) -> bool:
        """Whether this neuron uses a chain at all."""
        return self.subtensor.network != NO_CHAIN

    @property
    def endpoint(self) -> str:
        """Network name or URL of the chain."""
        return self.subtensor.chain_endpoint or self.subtensor.network

    @property
    def log_level(self) -> int:
        """Level of events that are written."""
        return logging.DEBUG if self.logging.debug else logging.INFO


class OrchestratorConfig(NeuronConfig):
    """Settings of the orchestrator."""

    run: str = Field("localnet", description="preset or TOML file of the run")
    stop_after_rounds: int = Field(0, ge=0, description="stop by itself after so many rounds; 0: never")
    relay: bool = Field(True, description="serve a relay for miners that cannot be reached")
    ledger_url: str = Field("", description="SQLAlchemy URL of the ledger; empty: SQLite in the data folder")


def parse(kind: type[Any], program: str, argv: list[str]) -> Any:
    """Settings of ``kind`` from flags, environment and file; raises ``ConfigError``; ``--help`` exits."""
    source: CliSettingsSource[Any] = CliSettingsSource(
        kind, cli_prog_name=f"liquid {program}", cli_parse_args=argv, cli_implicit_flags=True, cli_hide_none_type=True
    )
    try:
        return kind(**source())
    except ValidationError as error:
        lines = [f"--{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors()]
        raise ConfigError("; ".join(lines) + ".") from None
