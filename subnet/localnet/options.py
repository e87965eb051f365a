"""What ``liquid localnet`` can be told, from the command line.

Not here: settings of the run itself beyond these few (write a TOML file and use ``liquid orchestrator`` for those).
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path

from subnet.errors import ConfigError

MAX_PORT = 65535
DEFAULT_ROUNDS = 8  # a little over three minutes on two cores
CHEATS = ("noise", "random-grads", "scaled-pseudo-grad", "wrong-shard", "silence")  # subnet.simulate.cheats.KINDS


@dataclass(frozen=True)
class Options:
    """One network on this machine. ``rounds`` None: until told to stop."""

    stages: int
    replicas: int
    validators: int
    rounds: int | None
    seed: int
    boundary: str
    port: int
    cheats: dict[str, str]  # miner -> kind
    kills: dict[str, int]  # miner -> round
    json_line: bool
    chain: bool
    folder: Path | None
    keep: bool
    settings: dict[str, object]  # of the RunConfig, by dotted name
    relayed: tuple[str, ...] = ()  # miners that are reached through the relay only

    @property
    def miners(self) -> list[str]:
        """Names of the miners."""
        return [f"miner-{number}" for number in range(1, self.stages * self.replicas + 1)]

    @property
    def validator_names(self) -> list[str]:
        """Names of the validators."""
        return [f"validator-{number}" for number in range(1, self.validators + 1)]


def _pairs(items: list[str], mark: str, what: str) -> list[tuple[str, str]]:
    pairs = []
    for item in items:
        left, found, right = item.partition(mark)
        if not (left and found and right):
            raise ConfigError(f"{item!r} is not of the form {what}.")
        pairs.append((left, right))
    return pairs


def _by_miner(pairs: list[tuple[str, str]], flag: str) -> dict[str, str]:
    """(miner, value) by miner; a miner named twice would lose one of its values."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ConfigError(f"{flag} names a miner twice.")
    return found


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def parse_options(argv: list[str]) -> Options:
    """Options from flags; raises ``ConfigError``; ``--help`` exits."""
    parser = argparse.ArgumentParser(
        prog="liquid localnet", description="A chain, an orchestrator, miners and validators on this machine."
    )
    add = parser.add_argument
    add("--stages", type=int, default=3, help="stages that the model is cut into")
    add("--replicas", type=int, default=2, help="miners per stage")
    add("--validators", type=int, default=2, help="validators")
    add("--rounds", type=int, default=DEFAULT_ROUNDS, help="rounds until it stops by itself")
    add("--forever", action="store_true", help="run until Ctrl-C")
    add("--seed", type=int, default=1, help="seed of parameters, data order and routing")
    kinds = ("none", "int8", "anchored", "resbm")
    add("--boundary", choices=kinds, default="anchored", help="what crosses between stages")
    add("--port", type=int, default=0, help="port of the chain; 0 takes a free one")
    add("--cheat", action="append", default=[], metavar="KIND:MINER", help="let a miner cheat, as in noise:miner-2")
    add("--kill", action="append", default=[], metavar="MINER@ROUND", help="kill a miner in a round and restart it")
    add("--relay", action="append", default=[], metavar="MINER", help="reach a miner through the relay; or all")
    add("--json", action="store_true", help="print the summary as one JSON object on the last line")
    add("--no-chain", action="store_true", help="without chain, weights and pay")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="a RunConfig setting, as in inner.beta1=0.8")
    add("--dir", type=Path, help="keep data and logs in this folder, which must not hold a network yet")
    add("--keep-dir", action="store_true", help="keep data and logs in the temporary folder, and name it")
    parsed = parser.parse_args(argv)
    kills = _by_miner(_pairs(parsed.kill, "@", "MINER@ROUND"), "--kill")
    if any(not number.isdecimal() for number in kills.values()):
        raise ConfigError("--kill needs a round's number, as in miner-1@2.")
    options = Options(
        stages=parsed.stages,
        replicas=parsed.replicas,
        validators=parsed.validators,
        rounds=None if parsed.forever else parsed.rounds,
        seed=parsed.seed,
        boundary=parsed.boundary,
        port=parsed.port,
        cheats=_by_miner([(miner, kind) for kind, miner in _pairs(parsed.cheat, ":", "KIND:MINER")], "--cheat"),
        kills={miner: int(number) for miner, number in kills.items()},
        json_line=parsed.json,
        chain=not parsed.no_chain,
        folder=parsed.dir,
        keep=parsed.keep_dir or parsed.dir is not None,
        settings={name: _value(text) for name, text in _pairs(parsed.set, "=", "NAME=VALUE")},
        relayed=tuple(parsed.relay),
    )
    if "all" in options.relayed:
        options = replace(options, relayed=tuple(options.miners))
    _check(options)
    return options


def _check(options: Options) -> None:
    if min(options.stages, options.replicas) < 1 or options.validators < 0:
        raise ConfigError("A network needs at least one stage and one replica.")
    if options.rounds is not None and options.rounds < 1:
        raise ConfigError("--rounds must be at least 1; --forever runs until Ctrl-C.")
    if not 0 <= options.port <= MAX_PORT:
        raise ConfigError(f"--port must be from 0 to {MAX_PORT}.")
    strange = sorted(set(options.cheats.values()) - set(CHEATS))
    if strange:
        raise ConfigError(f"There is no cheat {', '.join(strange)}; known: {', '.join(CHEATS)}.")
    late = sorted(miner for miner, at in options.kills.items() if options.rounds is not None and at >= options.rounds)
    if late:
        raise ConfigError(f"{', '.join(late)} would be killed after the last of {options.rounds} rounds, from 0.")
    unknown = sorted({*options.cheats, *options.kills, *options.relayed} - set(options.miners))
    if unknown:
        raise ConfigError(f"There is no {', '.join(unknown)}; miners are {options.miners[0]} to {options.miners[-1]}.")
