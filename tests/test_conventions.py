"""The conventions of the project that no linter checks.

Each rule is one test that names every file that breaks it.
"""

from __future__ import annotations

import ast
import re
import statistics
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import grimp
import networkx as nx
import pytest

ROOT = Path(__file__).resolve().parents[1]
LAYERS = ("probes", "detectors", "recovery", "service")
SOURCES = sorted(p for layer in LAYERS for p in (ROOT / layer).rglob("*.py"))
OTHERS = sorted(
    p for folder in ("bench", "docs", "mainstay", "migrations", "tests") for p in (ROOT / folder).rglob("*.py")
)
"""``rglob`` does not follow the links in ``mainstay``: its files are listed once, under their layer."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
LAUNCHER = {("recovery", part) for part in ("controller", "membership", "node")}
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


def _assert_none(found: Iterator[str]) -> None:
    broken = list(found)
    assert not broken, "\n".join(broken)


def _at(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def test_files_stay_short() -> None:
    sizes = ((path, len(path.read_text().splitlines())) for path in SOURCES + OTHERS)
    _assert_none(f"{_at(path, size)}: split the file" for path, size in sizes if size > 400)


def test_only_the_reducer_changes_the_state_of_a_job() -> None:
    state, members = (ROOT / "recovery" / name for name in ("controller/state/job_state.py", "membership/members.py"))
    owned = {"JobState", "NodeMember", "RankMember"}
    fields = {
        node.target.id
        for path in (state, members)
        for owner in _nodes(path)
        if isinstance(owner, ast.ClassDef) and owner.name in owned
        for node in owner.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert {"generation", "replicated", "epoch", "unplaced", "inventory"} <= fields
    parts = [p for p in SOURCES if p.relative_to(ROOT).parts[:2] in LAUNCHER]
    _assert_none(
        f"{_at(path, node.lineno)}: apply an event: .{node.attr} is the state of a job"
        for path in parts
        if path.name != "reducer.py"
        for node in _nodes(path)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del) and node.attr in fields
        if not (isinstance(node.value, ast.Name) and node.value.id == "self")
    )


def test_functions_stay_short() -> None:
    found = ((path, node) for path in SOURCES for node in _functions(path) if _lines(node) > 60)
    _assert_none(f"{_at(path, node.lineno)}: {node.name} has {_lines(node)} lines" for path, node in found)


@pytest.mark.parametrize("layer", LAYERS)
def test_the_median_function_fits_ten_lines_of_code(layer: str) -> None:
    """Docstrings do not count."""
    sizes = []
    for path in (path for path in SOURCES if path.relative_to(ROOT).parts[0] == layer):
        for node in _functions(path):
            documented = ast.get_docstring(node) is not None
            first = node.body[0]
            doc = (first.end_lineno or first.lineno) - first.lineno + 1 if documented else 0
            sizes.append(_lines(node) - doc)
    assert statistics.median(sizes) <= 10


def test_every_module_has_a_docstring() -> None:
    documented = (path for path in SOURCES if path.name != "__init__.py" or path.read_text().strip())
    modules = ((path, _nodes(path)[0]) for path in documented)
    _assert_none(
        f"{_at(path, 1)}: a module docstring states the invariant"
        for path, module in modules
        if not isinstance(module, ast.Module) or not ast.get_docstring(module)
    )


def test_broad_handlers_exist_only_at_named_boundaries() -> None:
    lines = ((path, number, line) for path in SOURCES for number, line in enumerate(path.read_text().splitlines(), 1))
    _assert_none(
        f"{_at(path, number)}: name the boundary in a comment, or catch what you mean"
        for path, number, line in lines
        if re.search(r"except(\s+\(?(Base)?Exception\b|\s*:)", line) and "boundary" not in line
    )


def _executed(node: ast.AST) -> str | None:
    """Return what a node does that a received message could abuse."""
    imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    imported += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
    if bad := NEVER & {name.split(".")[0] for name in imported}:
        return f"imports {', '.join(bad)}"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"eval", "exec"}:
        return node.func.id
    if isinstance(node, ast.keyword) and node.arg == "shell":
        return "no shell"
    return None


def test_received_data_is_never_executed() -> None:
    found = ((path, node, _executed(node)) for path in SOURCES for node in _nodes(path))
    _assert_none(f"{_at(path, getattr(node, 'lineno', 0))}: {what}" for path, node, what in found if what)


@pytest.mark.parametrize("code", ["import pickle", "from dill import x", "eval('1')", "run(a, shell=True)"])
def test_code_that_executes_data_is_recognized(code: str) -> None:
    assert [what for node in ast.walk(ast.parse(code)) if (what := _executed(node))]


def test_the_project_stands_alone() -> None:
    """The code needs no path of one machine and no file outside the repository."""
    for path in SOURCES:
        text = path.read_text()
        assert "../shared" not in text, path
        assert f"{ROOT}/" not in text, path


def _imports() -> nx.DiGraph[str]:
    """Return which module imports which; an import from another package runs that package's __init__.

    The node ``mainstay`` itself is left out: every module imports it, and it imports the SDK on first use only.
    """
    found = grimp.build_graph("mainstay", cache_dir=None)
    graph: nx.DiGraph[str] = nx.DiGraph()
    for module in found.modules - {"mainstay"}:
        for imported in found.find_modules_directly_imported_by(module):
            parts = imported.split(".")
            names = (".".join(parts[:end]) for end in range(2, len(parts) + 1))
            graph.add_edges_from((module, name) for name in names if not f"{module}.".startswith(f"{name}."))
    return graph


def _circles(graph: nx.DiGraph[str]) -> Iterator[str]:
    for circle in nx.strongly_connected_components(graph):
        if len(circle) > 1:
            yield f"modules import each other: {', '.join(sorted(circle))}"


def test_no_module_imports_one_that_imports_it() -> None:
    """Imports inside functions and for type checkers count too."""
    graph = _imports()
    assert {name.split(".")[1] for name in graph} >= set(LAYERS), "the layers are missing from the graph"
    _assert_none(_circles(graph))


def test_a_circle_is_recognized() -> None:
    graph = nx.DiGraph([("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")])
    assert list(_circles(graph)) == ["modules import each other: a, b, c"]


def _top_level_imports(node: ast.AST) -> list[str]:
    """Return the layers that a node imports as top-level packages, which belong to the training site."""
    modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    modules += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
    return [module for module in modules if module.split(".")[0] in LAYERS]


def test_no_file_imports_a_layer_as_a_top_level_package() -> None:
    found = (
        (path, node, name) for path in SOURCES + OTHERS for node in _nodes(path) for name in _top_level_imports(node)
    )
    _assert_none(f"{_at(path, getattr(node, 'lineno', 0))}: import mainstay.{name}" for path, node, name in found)


@pytest.mark.parametrize(("code", "layer"), [
    ("import service.app", "service.app"), ("from probes import signals", "probes"), ("import mainstay.probes", None),
    ("from mainstay import recovery", None), ("from . import service", None), ("import services", None),
])  # fmt: skip
def test_a_top_level_import_is_recognized(code: str, layer: str | None) -> None:
    found = [name for node in ast.walk(ast.parse(code)) for name in _top_level_imports(node)]
    assert found == ([layer] if layer else [])


def test_links_of_the_package_are_relative_and_resolve() -> None:
    links = [path for path in (ROOT / "mainstay").iterdir() if path.is_symlink()]
    assert {*LAYERS, "dashboard", "migrations", "monitoring"} <= {path.name for path in links}
    _assert_none(f"{path.relative_to(ROOT)}: use a relative link" for path in links if path.readlink().is_absolute())
    built = {"dashboard": ROOT / "web"}  # ``make web`` creates web/dist
    targets = ((path, built.get(path.name, path.resolve())) for path in links)
    _assert_none(f"{path.relative_to(ROOT)}: the target is missing" for path, target in targets if not target.exists())
    outside = (path for path in links if not path.resolve().is_relative_to(ROOT))
    _assert_none(f"{path.relative_to(ROOT)}: the target is outside the repository" for path in outside)
