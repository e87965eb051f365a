"""Every setting by flag, environment and file, in that order; and the list of flags, which operators rely on."""

from __future__ import annotations

from argparse import SUPPRESS
from pathlib import Path
from typing import Any

import pytest
from bittensor.settings import NETWORKS as SDK_NETWORKS
from pydantic import BaseModel

from neurons.base import EXIT_AGAIN, EXIT_CRASHED, EXIT_REFUSED
from neurons.settings import (
    CONFIG_FILE,
    NETWORKS,
    NO_CHAIN,
    SDK_VARIABLES,
    NeuronConfig,
    OrchestratorConfig,
    command_line,
    parse,
)
from subnet.errors import ConfigError
from subnet.log import Event

ROOT = Path(__file__).resolve().parents[2]

SHARED_FLAGS = [
    "--axon.external_ip",
    "--axon.external_port",
    "--axon.ip",
    "--axon.port",
    "--axon.relay",
    "--help",
    "--logging.debug",
    "--logging.info",
    "--logging.json_lines",
    "--logging.trace",
    "--netuid",
    "--neuron.data_dir",
    "--neuron.device",
    "--no-logging.debug",
    "--no-logging.info",
    "--no-logging.json_lines",
    "--no-logging.trace",
    "--orchestrator.hotkey",
    "--orchestrator.url",
    "--subtensor.chain_endpoint",
    "--subtensor.network",
    "--wallet.hotkey",
    "--wallet.name",
    "--wallet.path",
    "-h",
]
OWNERS_FLAGS = ["--ledger_url", "--no-relay", "--relay", "--run", "--stop_after_rounds"]
VARIABLES = {path: variable for variable, path in SDK_VARIABLES.items()}

# What flag, LIQUID_, BT_ and file say of a setting, for settings that do not take any text.
VALUES: dict[str, tuple[str, str, str, str]] = {
    "subtensor.network": ("ws://flag", "ws://env", "ws://sdk", "ws://file"),
    "subtensor.chain_endpoint": ("ws://flag", "ws://env", "ws://sdk", "ws://file"),
    "axon.relay": ("always", "auto", "", "never"),
    "relay": ("False", "True", "", "False"),  # on, unless told otherwise
}


def leaves(kind: type[BaseModel], above: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], type]]:
    """Every setting's path and type; one of several words is text."""
    found: list[tuple[tuple[str, ...], type]] = []
    for name, field in kind.model_fields.items():
        annotation = field.annotation if isinstance(field.annotation, type) else str
        path = (*above, name)
        found += leaves(annotation, path) if issubclass(annotation, BaseModel) else [(path, annotation)]
    return found


SETTINGS = leaves(OrchestratorConfig)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (*SDK_VARIABLES, CONFIG_FILE):
        monkeypatch.delenv(variable, raising=False)


def configured(*argv: str) -> Any:
    return parse(OrchestratorConfig, "orchestrator", list(argv))


def value_of(config: Any, path: tuple[str, ...]) -> str:
    for name in path:
        config = getattr(config, name)
    return str(config)


def values(path: tuple[str, ...], kind: type) -> tuple[str, str, str, str]:
    others = {int: ("11", "12", "13", "14"), bool: ("True", "False", "", "True")}
    return VALUES.get(".".join(path), others.get(kind, ("flag", "env", "sdk", "file")))


