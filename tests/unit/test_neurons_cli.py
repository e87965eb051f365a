"""The command ``liquid`` as a process: what it leaves behind is flushed, and nothing holds its end up."""

from __future__ import annotations

import subprocess
import sys

import pytest

# What comes apart at the interpreter's end (torch, for a second) is stood for by a hook that says when it runs.
PROGRAM = """
import atexit, sys
from neurons import cli
atexit.register(print, "torn down")
def program(argv):
    print("done", end="")
    sys.exit("a reason" if argv == ["says"] else int(argv[0]))
cli.PROGRAMS["test"] = (lambda: program, "")
sys.argv[1:] = ["test", sys.argv[1]]
cli.run()
"""


@pytest.mark.parametrize(("argument", "code", "errors"), [("0", 0, ""), ("78", 78, ""), ("says", 1, "a reason\n")])
def test_a_program_is_gone_once_it_is_done(argument: str, code: int, errors: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, argument], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (code, "done", errors)
