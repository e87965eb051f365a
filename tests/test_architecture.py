"""Who may import whom: a ladder of folders, and who may import which outside library.

Reads the sources without importing them, so that an import inside a function or under TYPE_CHECKING counts as well.
The tables below are the rule. A new edge is a change to them, in the same commit as the import, with a reason.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOPS = ("subnet", "neurons", "incentives")

# A folder imports from itself and from every rung above its own line, never from its own rung or below.
# `base` is every module that lies directly in subnet/: records, errors, configuration, time, events.
LADDER: tuple[tuple[str, ...], ...] = (
    ("base",),
    ("codec", "chain", "swarm", "incentives"),
    ("model",),  # a boundary is made of codec's quantisers and says what it puts on the wire
    ("data", "net"),
    ("train",),
    ("replica", "orchestrate", "verify"),
    ("simulate", "localnet", "watch"),
    ("neurons",),
)

# Edges that the ladder would allow and that we don't want.
DENIED: dict[tuple[str, str], str] = {
    ("train", "net"): "train/ computes one stage and knows no network",
}

# What the programs share; neurons.cli may import each of them, inside a function, so that one starts alone.
NEURONS_SHARED = ("neurons.base", "neurons.settings")
NEURONS_ENTRY = "neurons.cli"

# outside library -> which of our modules may import which part of it
FENCED: dict[str, dict[str, tuple[str, ...]]] = {
    "bittensor": {
        "subnet.chain.live": ("bittensor",),
        "subnet.net.auth": ("bittensor.http_auth", "bittensor.keyfiles"),
    },
    "bittensor_core": {"subnet.localnet.devchain": ("bittensor_core",)},
}

# swarm/ is pure: records, time and seed go in, records come out.
PURE_FOLDER = "swarm"
IMPURE = ("torch", "time", "datetime", "asyncio", "socket", "os", "pathlib", "threading", "subprocess", "aiohttp")

VAGUE_NAMES = ("utils", "util", "helpers", "common", "misc")


def sources() -> dict[str, str]:
    """Module name -> source text, for all our packages; a package goes by its own name."""
    found = {}
    for top in TOPS:
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text(encoding="utf-8")
    return found


def folder(module: str) -> str:
    """The line of the ladder that a module stands on."""
    parts = module.split(".")
    if parts[0] != "subnet":
        return parts[0]
    known = {name for rung in LADDER for name in rung}
    return parts[1] if len(parts) > 2 or (len(parts) == 2 and parts[1] in known) else "base"


def rung(name: str) -> int | None:
    return next((index for index, names in enumerate(LADDER) if name in names), None)


def imports(source: str) -> Iterator[tuple[str, bool]]:
    """Each imported dotted name (module, or module.name) and whether the import runs at module level.

    A relative import is given with its leading dots.
    """
    tree = ast.parse(source)
    nested = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) not in nested
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield f"{'.' * node.level}{node.module or ''}.{alias.name}", id(node) not in nested


def within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def resolve(name: str, modules: Mapping[str, str]) -> str:
    """The module of ours that a dotted name stands for: its longest prefix that is one, else the name itself."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        if ".".join(parts[:length]) in modules:
            return ".".join(parts[:length])
    return name


def graph(modules: Mapping[str, str]) -> dict[str, set[str]]:
    """Imports among our own modules."""
    return {
        module: {resolve(name, modules) for name, _ in imports(source) if name.split(".")[0] in TOPS} - {module}
        for module, source in modules.items()
    }


def own_edge_problem(module: str, target: str, at_module_level: bool) -> str | None:
    here, there = folder(module), folder(target)
    if here == "neurons" and there == "neurons":
        if target in ("neurons", *NEURONS_SHARED):
            return None
        if module != NEURONS_ENTRY:
            return f"{module} imports {target}: programs never import each other"
        return f"{module} imports {target} at module level: do it in a function" if at_module_level else None
    if here == there:
        return None
    if (here, there) in DENIED:
        return f"{module} imports {target}: {DENIED[here, there]}"
    rung_here, rung_there = rung(here), rung(there)
    if rung_here is None or rung_there is None:
        return f"{module} imports {target}: {here if rung_here is None else there} is not on the ladder"
    if rung_there >= rung_here:
        return f"{module} imports {target}: {here} may not import {there}"
    return None


def outside_problem(module: str, name: str) -> str | None:
    library = name.split(".")[0]
    if library in FENCED:
        allowed = (part for importer, parts in FENCED[library].items() if within(module, importer) for part in parts)
        if not any(within(name, part) for part in allowed):
            return f"{module} imports {name}: not among the importers of {library}"
    if folder(module) == PURE_FOLDER and library in IMPURE:
        return f"{module} imports {name}: {PURE_FOLDER}/ is pure"
    return None


