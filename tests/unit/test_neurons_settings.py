"""Operators' settings: where they come from, which wins, and what a wrong one says."""

from __future__ import annotations

from pathlib import Path

import pytest

from neurons.settings import NeuronConfig, OrchestratorConfig, parse
from subnet.errors import ConfigError

# Flag, Liquid's variable, Bittensor's variable, place in a TOML file.
ALL_FORMS = [
    ("subtensor.network", "LIQUID_SUBTENSOR__NETWORK", "BT_NETWORK"),
    ("subtensor.chain_endpoint", "LIQUID_SUBTENSOR__CHAIN_ENDPOINT", "BT_CHAIN_ENDPOINT"),
    ("wallet.name", "LIQUID_WALLET__NAME", "BT_WALLET"),
    ("wallet.hotkey", "LIQUID_WALLET__HOTKEY", "BT_WALLET_HOTKEY"),
    ("wallet.path", "LIQUID_WALLET__PATH", "BT_WALLET_PATH"),
]
FLAGS = {
    *("--netuid", "--wallet.path", "--wallet.name", "--wallet.hotkey", "--subtensor.network"),
    *(
        "--subtensor.chain_endpoint",
        "--axon.ip",
        "--axon.port",
        "--axon.external_ip",
        "--axon.external_port",
        "--axon.relay",
    ),
    *("--logging.debug", "--logging.json_lines", "--orchestrator.url", "--orchestrator.hotkey"),
    *("--neuron.data_dir", "--neuron.device"),
}


def read(config: NeuronConfig, path: str) -> str:
    section, field = path.split(".")
    return str(getattr(getattr(config, section), field))


@pytest.mark.parametrize(("path", "ours", "theirs"), ALL_FORMS)
def test_a_flag_wins_over_our_variable_over_bittensors_over_the_file_over_the_default(
    path: str, ours: str, theirs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [f"ws://{name}" for name in ("flag", "ours", "theirs", "file")]  # good for every one of them
    section, field = path.split(".")
    file = tmp_path / "liquid.toml"
    file.write_text(f'[{section}]\n{field} = "ws://file"\n')
    monkeypatch.setenv("LIQUID_CONFIG", str(file))
    monkeypatch.setenv(theirs, "ws://theirs")
    monkeypatch.setenv(ours, "ws://ours")
    found = [read(parse(NeuronConfig, "miner", [f"--{path}", "ws://flag"]), path)]
    for name in (None, ours, theirs):
        if name is not None:
            monkeypatch.delenv(name)
        found.append(read(parse(NeuronConfig, "miner", []), path))
    assert found == [str(Path(value)) if field == "path" else value for value in values]
    monkeypatch.delenv("LIQUID_CONFIG")
    assert not read(parse(NeuronConfig, "miner", []), path).startswith("ws:")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--subtensor.network", "fineney"], "known are finney, test, archive, devnet, local"),
        (["--subtensor.network", "127.0.0.1:9944"], "ws:// and wss://"),
        (["--subtensor.chain_endpoint", "http://127.0.0.1"], "ws://HOST:PORT"),
        (["--netuid", "-1"], "--netuid"),
        (["--axon.port", "70000"], "--axon.port"),
    ],
)
def test_a_wrong_setting_is_named_with_what_would_do(argv: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse(NeuronConfig, "miner", argv)


def test_a_file_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIQUID_CONFIG", "/nowhere/liquid.toml")
    with pytest.raises(ConfigError, match=r"/nowhere/liquid\.toml"):
        parse(NeuronConfig, "miner", [])


def test_the_flags_that_operators_rely_on(capsys: pytest.CaptureFixture[str]) -> None:
    """A flag that goes, or a new one, is a decision: change this list with it."""
    for kind, more in ((NeuronConfig, []), (OrchestratorConfig, ["--run", "--stop_after_rounds", "--ledger_url"])):
        with pytest.raises(SystemExit):
            parse(kind, "program", ["--help"])
        text = capsys.readouterr().out
        words = {word.split(",")[0] for word in text.replace("[", " ").split() if word.startswith("--")}
        assert {word for word in words if not word.startswith("--no-")} - {"--help"} == {*FLAGS, *more}
