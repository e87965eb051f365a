"""``liquid PROGRAM ARGS``: the one command of the package.

Not here: the programs. Each is imported only when it is asked for, so that one starts without loading the others.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from subnet.errors import ConfigError, LiquidError

PARENT = "LIQUID_PARENT"  # set by a localnet for its programs
SUPERVISED = ("miner", "validator", "orchestrator")  # their exit codes say whether to start them again
Main = Callable[[list[str]], int]


def _miner() -> Main:
    from neurons.miner import main

    return main


def _validator() -> Main:
    from neurons.validator import main

    return main


def _orchestrator() -> Main:
    from neurons.orchestrator import main

    return main


def _cheat() -> Main:
    from neurons.miner import main as miner
    from subnet.simulate.cheats import replica_class

    def main(argv: list[str]) -> int:
        if not argv:
            raise SystemExit("usage: liquid cheat KIND MINER-ARGS")
        return miner(argv[1:], replica_class(argv[0]))

    return main


def _devchain() -> Main:
    from subnet.localnet.devchain.cli import main

    return main


def _watch() -> Main:
    from neurons.watch import main

    return main


def _localnet() -> Main:
    from subnet.localnet.network import main

    return main


PROGRAMS: dict[str, tuple[Callable[[], Main], str]] = {
    "miner": (_miner, "train the stage that the orchestrator assigns"),
    "validator": (_validator, "replay random pieces of miners' journals and set weights on chain"),
    "orchestrator": (_orchestrator, "schedule a run (for the subnet's owner)"),
    "watch": (_watch, "who earned what on chain, epoch by epoch, to the rao"),
    "localnet": (_localnet, "all of it on this machine"),
    "devchain": (_devchain, "a development chain"),
    "cheat": (_cheat, "a dishonest miner, for experiments on a localnet"),
}


def usage() -> str:
    """What ``liquid`` alone prints."""
    lines = [f"  {name:13} {text}" for name, (_, text) in PROGRAMS.items()]
    return "usage: liquid PROGRAM ARGS    (liquid PROGRAM --help for its flags)\n\n" + "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one program; 2 for a wrong call, 78 for a neuron's unusable configuration, 1 for any other named failure."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] not in PROGRAMS:
        wrong = bool(arguments) and arguments[0] not in ("-h", "--help")
        print(usage(), file=sys.stderr if wrong else sys.stdout)
        return 2 if wrong or not arguments else 0
    load, _ = PROGRAMS[arguments[0]]
    if PARENT in os.environ:
        from subnet.localnet.processes import die_with_parent

        die_with_parent()
    try:
        return load()(arguments[1:])
    except LiquidError as error:
        print(f"liquid {arguments[0]}: {error}", file=sys.stderr)
        is_final = isinstance(error, ConfigError) and arguments[0] in SUPERVISED
        return os.EX_CONFIG if is_final else 1


def run() -> NoReturn:
    """``main`` as a process, gone as soon as it returns.

    An interpreter that has torch loaded takes a second of processor time to come apart: several programs that stop
    together on a busy machine outlast the patience of whoever told them to. By now all is closed and written.
    """
    try:
        code = main()
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    run()