def violations(modules: Mapping[str, str]) -> list[str]:
    """Every broken rule about single imports and names, one line each."""
    found: list[str | None] = []
    for module, source in modules.items():
        if set(module.split(".")) & set(VAGUE_NAMES):
            found.append(f"{module}: name it after its subject")
        if rung(folder(module)) is None:
            found.append(f"{module}: {folder(module)} is not on the ladder")
        for name, at_module_level in imports(source):
            if name.startswith("."):
                found.append(f"{module}: relative import {name}")
            elif name.split(".")[0] in TOPS:
                found.append(own_edge_problem(module, resolve(name, modules), at_module_level))
            else:
                found.append(outside_problem(module, name))
    return sorted({problem for problem in found if problem})


def cycle(edges: Mapping[str, set[str]]) -> list[str] | None:
    """Some cycle among the modules, or None."""
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> list[str] | None:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return None
        for target in sorted(edges.get(module, ())):
            if found := visit(target, [*path, module]):
                return found
        done.add(module)
        return None

    return next((found for module in sorted(edges) if (found := visit(module, []))), None)


def reachable(start: str, edges: Mapping[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    pending = [start]
    while pending:
        module = pending.pop()
        if module not in seen:
            seen.add(module)
            pending.extend(edges.get(module, ()))
    return seen


def test_imports_follow_the_tables() -> None:
    assert violations(sources()) == []


def test_no_import_cycles() -> None:
    assert cycle(graph(sources())) is None


def test_swarm_loads_no_torch_through_others() -> None:
    modules = sources()
    edges = graph(modules)
    start = [module for module in modules if folder(module) == PURE_FOLDER]
    loaded = {module for name in start for module in reachable(name, edges)}
    with_torch = {module for module in loaded if any(within(name, "torch") for name, _ in imports(modules[module]))}
    assert with_torch == set()


def test_every_folder_has_a_line_on_the_ladder() -> None:
    folders = {path.parent.name for path in (ROOT / "subnet").glob("*/__init__.py")}
    assert folders | {"base", "neurons", "incentives"} == {name for names in LADDER for name in names}


def test_violations_sees_each_kind_of_forbidden_import() -> None:
    bad = {
        "subnet.types": "from subnet.codec import tensors",
        "subnet.swarm.router": "import subnet.train.engine",
        "subnet.swarm.rounds": "def now():\n    import time",
        "subnet.codec.tensors": "from subnet.model.stages import cut",
        "subnet.train.engine": "from subnet.net.client import Client",
        "subnet.net.auth": "from bittensor import wallet",
        "subnet.net.client": "from . import auth",
        "subnet.verify.replay": "import bittensor as bt",
        "subnet.data.utils": "",
        "subnet.extra.thing": "",
        "neurons.miner": "from neurons.validator import main",
        "neurons.cli": "from neurons import miner",
        "incentives.scores": "from subnet.swarm.ledger import Ledger",
        "subnet.swarm.ledger": "",
        "subnet.model.stages": "",
        "neurons.validator": "",
    }
    clean = {"subnet.swarm.ledger", "subnet.model.stages", "neurons.validator"}
    accused = {problem.split()[0].rstrip(":") for problem in violations(bad)}
    assert accused == set(bad) - clean


def test_violations_lets_allowed_imports_pass() -> None:
    good = {
        "subnet.types": "import os, torch",
        "subnet.errors": "from subnet.types import Hotkey",
        "subnet.swarm.router": "from subnet.types import Hotkey\nimport hashlib",
        "subnet.train.engine": "from subnet.model import stages\nfrom subnet.swarm.router import ranking",
        "subnet.model.stages": "import torch",
        "subnet.net.auth": "from bittensor import http_auth\nfrom bittensor.keyfiles import Keyfile",
        "subnet.chain.live": "import bittensor as bt",
        "subnet.localnet.devchain.rpc": "from bittensor_core import Runtime\nimport websockets",
        "neurons.base": "from subnet.localnet.devchain import rpc",
        "neurons.miner": "from neurons.base import Neuron",
        "neurons.cli": "def main():\n    from neurons import miner\n    from incentives.scores import score",
        "incentives.scores": "from subnet.types import Hotkey",
    }
    assert violations(good) == []


def test_cycle_is_found() -> None:
    modules = {
        "subnet.types": "from subnet.errors import E",
        "subnet.errors": "def f():\n    from subnet import types",
    }
    assert cycle(graph(modules)) == ["subnet.errors", "subnet.types", "subnet.errors"]
