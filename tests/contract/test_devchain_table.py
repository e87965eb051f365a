"""The table of operations and tools in docs/chain.md: every cell that says "works" names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
DOCUMENT = HERE.parents[1] / "docs" / "chain.md"
FILES = {"SDK": "test_devchain_sdk.py", "btcli": "test_devchain_tools.py"}
FILES["substrate-interface"] = "test_devchain_substrate.py"


def rows() -> list[dict[str, str]]:
    lines = [line.strip().strip("|") for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    heading, _, *body = [[cell.strip() for cell in line.split(" | ")] for line in lines]
    return [dict(zip(heading, cells, strict=True)) for cells in body]


def defined_in(file: str) -> set[str]:
    tree = ast.parse((HERE / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_every_operation_that_works_names_its_tests() -> None:
    table = rows()
    assert len(table) >= 25
    for row in table:
        for tool, file in FILES.items():
            named = re.findall(r"`(test_\w+)`", row[tool])
            assert bool(named) == row[tool].startswith("works"), (row["operation"], tool)
            assert set(named) <= defined_in(file), (row["operation"], tool)
            assert row[tool], (row["operation"], tool)


def test_every_test_of_a_tool_stands_in_the_table() -> None:
    """A tool's test that no cell names is either a new operation or not one of these files'."""
    named = {name for row in rows() for cell in row.values() for name in re.findall(r"`(test_\w+)`", cell)}
    assert set().union(*map(defined_in, FILES.values())) - named == {"test_btcli_shows_the_subnet"}
