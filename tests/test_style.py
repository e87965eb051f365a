"""The house rules that a machine can check and ruff does not: sizes, docstrings, broad excepts, prints, paths.

Reads the sources without importing them. The numbers and the list of exceptions stand at the top.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOPS = ("subnet", "neurons", "incentives", "scripts", "tests")
PRINTING_TOPS = ("neurons", "scripts", "tests")

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_CONSTRUCTOR_PARAMETERS = 7

# The three places that may catch everything, one handler each; each logs and counts.
BROAD_EXCEPT: dict[str, str] = {
    "subnet/net/gate.py": "request middleware",
    "neurons/base.py": "task supervisor",
}
MAX_BROAD_EXCEPT_PLACES = 3

VAGUE_FILES = ("utils.py", "util.py", "helpers.py", "common.py", "misc.py")

# Put together here so that this file does not hold the paths that it looks for.
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:" + "|".join(("work", "root", "farm", "tmp/bash_jobs")) + r")\b[/.]?")
TEXT_SUFFIXES = (".py", ".md", ".toml", ".txt", ".yml", ".sh", "")
TEXT_TOPS = (*TOPS, "docs", ".ci")


def python_files() -> Iterator[Path]:
    for top in TOPS:
        yield from sorted((ROOT / top).rglob("*.py"))


def text_files() -> Iterator[Path]:
    for top in TEXT_TOPS:
        yield from sorted((ROOT / top).rglob("*"))
    yield from sorted(ROOT.glob("*"))


def size_problems(name: str, source: str, tree: ast.Module) -> Iterator[str]:
    lines = len(source.splitlines())
    if lines > MAX_FILE_LINES:
        yield f"{name}: {lines} lines; split it where there are two reasons to change"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                yield f"{name}:{node.lineno}: {node.name} has {length} lines"
            count = len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs) - 1
            if node.name == "__init__" and count > MAX_CONSTRUCTOR_PARAMETERS:
                yield f"{name}:{node.lineno}: the constructor has {count} parameters"


def is_broad(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(kind, ast.Name) and kind.id in ("Exception", "BaseException") for kind in caught)


def except_problems(name: str, tree: ast.Module) -> Iterator[str]:
    broad = [node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and is_broad(node)]
    for handler in broad[1 if name in BROAD_EXCEPT else 0 :]:
        yield f"{name}:{handler.lineno}: catches everything"


def call_problems(name: str, tree: ast.Module) -> Iterator[str]:
    top = name.split("/")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called == "print" and top not in PRINTING_TOPS:
                yield f"{name}:{node.lineno}: print in library code; make it an event"
            if called == "time.sleep" and top == "tests":
                yield f"{name}:{node.lineno}: a test sleeps; wait for an event"
        if isinstance(node, ast.ImportFrom) and node.module == "time" and top == "tests":
            yield from (f"{name}:{node.lineno}: a test sleeps" for alias in node.names if alias.name == "sleep")


def problems(name: str, source: str) -> list[str]:
    """What breaks a rule in one file. name: path from the root with forward slashes"""
    tree = ast.parse(source)
    found = [*size_problems(name, source, tree), *except_problems(name, tree), *call_problems(name, tree)]
    if not ast.get_docstring(tree):
        found.append(f"{name}: no module docstring")
    if name.split("/")[-1] in VAGUE_FILES:
        found.append(f"{name}: name it after its subject")
    return found


def path_problems(name: str, text: str) -> list[str]:
    return [
        f"{name}:{number}: path of one machine"
        for number, line in enumerate(text.splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]


def test_sources_keep_the_house_rules() -> None:
    found = []
    for path in python_files():
        found += problems(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
    assert found == []


def test_no_paths_of_one_machine() -> None:
    found = []
    for path in text_files():
        if path.is_file() and path.suffix in TEXT_SUFFIXES:
            found += path_problems(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
    assert found == []


def test_broad_excepts_stay_in_three_places() -> None:
    assert len(BROAD_EXCEPT) <= MAX_BROAD_EXCEPT_PLACES


def test_problems_sees_each_kind() -> None:
    body = "\n".join(["    x = 1"] * MAX_FUNCTION_LINES)
    parameters = ", ".join(f"p{number}" for number in range(MAX_CONSTRUCTOR_PARAMETERS + 1))
    doc = '"""Doc."""\n'
    catch_all = "try:\n    pass\nexcept (OSError, Exception):\n    pass\n"
    bad = {
        "subnet/a.py": "x = 1",
        "subnet/b.py": doc + "x = 1\n" * MAX_FILE_LINES,
        "subnet/c.py": doc + f"def f():\n{body}\n",
        "subnet/d.py": doc + f"class C:\n    def __init__(self, {parameters}): ...\n",
        "subnet/e.py": doc + catch_all,
        "subnet/net/gate.py": doc + catch_all + catch_all,
        "incentives/f.py": doc + "print(1)",
        "tests/test_g.py": doc + "import time\ntime.sleep(1)",
        "tests/test_h.py": doc + "from time import sleep",
        "subnet/utils.py": doc,
    }
    for name, source in bad.items():
        assert len(problems(name, source)) == 1, name


def test_problems_lets_good_files_pass() -> None:
    doc = '"""Doc."""\n'
    assert problems("subnet/net/gate.py", doc + "try:\n    pass\nexcept Exception:\n    pass\n") == []
    assert problems("scripts/bench_x.py", doc + "print(1)") == []
    assert problems("subnet/a.py", doc + "import time\ntry:\n    time.sleep(1)\nexcept OSError:\n    pass\n") == []


def test_paths_of_one_machine_are_seen() -> None:
    assert path_problems("a.md", "see /" + "work/main and /" + "root/x")
    assert path_problems("a.md", "network/work/items, https://example.org/root") == []
