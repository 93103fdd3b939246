"""The rules of the house that no linter knows: what is only written down decays, what is tested stays."""

from __future__ import annotations

import ast
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FLOORS = ("probes", "detectors", "recovery", "service")
SOURCES = sorted(p for floor in FLOORS for p in (ROOT / floor).rglob("*.py"))
Function = ast.FunctionDef | ast.AsyncFunctionDef


def _functions(path: Path) -> Iterator[Function]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, Function):
            yield node


def _lines(node: Function) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_and_functions_stay_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400, "split the file"
    too_long = [f"{node.name} ({_lines(node)} lines)" for node in _functions(path) if _lines(node) > 60]
    assert not too_long, too_long


@pytest.mark.parametrize("floor", FLOORS)
def test_the_median_function_fits_ten_lines_of_code(floor: str) -> None:
    """Docstrings are not counted: they are wanted."""
    sizes = []
    for path in (ROOT / floor).rglob("*.py"):
        for node in _functions(path):
            documented = ast.get_docstring(node) is not None
            first = node.body[0]
            doc = (first.end_lineno or first.lineno) - first.lineno + 1 if documented else 0
            sizes.append(_lines(node) - doc)
    assert statistics.median(sizes) <= 10


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_module_says_what_it_is_for(path: Path) -> None:
    if path.name != "__init__.py" or path.read_text().strip():
        assert ast.get_docstring(ast.parse(path.read_text())), "a module docstring states the invariant"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_broad_handlers_stand_only_at_named_boundaries(path: Path) -> None:
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines):
        if re.search(r"except(\s+\(?(Base)?Exception\b|\s*:)", line):
            assert "boundary" in line, f"line {number + 1}: name the boundary in a comment, or catch what you mean"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_that_crosses_a_wire_is_executed(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        imported = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        imported += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not {"pickle", "marshal", "shelve", "dill", "cloudpickle"} & {name.split(".")[0] for name in imported}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"eval", "exec"}, f"line {node.lineno}"
        if isinstance(node, ast.keyword):
            assert node.arg != "shell", f"line {node.lineno}: no shell"


def test_the_project_stands_alone() -> None:
    """No path of one machine, and nothing beside the checkout, is needed at run time."""
    for path in SOURCES:
        text = path.read_text()
        assert "../shared" not in text, path
        assert f"{ROOT}/" not in text, path
