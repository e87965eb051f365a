"""Children of a localnet: they die when told to, are named when they die unasked, and none is left."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from subnet.localnet.processes import Child, ChildFailed, Processes

WAITING = "print('up', flush=True); import signal; signal.pause()"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {WAITING}"


async def child(processes: Processes, folder: Path, name: str, program: str, *, may_end: bool = False) -> Child:
    """A child that runs ``program`` and has said that it is up, if it says anything."""
    log = folder / f"{name}.log"
    with log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, stderr=errors, start_new_session=True
        )
    assert process.stdout is not None
    await process.stdout.readline()
    made = processes.children[name] = Child(name, process, log, may_end=may_end)
    return made


def test_a_child_that_dies_unasked_is_named_with_the_end_of_its_log(tmp_path: Path) -> None:
    async def main() -> None:
        processes = Processes(tmp_path)
        started = await processes.start("nobody", ["no-such-program"])
        await started.process.wait()
        with pytest.raises(ChildFailed, match=r"(?s)nobody ended with 2:.*usage: liquid"):
            processes.check()
        with pytest.raises(ChildFailed, match=r"(?s)nobody did not start:.*usage: liquid"):
            await processes.listening(started)

    asyncio.run(main())


def test_an_unasked_end_is_a_failure_whatever_its_code(tmp_path: Path) -> None:
    async def main() -> None:
        processes = Processes(tmp_path)
        ended = await child(processes, tmp_path, "quitter", "pass")
        await ended.process.wait()
        with pytest.raises(ChildFailed, match="quitter ended with 0"):
            processes.check()

    asyncio.run(main())


@pytest.mark.parametrize(("program", "is_well"), [("pass", True), ("raise SystemExit(3)", False)])
def test_who_may_end_must_end_well(tmp_path: Path, program: str, is_well: bool) -> None:
    async def main() -> None:
        processes = Processes(tmp_path)
        await child(processes, tmp_path, "validator-1", program, may_end=True)
        await child(processes, tmp_path, "miner-1", WAITING)
        await processes.ended()  # does not wait for the miner
        if is_well:
            processes.check()
        else:
            with pytest.raises(ChildFailed, match="validator-1 ended with 3"):
                processes.check()
        assert await processes.stop() == []

    asyncio.run(main())


def test_a_killed_child_is_gone_at_once_and_is_no_failure(tmp_path: Path) -> None:
    async def main() -> None:
        processes = Processes(tmp_path)
        victim = await child(processes, tmp_path, "miner-1", STUBBORN)
        await processes.kill("miner-1")
        assert victim.process.returncode == -signal.SIGKILL
        processes.check()

    asyncio.run(main())


def test_stop_terminates_who_listens_kills_who_does_not_and_reaps_all(tmp_path: Path) -> None:
    async def main() -> None:
        processes = Processes(tmp_path, stop_timeout_s=0.2)
        meek = await child(processes, tmp_path, "meek", WAITING)
        stubborn = await child(processes, tmp_path, "stubborn", STUBBORN)
        assert await processes.stop() == ["stubborn"]
        assert meek.process.returncode == -signal.SIGTERM
        assert stubborn.process.returncode == -signal.SIGKILL
        processes.check()
        assert await processes.stop() == []

    asyncio.run(main())


def test_stop_of_some_leaves_the_others(tmp_path: Path) -> None:
    async def main() -> None:
        processes = Processes(tmp_path)
        first = await child(processes, tmp_path, "first", WAITING)
        second = await child(processes, tmp_path, "second", WAITING)
        await processes.stop(["first"])
        assert first.process.returncode is not None
        assert second.process.returncode is None
        await processes.stop()
        assert second.process.returncode is not None

    asyncio.run(main())


def test_a_stop_that_is_cancelled_leaves_nobody_behind(tmp_path: Path) -> None:
    async def main() -> None:
        processes = Processes(tmp_path, stop_timeout_s=60.0)
        stubborn = await child(processes, tmp_path, "stubborn", STUBBORN)
        stopping = asyncio.create_task(processes.stop())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        await asyncio.wait_for(stubborn.process.wait(), 10.0)
        assert stubborn.process.returncode == -signal.SIGKILL

    asyncio.run(main())
