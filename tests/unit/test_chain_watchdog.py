"""A program whose chain client hangs in native code ends with a code that a supervisor acts on, however busy it is."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

from neurons.base import EXIT_AGAIN
from subnet.chain.live import STUCK_AFTER_TICKS, LiveChain
from subnet.chain.watchdog import Watchdog
from subnet.chain.worker import Worker

ROOT = Path(__file__).resolve().parents[2]
LONG_S = 30.0
LAST_RESORT = 1  # what the interpreter ends a program with that holds its lock for ever

BUSY = """
import asyncio, threading
from neurons.base import give_up
from subnet.chain.watchdog import Watchdog
from subnet.chain.worker import Worker

async def nothing(client): pass
async def hang(client): threading.Event().wait()

async def main():
    worker = Worker(object, nothing, nothing)
    def find():
        vitals = worker.vitals()
        return "it hangs" if vitals.num_vain >= 3 else None
    with Watchdog(find, give_up, tick_s=0.02):
        try:
            await worker.call(hang, 0.05)
        except TimeoutError:
            pass
        while True: pass  # and the main loop never gets a turn

asyncio.run(main())
"""

FROZEN = """
import ctypes
from subnet.chain.watchdog import Watchdog

with Watchdog(lambda: None, print, tick_s=0.02, frozen_after_s=0.5):
    ctypes.CDLL(None).usleep(200_000)
    ctypes.PyDLL(None).sleep(60)  # with the interpreter's lock
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LONG_S, check=False)


def test_the_first_reason_is_barked_once() -> None:
    reasons: list[str] = []
    answers, barked = iter([None, None, "one", "two"]), threading.Event()

    def bark(reason: str) -> None:
        reasons.append(reason)
        barked.set()

    with Watchdog(lambda: next(answers), bark, tick_s=0.01):
        assert barked.wait(LONG_S)
    assert reasons == ["one"]


def test_a_hanging_client_ends_even_a_busy_program() -> None:
    done = run(BUSY)
    assert done.returncode == EXIT_AGAIN, done.stderr
    assert "chain.stuck" in done.stderr
    assert "Giving up: it hangs." in done.stderr
    assert "in hang" in done.stderr  # where


def test_native_code_that_holds_the_interpreters_lock_ends_the_program() -> None:
    done = run(FROZEN)
    assert done.returncode == LAST_RESORT, done.stderr
    assert "Timeout" in done.stderr


def test_a_chain_client_that_hangs_is_stuck_after_so_many_ticks() -> None:
    chain, release, blocked = LiveChain("ws://127.0.0.1:9", 1, None), threading.Event(), threading.Event()

    async def hang(client: object) -> None:
        blocked.set()
        release.wait(LONG_S)

    async def main() -> None:
        reading = asyncio.create_task(chain._worker.call(hang, LONG_S))
        assert await asyncio.to_thread(blocked.wait, LONG_S)
        for _ in range(STUCK_AFTER_TICKS):
            assert chain.stuck() is None
        assert "hung" in (chain.stuck() or "")
        release.set()
        await reading

    chain._worker = Worker(object, nothing, nothing)
    try:
        asyncio.run(main())
    finally:
        release.set()
        chain._worker.abandon()


async def nothing(client: object) -> None:
    """A client that connects and closes."""
