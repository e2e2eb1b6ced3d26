"""The rooms of the package: what imports what, held against the table in CONTRIBUTING.md."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

from tests.conftest import ROOT

WORKFLOW = ROOT / "workflow"
PACKAGES = ("scalestudy", "snakemake_executor_plugin_multinode", "snakemake_logger_plugin_scalestudy")
DATA = ("decode", "sources", "prepare", "stage", "load")
Imports = dict[str, set[str]]


def modules() -> dict[str, Path]:
    files = [file for package in PACKAGES for file in sorted((WORKFLOW / package).rglob("*.py"))]
    return {
        ".".join(file.relative_to(WORKFLOW).with_suffix("").parts).removesuffix(".__init__"): file for file in files
    }


def imported(tree: ast.AST, known: dict[str, Path]) -> Iterator[str]:
    """The project's modules that a module imports, inside functions too; what is only for type checkers is left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                below = f"{node.module}.{alias.name}"
                yield from {below if below in known else node.module} & set(known)
        elif isinstance(node, ast.Import):
            yield from {alias.name for alias in node.names} & set(known)
        yield from imported(node, known)


@functools.cache
def drawn() -> Imports:
    known = modules()
    return {
        name: set(imported(ast.parse(file.read_text(encoding="utf-8")), known)) - {name} for name, file in known.items()
    }


def table() -> list[str]:
    """Rooms from the top of CONTRIBUTING's table to its end; those of one row share a place."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## What depends on what")[2]
    rows = re.findall(r"^\| (`.*?`) \|", text.partition("\n## ")[0], re.MULTILINE)
    return [" ".join(re.findall(r"`(\w+)`", row)) for row in rows]


def place(module: str) -> tuple[int, int]:
    """The row of a module's room and, in `data`, the place of its folder."""
    parts = [*module.split("."), "cli", ""]
    room = "catalogue" if module.endswith(".catalogue") or module == "scalestudy.spec.base" else parts[1]
    row = next(row for row, names in enumerate(table()) if room in names.split())
    return row, DATA.index(parts[2]) if room == "data" and parts[2] in DATA else -1


def test_no_module_imports_itself_by_way_of_others() -> None:
    TopologicalSorter(drawn()).prepare()  # CycleError names the circle


def test_every_import_goes_up_the_table_of_rooms_and_data_flows_from_sources_to_the_loader() -> None:
    own = {name: targets for name, targets in drawn().items() if name.startswith("scalestudy.")}
    imports = [(name, target) for name, targets in own.items() for target in sorted(targets & own.keys())]
    assert [(name, target) for name, target in imports if place(target) > place(name)] == []


def test_the_plugins_import_nothing_of_the_package() -> None:
    graph = drawn()
    executor = [n for n in graph if n.startswith("snakemake_executor_plugin_multinode")]
    assert len(executor) > 20
    assert [(n, t) for n in executor for t in graph[n] if t.startswith("scalestudy")] == []
