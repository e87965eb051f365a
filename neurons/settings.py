"""NeuronConfig: what one operator decides for one machine.

A flag goes before a ``LIQUID_`` variable, that before one of the SDK's ``BT_`` variables, that before the TOML file.
Not here: what the whole run agrees on (``subnet.config.RunConfig``).
Invariants: operators keep the flags that they know (``--netuid``, ``--wallet.name``, ``--subtensor.network``,
``--axon.port``, ``--logging.debug``); every setting is read once, at start; an unknown flag is an error; whoever names
a network is not sent to an endpoint that something of lower rank names.
Source: the names in bittensor-v11.md, section 4.1.
"""

from __future__ import annotations

import logging
import os
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from subnet.errors import ConfigError

CONFIG_FILE = "LIQUID_CONFIG"  # environment variable that names a TOML file
NO_CHAIN = "none"
NETWORKS = ("finney", "test", "local", "archive", "devnet")  # names that the SDK knows
SCHEMES = ("ws://", "wss://")
SDK_VARIABLES = {
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
    chain_endpoint: str = Field("", description="ws:// or wss:// URL that replaces the network's own")

    @field_validator("network")
    @classmethod
    def _is_known(cls, value: str) -> str:
        if value in (*NETWORKS, NO_CHAIN) or value.startswith(SCHEMES):
            return value
        raise ValueError(
            f"there is no network {value!r}; known are {', '.join(NETWORKS)} and {NO_CHAIN}, "
            f"or a URL such as ws://{value if ':' in value else '127.0.0.1:9944'}"
        )

    @field_validator("chain_endpoint")
    @classmethod
    def _is_url(cls, value: str) -> str:
        if not value or value.startswith(SCHEMES):
            return value
        raise ValueError(f"{value!r} is no URL of a chain; write it with its scheme, such as ws://{value}")


class AxonSettings(BaseModel):
    """Where other peers reach this neuron."""

    ip: str = Field("0.0.0.0", description="address to listen on")
    port: int = Field(8091, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    external_ip: str = Field("", description="address to publish; empty: the one to listen on")
    external_port: int = Field(0, ge=0, le=65535, description="port to publish; 0: the one to listen on")
    relay: Literal["auto", "never", "always"] = Field(
        "auto", description="miner: be reached through the orchestrator's relay; auto: if it is not reached otherwise"
    )


class LoggingSettings(BaseModel):
    """What this neuron says on standard error."""

    info: bool = Field(False, description="decisions and incidents, as without any of these flags")
    debug: bool = Field(False, description="say more")
    trace: bool = Field(False, description="say all, with what the libraries say")
    json_lines: bool = Field(False, description="one JSON object per event instead of text")


class OrchestratorSettings(BaseModel):
    """Where the run is scheduled; empty: the subnet owner's axon on chain."""

    url: str = Field("", description="http://HOST:PORT of the orchestrator")
    hotkey: str = Field("", description="ss58 address that must sign round documents")


class MachineSettings(BaseModel):
    """This machine."""

    data_dir: Path = Field(Path("~/.liquid"), description="folder of journals, snapshots and the ledger")
    device: str = Field("auto", description="torch device of the tensors; auto: the run's kind")


class SdkVariables(PydanticBaseSettingsSource):
    """Environment variables of the SDK and btcli; empty ones count as absent."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Not used: the variables name parts of fields."""
        raise NotImplementedError

    def __call__(self) -> dict[str, Any]:
        """What is set, by field."""
        found: dict[str, Any] = {}
        for variable, (part, name) in SDK_VARIABLES.items():
            if value := os.environ.get(variable):
                found.setdefault(part, {})[name] = value
        return found


class OwnEndpoint(PydanticBaseSettingsSource):
    """Another source, of which a network without an endpoint rules out the endpoints of the sources below it."""

    def __init__(self, settings_cls: type[BaseSettings], source: PydanticBaseSettingsSource) -> None:
        super().__init__(settings_cls)
        self._source = source

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """As the other source's."""
        return self._source.get_field_value(field, field_name)

    def __call__(self) -> dict[str, Any]:
        """What the other source gives."""
        found = self._source()
        chain = found.get("subtensor")
        if isinstance(chain, dict) and "network" in chain:
            found = {**found, "subtensor": {"chain_endpoint": "", **chain}}
        return found


def _existing(file: str) -> Path:
    path = Path(file).expanduser()
    if not path.is_file():
        raise ConfigError(f"{CONFIG_FILE} names {path}, and there is no such file.")
    return path


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
        """Flags (given to ``init``) before the environment before the SDK's variables before the file."""
        file = os.environ.get(CONFIG_FILE)
        toml = (TomlConfigSettingsSource(settings_cls, _existing(file)),) if file else ()
        sources = (init_settings, env_settings, SdkVariables(settings_cls), *toml)
        return tuple(OwnEndpoint(settings_cls, source) for source in sources)

    @property
    def has_chain(self) -> bool:
        """Whether this neuron uses a chain at all."""
        return self.subtensor.network != NO_CHAIN

    @property
    def endpoint(self) -> str:
        """Network name or URL of the chain."""
        return self.subtensor.chain_endpoint or self.subtensor.network

    def ignored_variables(self) -> list[str]:
        """Environment variables that name an endpoint which is not used, since something of higher rank says where."""
        names = ("LIQUID_SUBTENSOR__CHAIN_ENDPOINT", "BT_CHAIN_ENDPOINT")
        return [name for name in names if os.environ.get(name, self.endpoint) not in ("", self.endpoint)]

    @property
    def log_level(self) -> int:
        """Level of events that are written."""
        return logging.DEBUG if self.logging.debug or self.logging.trace else logging.INFO


class OrchestratorConfig(NeuronConfig):
    """Settings of the orchestrator."""

    run: str = Field("localnet", description="preset or TOML file of the run")
    stop_after_rounds: int = Field(0, ge=0, description="stop by itself after so many rounds; 0: never")
    relay: bool = Field(True, description="serve a relay for miners that cannot be reached")
    ledger_url: str = Field("", description="SQLAlchemy URL of the ledger; empty: SQLite in the data folder")


def command_line(kind: type[Any], program: str, argv: list[str]) -> CliSettingsSource[Any]:
    """What the flags of ``program`` say; ``--help`` and unknown flags exit."""
    return CliSettingsSource(
        kind, cli_prog_name=f"liquid {program}", cli_parse_args=argv, cli_implicit_flags=True, cli_hide_none_type=True
    )


def parse(kind: type[Any], program: str, argv: list[str]) -> Any:
    """Settings of ``kind`` from flags, environment and file; raises ``ConfigError``; ``--help`` exits."""
    source = command_line(kind, program, argv)
    try:
        return kind(**source())
    except ValidationError as error:
        lines = [f"--{'.'.join(str(part) for part in item['loc'])}: {_plain(item['msg'])}" for item in error.errors()]
        raise ConfigError("; ".join(lines) + ".") from None
    except (SettingsError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"The configuration cannot be read: {error}.") from None


def _plain(message: str) -> str:
    return message.removeprefix("Value error, ")