@pytest.mark.parametrize(("path", "kind"), SETTINGS, ids=[".".join(path) for path, _ in SETTINGS])
def test_flag_before_environment_before_sdk_before_file_before_default(
    path: tuple[str, ...], kind: type, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    flag, env, sdk, file = values(path, kind)
    default = value_of(configured(), path)
    assert len({flag, env}) == 2
    toml = tmp_path / "neuron.toml"
    head = f"[{'.'.join(path[:-1])}]\n" if path[:-1] else ""
    toml.write_text(head + f"{path[-1]} = {file if kind is int else file.lower() if kind is bool else repr(file)}\n")
    monkeypatch.setenv(CONFIG_FILE, str(toml))
    assert value_of(configured(), path) == file != default
    if path in VARIABLES:
        monkeypatch.setenv(VARIABLES[path], sdk)
        assert value_of(configured(), path) == sdk
    monkeypatch.setenv("LIQUID_" + "__".join(path).upper(), env)
    assert value_of(configured(), path) == env
    name = ".".join(path)
    argument = f"--{'' if flag == 'True' else 'no-'}{name}" if kind is bool else f"--{name}={flag}"
    assert value_of(configured(argument), path) == flag


def test_parts_of_one_group_may_come_from_different_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIQUID_WALLET__HOTKEY", "hot")
    monkeypatch.setenv("BT_WALLET", "cold")
    config = configured("--wallet.path", "wallets")
    assert (config.wallet.name, config.wallet.hotkey, str(config.wallet.path)) == ("cold", "hot", "wallets")


def test_who_names_a_network_is_not_sent_to_an_endpoint_of_lower_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BT_CHAIN_ENDPOINT", "ws://elsewhere")
    assert configured().endpoint == "ws://elsewhere"
    assert configured().ignored_variables() == []
    assert configured("--subtensor.network", "test").endpoint == "test"
    assert configured("--subtensor.network", "test").ignored_variables() == ["BT_CHAIN_ENDPOINT"]
    monkeypatch.setenv("LIQUID_SUBTENSOR__NETWORK", "local")
    assert configured().endpoint == "local"
    assert configured("--subtensor.chain_endpoint", "ws://mine").endpoint == "ws://mine"


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--subtensor.network", "fin"], "known are finney, test, local"),
        (["--subtensor.network", "127.0.0.1:9944"], "ws://127.0.0.1:9944"),
        (["--subtensor.chain_endpoint", "https://node"], "with its scheme"),
        (["--axon.port", "99999"], "--axon.port: "),
        (["--netuid", "one"], "--netuid: "),
    ],
)
def test_what_is_wrong_is_named(argv: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        configured(*argv)


def test_a_configuration_file_that_is_not_there_or_not_toml_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "neuron.toml"
    monkeypatch.setenv(CONFIG_FILE, str(file))
    with pytest.raises(ConfigError, match="no such file"):
        configured()
    file.write_text("netuid = ")
    with pytest.raises(ConfigError, match="cannot be read"):
        configured()
    file.write_text("netiud = 3")
    with pytest.raises(ConfigError, match="netiud"):
        configured()


def test_an_unknown_flag_ends_the_program() -> None:
    with pytest.raises(SystemExit) as ended:
        configured("--wallet.nmae", "x")
    assert ended.value.code == 2


def flags(kind: type[NeuronConfig]) -> list[str]:
    """All that ``--help`` shows."""
    actions = command_line(kind, "program", []).root_parser._actions
    return sorted(option for action in actions if action.help != SUPPRESS for option in action.option_strings)


def test_the_flags_are_these() -> None:
    assert flags(NeuronConfig) == SHARED_FLAGS
    assert [flag for flag in flags(OrchestratorConfig) if flag not in flags(NeuronConfig)] == OWNERS_FLAGS


def test_every_flag_variable_and_exit_code_is_documented() -> None:
    text = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    documented = [flag for flag in (*SHARED_FLAGS, *OWNERS_FLAGS) if flag.startswith("--") and "--no-" not in flag]
    names = [*documented, *SDK_VARIABLES]
    assert [name for name in names if f"`{name}`" not in text and name != "--help"] == []
    assert [code for code in (EXIT_CRASHED, EXIT_AGAIN, EXIT_REFUSED) if f"| {code} |" not in text] == []
    told = [name.value for name in Event if name.startswith("chain.")]
    assert [name for name in told if f"`{name}`" not in text] == []


def test_the_networks_are_those_of_the_sdk() -> None:
    assert set(NETWORKS) == set(SDK_NETWORKS)
    assert NO_CHAIN not in SDK_NETWORKS
