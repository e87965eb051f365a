"""``liquid devchain`` as a program: stepped by hand, killed and continued, and its flags."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from websockets.asyncio.client import connect

from subnet.localnet.devchain.chain import DevChain
from tests.contract.devchain_client import Client

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def program(*flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "neurons.cli", "devchain", "--port", "0", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())["url"]
        finally:
            process.kill()


def test_the_program_steps_by_hand_and_continues_after_a_kill(tmp_path: Path) -> None:
    flags = ("--block-time", "0", "--state", str(tmp_path / "chain.db"), "--fault", "unfinalised")

    async def life(process: subprocess.Popen[str], url: str, first: int) -> str:
        async with connect(url) as socket:
            client = Client(socket)
            reader = asyncio.create_task(client.read())
            assert int((await client.ask("chain_getHeader"))["number"], 16) == first
            newest = str(await client.ask("devchain_produce", 5))
            assert await client.ask("chain_getFinalizedHead") == await client.ask("chain_getBlockHash", first)
            process.send_signal(signal.SIGKILL)
            await asyncio.gather(reader, return_exceptions=True)
            return newest

    with program(*flags) as (process, url):
        newest = asyncio.run(life(process, url, 0))
    with program(*flags) as (process, url):
        asyncio.run(life(process, url, 5))
    chain = DevChain(state_file=tmp_path / "chain.db")
    assert chain.head.number == 10
    assert chain.hash_at(5) == newest


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--fault", "typo"), "the switches are"),
        (("--fault", "lag_s=x"), "lag_s is a number"),
        (("--block-time", "-1"), "block_time_s"),
        (("--history", "0"), "history_blocks"),
        (("--state", "no/such/folder/chain.db"), "cannot be used"),
    ],
)
def test_the_program_refuses_flags_that_make_no_sense(flags: tuple[str, ...], reason: str) -> None:
    command = [sys.executable, "-m", "neurons.cli", "devchain", "--port", "0", *flags]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=30, check=False)
    assert done.returncode == 1
    assert reason in done.stderr
    assert "Traceback" not in done.stderr
