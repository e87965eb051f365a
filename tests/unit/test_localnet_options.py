"""A localnet's command line: what it takes, and what it refuses before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from subnet.errors import ConfigError
from subnet.localnet.options import CHEATS, DEFAULT_ROUNDS, parse_options
from subnet.simulate.cheats import KINDS


def test_defaults_are_three_stages_of_two_with_two_validators() -> None:
    options = parse_options([])
    assert options.miners == [f"miner-{number}" for number in range(1, 7)]
    assert options.validator_names == ["validator-1", "validator-2"]
    assert (options.rounds, options.port, options.chain, options.keep) == (DEFAULT_ROUNDS, 0, True, False)


def test_every_option_is_taken(tmp_path: Path) -> None:
    line = "--stages 4 --replicas 3 --validators 1 --rounds 5 --seed 7 --boundary none --port 9944 --no-chain --json"
    cheats = ["--cheat", "noise:miner-2", "--cheat", "silence:miner-3"]
    kills = ["--kill", "miner-1@2", "--kill", "miner-12@4"]
    options = parse_options([*line.split(), *cheats, *kills, "--set", "inner.beta1=0.8", "--dir", str(tmp_path)])
    assert (options.stages, options.replicas, options.validators, options.rounds) == (4, 3, 1, 5)
    assert (options.seed, options.boundary, options.port) == (7, "none", 9944)
    assert (options.chain, options.json_line, options.folder, options.keep) == (False, True, tmp_path, True)
    assert options.cheats == {"miner-2": "noise", "miner-3": "silence"}
    assert options.kills == {"miner-1": 2, "miner-12": 4}
    assert options.settings == {"inner.beta1": 0.8}


def test_forever_has_no_last_round_and_a_temporary_folder_can_be_kept() -> None:
    options = parse_options(["--forever", "--keep-dir", "--kill", "miner-1@1000"])
    assert (options.rounds, options.folder, options.keep) == (None, None, True)


def test_miners_are_put_behind_the_relay_by_name_or_all() -> None:
    assert parse_options([]).relayed == ()
    assert parse_options(["--relay", "miner-2"]).relayed == ("miner-2",)
    assert parse_options(["--stages", "2", "--replicas", "1", "--relay", "all"]).relayed == ("miner-1", "miner-2")


def test_the_known_cheats_are_those_that_exist() -> None:
    assert set(CHEATS) == set(KINDS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--stages", "0"], "at least one stage"),
        (["--replicas", "0"], "at least one stage"),
        (["--validators", "-1"], "at least one stage"),
        (["--rounds", "0"], "--rounds"),
        (["--port", "65536"], "--port"),
        (["--cheat", "noise"], "KIND:MINER"),
        (["--cheat", "sloth:miner-1"], "no cheat sloth"),
        (["--cheat", "noise:miner-7"], "no miner-7"),
        (["--cheat", "noise:validator-1"], "no validator-1"),
        (["--cheat", "noise:miner-1", "--cheat", "silence:miner-1"], "twice"),
        (["--kill", "miner-1"], "MINER@ROUND"),
        (["--kill", "miner-1@soon"], "round's number"),
        (["--kill", "miner-1@1", "--kill", "miner-1@2"], "twice"),
        (["--kill", "miner-1@3", "--rounds", "3"], "after the last"),
        (["--set", "inner.beta1"], "NAME=VALUE"),
    ],
)
def test_what_cannot_work_is_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_options(arguments)
