"""Child processes of a network on one machine: started, watched, stopped, always reaped.

Not here: what they run. Invariants: every child has a session of its own and is killed when this process dies; after
``stop`` nothing is left; a child's standard error goes to a file that is quoted when it dies unasked.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from subnet.errors import LiquidError

START_TIMEOUT_S = 120.0  # ten programs that import torch at once take about half a minute on two cores
STOP_TIMEOUT_S = 5.0  # from the signal to stop until a child is killed
TAIL_LINES = 12
PR_SET_PDEATHSIG = 1  # linux/prctl.h
PARENT = "LIQUID_PARENT"  # environment variable: process id of the network that a program belongs to


class ChildFailed(LiquidError):
    """A program ended although nobody told it to."""

    code = "child_failed"
    remedy = "Its log says why."


def die_with_parent() -> None:
    """In a child: be killed when the network's own process is gone, whatever it died of (Linux only)."""
    parent = os.environ.get(PARENT)
    if parent is not None and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(parent):  # it died before the call
            raise SystemExit(1)


@dataclass
class Child:
    """One program that runs. ``url``: where it said that it listens."""

    name: str
    process: asyncio.subprocess.Process
    log: Path
    url: str = ""
    may_end: bool = False  # by itself, once its work is done
    is_told_to_end: bool = False

    def tail(self) -> str:
        """The last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:])


def cache_environment(folder: Path) -> dict[str, str]:
    """Where bittensor keeps its caches: in the network's folder, not in somebody's home."""
    cache = folder / "cache"
    return {"BITTENSOR_RUNTIME_CACHE_DIR": str(cache), "BTCLI_TOKEN_SYMBOLS_CACHE": str(cache / "symbols.json")}


class Processes:
    """All children of one network."""

    def __init__(self, folder: Path, *, stop_timeout_s: float = STOP_TIMEOUT_S) -> None:
        self._folder = folder
        self._stop_timeout_s = stop_timeout_s
        self.children: dict[str, Child] = {}

    async def start(self, name: str, arguments: Sequence[str | Path], *, may_end: bool = False) -> Child:
        """Start ``liquid ARGUMENTS`` and return at once."""
        log = self._folder / "logs" / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            PARENT: str(os.getpid()),
            **cache_environment(self._folder),
        }
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "neurons.cli",
                *map(str, arguments),
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env=environment,
                start_new_session=True,
            )
        child = self.children[name] = Child(name, process, log, may_end=may_end)
        return child

    async def listening(self, child: Child) -> str:
        """Wait for the line in which a program says where it listens; raises ``ChildFailed``."""
        assert child.process.stdout is not None
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                line = await child.process.stdout.readline()
            child.url = str(json.loads(line)["url"])
        except (TimeoutError, ValueError, KeyError):
            raise ChildFailed(f"{child.name} did not start:\n{child.tail()}\n") from None
        return child.url

    def check(self) -> None:
        """Raises ``ChildFailed`` if a program has ended unasked."""
        for child in self.children.values():
            code = child.process.returncode
            if code is not None and not child.is_told_to_end and (code or not child.may_end):
                raise _failed(child)

    async def ended(self) -> None:
        """Wait until all that may end by themselves have ended."""
        await asyncio.gather(*(child.process.wait() for child in self.children.values() if child.may_end))

    async def kill(self, name: str) -> None:
        """The process is gone at this instant, as in a power cut."""
        child = self.children[name]
        child.is_told_to_end = True
        child.process.kill()
        await child.process.wait()

    async def stop(self, names: Sequence[str] | None = None) -> list[str]:
        """Tell children to stop, kill those that do not, reap all; returns the names of the killed ones.

        Cancelled while it waits, it kills what is left at once.
        """
        chosen = [child for name, child in self.children.items() if names is None or name in names]
        for child in chosen:
            child.is_told_to_end = True
            if child.process.returncode is None:
                child.process.terminate()
        return [name for name in await asyncio.gather(*(self._reap(child) for child in chosen)) if name]

    async def _reap(self, child: Child) -> str:
        is_killed = False
        try:
            async with asyncio.timeout(self._stop_timeout_s):
                await child.process.wait()
        except TimeoutError:
            is_killed = True
        finally:
            if child.process.returncode is None:
                child.process.kill()
                await child.process.wait()
        return child.name if is_killed else ""


def _failed(child: Child) -> ChildFailed:
    return ChildFailed(f"{child.name} ended with {child.process.returncode}:\n{child.tail()}\n")
