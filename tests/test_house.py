"""The rules of the house that no linter knows: what is only written down decays, what is tested stays.

Each rule is one test that names every file that breaks it: a test a file was 2,500 tests, a quarter of the suite's.
"""

from __future__ import annotations

import ast
import re
import statistics
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FLOORS = ("probes", "detectors", "recovery", "service")
SOURCES = sorted(p for floor in FLOORS for p in (ROOT / floor).rglob("*.py"))
Function = ast.FunctionDef | ast.AsyncFunctionDef
NEVER = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}


@cache
def _nodes(path: Path) -> tuple[ast.AST, ...]:
    """Every node of a file, its module first."""
    return tuple(ast.walk(ast.parse(path.read_text())))


def _functions(path: Path) -> Iterator[Function]:
    return (node for node in _nodes(path) if isinstance(node, Function))


def _lines(node: Function) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def _nobody(found: Iterator[str]) -> None:
    broken = list(found)
    assert not broken, "\n".join(broken)


def _at(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def test_files_stay_short() -> None:
    sizes = ((path, len(path.read_text().splitlines())) for path in SOURCES)
    _nobody(f"{_at(path, size)}: split the file" for path, size in sizes if size > 400)


def test_functions_stay_short() -> None:
    found = ((path, node) for path in SOURCES for node in _functions(path) if _lines(node) > 60)
    _nobody(f"{_at(path, node.lineno)}: {node.name} has {_lines(node)} lines" for path, node in found)


@pytest.mark.parametrize("floor", FLOORS)
def test_the_median_function_fits_ten_lines_of_code(floor: str) -> None:
    """Docstrings are not counted: they are wanted."""
    sizes = []
    for path in (path for path in SOURCES if path.relative_to(ROOT).parts[0] == floor):
        for node in _functions(path):
            documented = ast.get_docstring(node) is not None
            first = node.body[0]
            doc = (first.end_lineno or first.lineno) - first.lineno + 1 if documented else 0
            sizes.append(_lines(node) - doc)
    assert statistics.median(sizes) <= 10


def test_every_module_says_what_it_is_for() -> None:
    told = (path for path in SOURCES if path.name != "__init__.py" or path.read_text().strip())
    modules = ((path, _nodes(path)[0]) for path in told)
    _nobody(
        f"{_at(path, 1)}: a module docstring states the invariant"
        for path, module in modules
        if not isinstance(module, ast.Module) or not ast.get_docstring(module)
    )


def test_broad_handlers_stand_only_at_named_boundaries() -> None:
    lines = ((path, number, line) for path in SOURCES for number, line in enumerate(path.read_text().splitlines(), 1))
    _nobody(
        f"{_at(path, number)}: name the boundary in a comment, or catch what you mean"
        for path, number, line in lines
        if re.search(r"except(\s+\(?(Base)?Exception\b|\s*:)", line) and "boundary" not in line
    )


def _executed(node: ast.AST) -> str | None:
    """What a node does that a wire could abuse."""
    imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    imported += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
    if bad := NEVER & {name.split(".")[0] for name in imported}:
        return f"imports {', '.join(bad)}"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"eval", "exec"}:
        return node.func.id
    if isinstance(node, ast.keyword) and node.arg == "shell":
        return "no shell"
    return None


def test_nothing_that_crosses_a_wire_is_executed() -> None:
    found = ((path, node, _executed(node)) for path in SOURCES for node in _nodes(path))
    _nobody(f"{_at(path, getattr(node, 'lineno', 0))}: {what}" for path, node, what in found if what)


@pytest.mark.parametrize("code", ["import pickle", "from dill import x", "eval('1')", "run(a, shell=True)"])
def test_what_would_be_executed_is_recognised(code: str) -> None:
    assert [what for node in ast.walk(ast.parse(code)) if (what := _executed(node))]


def test_the_project_stands_alone() -> None:
    """No path of one machine, and nothing beside the checkout, is needed at run time."""
    for path in SOURCES:
        text = path.read_text()
        assert "../shared" not in text, path
        assert f"{ROOT}/" not in text, path
