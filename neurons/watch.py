"""``liquid watch``: who earned what on chain, epoch by epoch, for anybody who wants to check; needs no wallet.

The shell: reads the chain, walks back over epochs that ended meanwhile, prints. Starts with the last finished epoch.
Not here: the account of an epoch (``subnet.watch.emissions``). The flags that all programs share come from
``neurons.settings``, so that environment and file count as well.
Invariants: epochs come in order, each once; one that the node cannot tell any more is said to be missed; a chain that
does not answer is asked again, except at the start.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator

from rich.console import Console
from rich.live import Live
from rich.text import Text

from neurons.base import run_program
from neurons.settings import NeuronConfig, parse
from subnet.chain.emissions import EpochFacts, EpochReader, StateGone, Tip
from subnet.chain.live import LiveChain
from subnet.errors import ChainError, Unavailable
from subnet.types import Hotkey
from subnet.watch import emission_views as views
from subnet.watch.emissions import EpochReport, Missed, only, report

MIN_PAUSE_S, MAX_PAUSE_S = 0.25, 6.0  # between looks; public endpoints take about one request per second
PLAIN_WIDTH = 232  # columns where there is no terminal to ask: a whole row with a whole hotkey
SHARED = ("netuid", "subtensor.network", "subtensor.chain_endpoint")


class Follower:
    """The finished epochs of one subnet, in order."""

    def __init__(self, reader: EpochReader, history: int = 0) -> None:
        """``history``: finished epochs to begin with, before the last one."""
        self._reader = reader
        self._history = history
        self._seen: EpochReport | None = None
        self._seen_epoch: int | None = None  # said to be missed, or shown

    async def look(self) -> tuple[Tip, list[EpochReport | Missed]]:
        """Now, and what has ended since the last look."""
        tip = await self._reader.tip()
        if tip.epoch == (self._seen_epoch or 0):
            return tip, []
        first = max(1, tip.epoch - self._history) if self._seen_epoch is None else self._seen_epoch + 1
        found, earlier = await self._walk(tip, first)
        reports: list[EpochReport | Missed] = []
        oldest = found[0].epoch if found else tip.epoch + 1
        if oldest > first:
            reports.append(Missed(tip.netuid, first, oldest - 1))
        before = self._seen if self._seen is not None and self._seen.epoch == oldest - 1 else None
        if before is None and earlier is not None:
            before = report(earlier)
        for facts in found:
            before = report(facts, before)
            reports.append(before)
        self._seen, self._seen_epoch = before if found else self._seen, tip.epoch
        return tip, reports

    async def _walk(self, tip: Tip, first: int) -> tuple[list[EpochFacts], EpochFacts | None]:
        """Epochs from ``first`` on, as far back as the node can tell; and the one before, if it was never seen."""
        found: list[EpochFacts] = []
        block, epoch = tip.last_epoch_block, tip.epoch
        last_needed = first - 1 if self._seen is None or self._seen.epoch != first - 1 else first
        try:
            while epoch >= max(1, last_needed):
                found.insert(0, await self._reader.epoch(block))
                block, epoch = found[0].previous_block, epoch - 1
        except StateGone:
            pass  # what is missing is said by whoever counts
        if found and found[0].epoch < first:
            return found[1:], found[0]
        return found, None


class Printer:
    """Writes reports in one of three forms."""

    def __init__(self, form: str, hotkey: str) -> None:
        self._form = form
        self._hotkey = Hotkey(hotkey)
        self._console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._is_live = form == "table" and self._console.is_terminal
        self._last: int | None = None
        if form == "csv":
            self._write(views.csv_header())

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def epoch(self, found: EpochReport | Missed) -> None:
        """One epoch, or a gap."""
        if isinstance(found, Missed) and self._form != "json":
            print(views.missed_text(found), file=sys.stderr if self._form == "csv" else sys.stdout, flush=True)
            return
        if isinstance(found, EpochReport) and self._hotkey:
            found = only(found, self._hotkey)
        if self._form == "json":
            self._write(views.json_lines(found))
        elif isinstance(found, EpochReport) and self._form == "csv":
            self._write(views.csv_lines(found))
        elif isinstance(found, EpochReport):
            has_before = any(row.rank_change is not None for row in found.hotkeys) or self._last == found.epoch - 1
            self._console.print(views.table(found, has_before, self._console.width))
            self._last = found.epoch

    def now(self, tip: Tip) -> None:
        """The line below the tables; on a terminal only."""
        if self._is_live:
            self._live.start()
            self._live.update(Text(views.footer(tip)), refresh=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._live.stop()


async def looks(follower: Follower) -> AsyncIterator[tuple[Tip, list[EpochReport | Missed]]]:
    """Looks for ever, a block apart; a chain that is away for a moment is asked again."""
    has_answered, pause_s = False, MIN_PAUSE_S
    while True:
        try:
            look = await follower.look()
        except (ChainError, Unavailable):
            if not has_answered:
                raise
            pause_s = MAX_PAUSE_S
        else:
            has_answered, pause_s = True, min(max(look[0].block_time_s, MIN_PAUSE_S), MAX_PAUSE_S)
            yield look
        await asyncio.sleep(pause_s)


async def _watch(config: NeuronConfig, options: argparse.Namespace) -> None:
    chain = LiveChain(config.endpoint, config.netuid, None)
    printer = Printer(options.form, options.hotkey)
    shown = 0
    try:
        async for tip, found in looks(Follower(EpochReader(chain, config.netuid), options.history)):
            for item in found:
                printer.epoch(item)
                shown += isinstance(item, EpochReport)
                if shown == options.epochs:
                    return
            printer.now(tip)
    except BrokenPipeError:  # whoever read this has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        printer.close()
        await chain.close()


def arguments(argv: list[str]) -> argparse.Namespace:
    """Flags of ``liquid watch``; the shared ones are None where not given."""
    parser = argparse.ArgumentParser(
        prog="liquid watch", description="Who earned what on chain, epoch by epoch, to the rao. Needs no wallet."
    )
    parser.add_argument("--netuid", help="number of the subnet")
    parser.add_argument("--subtensor.network", help="finney, test, local, or a ws:// or wss:// URL")
    parser.add_argument("--subtensor.chain_endpoint", help="URL that replaces the network's own")
    parser.add_argument("--epochs", type=int, default=0, help="stop after so many; 0: never (default)")
    parser.add_argument("--history", type=int, default=0, help="begin so many epochs before the last finished one")
    parser.add_argument("--hotkey", default="", metavar="SS58", help="show this one only")
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--json", dest="form", action="store_const", const="json", help="a JSON object per epoch and line"
    )
    form.add_argument("--csv", dest="form", action="store_const", const="csv", help="a line per epoch and hotkey")
    parser.set_defaults(form="table")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """``liquid watch``."""
    options = arguments(argv)
    given = [f"--{name}={value}" for name in SHARED if (value := vars(options)[name]) is not None]
    config: NeuronConfig = parse(NeuronConfig, "watch", given)
    return run_program(config, _watch(config, options))
