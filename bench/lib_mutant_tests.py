"""Which tests run which line of which module, how long each takes, and whether these tests notice a changed line.

One pytest session collects the tests, then forks for each change: the child exchanges the code of the changed function
and runs the tests of its lines. A change outside functions takes a process that imports everything again.
"""

from __future__ import annotations

import ast
import gc
import importlib
import inspect
import json
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final

import coverage
import pytest
from hypothesis import Phase, settings

_WALL_S: Final = 120.0
_OPTIONS: Final = (
    "-q", "-n", "0", "-p", "no:cacheprovider", "--capture=sys", "--tb=no",
    "-W", "ignore::pytest.PytestAssertRewriteWarning",
)  # fmt: skip


@dataclass(frozen=True)
class TestMap:
    """The tests of each line of each file, and the CPU seconds of each test."""

    lines: dict[str, dict[str, list[str]]]
    seconds: dict[str, float]
    modules: list[str]
    """Modules from outside the project that the tests import."""
    budget_s: float = 10.0
    """CPU seconds that the tests of one mutant take without the change, so that survivors cost no more."""

    def tests_of(self, file: str, source: str, line: int) -> list[str]:
        """Return the tests that run the statement at ``line``, the most likely to notice a change first.

        These are the quick ones of the mirrored test file, then of its folder and the folders above. A statement
        outside functions is judged by the tests of the whole module, or of its folder.
        """
        lines, statement = self.lines[file], _statement(source, line)
        tests = {test for at in statement for test in lines.get(str(at), ())}
        folder = f"tests/{Path(file).parent}/"
        if not statement_in_function(source, line):
            tests = {test for each in lines.values() for test in each}
            tests = tests or {test for test in self.seconds if test.startswith(folder)}
            tests |= {test for test in self.seconds if "/test_data_types.py::" in test}
        own, above = f"{folder}test_{Path(file).stem}.py", {str(each) for each in Path(folder, "x").parents}

        def likely(test: str) -> tuple[bool, bool, float]:
            folder = str(Path(test.split("::", maxsplit=1)[0]).parent)
            return not test.startswith(own), folder not in above, self.seconds[test]

        chosen: list[str] = []
        spent = 0.0
        for test in sorted(tests, key=likely):
            if spent + self.seconds[test] <= self.budget_s or not chosen:
                chosen.append(test)
                spent += self.seconds[test]
        return chosen

    def limit(self, tests: Sequence[str]) -> float:
        """Return the CPU seconds after which ``tests`` have timed out."""
        return 2.0 + 2.0 * sum(self.seconds[test] for test in tests)


def _statement(source: str, line: int) -> range:
    """Return the lines of the innermost statement at ``line``; of a compound statement only its head."""
    found = [range(line, line + 1)]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            end = body[0].lineno if body else (node.end_lineno or node.lineno) + 1
            found.append(range(node.lineno, max(end, node.lineno + 1)))
    return max((lines for lines in found if line in lines), key=lambda lines: lines.start)


def statement_in_function(source: str, line: int) -> bool:
    """Return whether ``line`` is in the body of a function."""
    return any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body[0].lineno <= line <= (node.end_lineno or line)
        for node in ast.walk(ast.parse(source))
    )


def changed_functions(old: CodeType, new: CodeType) -> list[CodeType] | None:
    """Return the changed functions of ``new``, the outermost ones; None where code outside functions changed."""
    if old.co_flags & inspect.CO_OPTIMIZED:
        if _plain(old) == _plain(new):
            return []
        return None if old.co_name.startswith("<") and old.co_name != "<lambda>" else [new]
    pairs = [[each for each in code.co_consts if isinstance(each, CodeType)] for code in (old, new)]
    if len(pairs[0]) != len(pairs[1]) or _plain(old, nested=False) != _plain(new, nested=False):
        return None
    parts = [changed_functions(a, b) for a, b in zip(*pairs, strict=True)]
    return None if None in parts else [code for part in parts for code in part or ()]


def _plain(code: CodeType, *, nested: bool = True) -> object:
    inner = [(_plain(each) if nested else "") if isinstance(each, CodeType) else repr(each) for each in code.co_consts]
    return (code.co_code, code.co_names, code.co_varnames, inner)


class Recorder:
    """A pytest plugin that records the executed lines of each test."""

    def __init__(self, tree: Path, files: Sequence[str]) -> None:
        self.tree, self.files = tree, files
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()
        self.coverage = coverage.Coverage(
            data_file=None, config_file=False, include=[str(tree / file) for file in files], concurrency=["thread"]
        )
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.coverage.switch_context(item.nodeid)
        started = time.process_time()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = time.process_time() - started

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed":
            self.failed.add(report.nodeid)

    def lines(self) -> dict[str, dict[int, list[str]]]:
        """Return the tests that run each line of each file; failed and skipped tests are left out."""
        self.coverage.stop()
        data = self.coverage.get_data()
        return {
            file: {
                line: sorted(set(tests) - self.failed - {""})
                for line, tests in data.contexts_by_lineno(str(self.tree / file)).items()
            }
            for file in self.files
        }


def record(tree: Path, files: Sequence[str], arguments: Sequence[str], target: Path) -> None:
    """Run the tests once in a child process and put them into the ``TestMap`` in ``target``."""

    def run() -> int:
        recorder = Recorder(tree, files)
        pytest.main([*_OPTIONS, *arguments], plugins=[recorder])
        modules = [
            name
            for name, module in sys.modules.items()
            if "site-packages" in (getattr(module, "__file__", None) or "") and "pytest" not in name
        ]
        found = {"lines": recorder.lines(), "seconds": recorder.seconds, "modules": modules}
        if target.exists():
            _merge(found, json.loads(target.read_text()))
        target.write_text(json.dumps(found))
        return 0

    _in_child(tree, run)


def _merge(found: dict[str, Any], earlier: dict[str, Any]) -> None:
    """Add to ``found`` what ``earlier`` knows of tests that did not run now."""
    kept = set(earlier["seconds"]) - set(found["seconds"])
    for file, lines in earlier["lines"].items():
        for line, tests in lines.items():
            found["lines"].setdefault(file, {}).setdefault(int(line), []).extend(kept & set(tests))
    found["seconds"] = {**earlier["seconds"], **found["seconds"]}
    found["modules"] = sorted({*found["modules"], *earlier["modules"]})


@dataclass
class ForkingSession:
    """A pytest plugin that collects, then forks for each change, instead of running the tests."""

    tree: Path
    work: Callable[[ForkingSession], None]
    items: dict[str, pytest.Item] | None = None
    functions: dict[tuple[str, str, int], list[FunctionType]] | None = None

    def pytest_configure(self) -> None:
        """Let a property fail at its first counterexample: to find the smallest one takes seconds."""
        profile = settings.get_profile("mainstay")
        settings.register_profile("mutants", profile, phases=(Phase.explicit, Phase.generate))
        settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = {item.nodeid: item for item in session.items}
        self.functions = defaultdict(list)
        for each in gc.get_objects():
            if type(each) is FunctionType and "mainstay" in each.__code__.co_filename:  # isinstance wakes lazy proxies
                self.functions[_place(each.__code__)].append(each)
        gc.freeze()
        self.work(self)
        return True

    def outcome(self, codes: Sequence[CodeType], tests: Sequence[str], limit_s: float) -> str:
        """Return ``killed``, ``survived`` or ``timeout`` for these functions' code, or "" if they are not loaded."""
        assert self.items is not None
        assert self.functions is not None
        live = [(function, code) for code in codes for function in self.functions.get(_place(code), ())]
        if not live:
            return ""
        items = [self.items[test] for test in tests if test in self.items]

        def run() -> int:
            for function, code in live:
                function.__code__ = code
            session = items[0].session
            for item, following in zip(items, [*items[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if session.testsfailed:
                    return 1
            return 0

        return _named(_in_child(self.tree, run, limit_s)) if items else "survived"


def _place(code: CodeType) -> tuple[str, str, int]:
    return os.path.realpath(code.co_filename), code.co_qualname, code.co_firstlineno


def collect_and_fork(tree: Path, arguments: Sequence[str], work: Callable[[ForkingSession], None]) -> None:
    """Collect the tests in a child process and call ``work`` there."""

    def run() -> int:
        return int(pytest.main([*_OPTIONS, *arguments], plugins=[ForkingSession(tree, work)]))

    if _in_child(tree, run) not in (0, int(pytest.ExitCode.NO_TESTS_COLLECTED)):
        raise RuntimeError(f"The tests were not collected: see {tree.parent / 'tests.log'}.")


def preload(modules: Sequence[str]) -> None:
    """Import what the tests import from outside the project, so that each forked child has it."""
    for name in modules:
        if "hypothesis" in name or "schemathesis" in name:
            continue  # its plugin refuses to load once it is in use
        try:
            importlib.import_module(name)
        except (ImportError, AttributeError, RuntimeError):
            continue  # a module that needs its importer is imported by the tests


def outcome_of_tree(tree: Path, tests: Sequence[str], limit_s: float) -> str:
    """Return whether ``tests`` notice what is changed in ``tree``: ``killed``, ``survived`` or ``timeout``."""
    return _named(_in_child(tree, lambda: int(pytest.main([*_OPTIONS, "-x", *tests])), limit_s))


def _named(code: int | None) -> str:
    return "timeout" if code in (None, -signal.SIGXCPU, -signal.SIGKILL) else "killed" if code else "survived"


def _in_child(tree: Path, work: Callable[[], int], limit_s: float | None = None) -> int | None:
    child = multiprocessing.get_context("fork").Process(target=_child, args=(tree, work, limit_s))
    child.start()
    child.join(_WALL_S if limit_s else None)
    code = child.exitcode
    if code is None:
        os.killpg(child.pid or 0, signal.SIGKILL)
        child.join()
    return code


def _child(tree: Path, work: Callable[[], int], limit_s: float | None) -> None:
    os.setsid()
    os.chdir(tree)
    sys.path.insert(0, str(tree))
    os.environ["PYTHONPATH"] = str(tree)
    with (tree.parent / "tests.log").open("w" if limit_s else "a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    if limit_s:
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit_s) + 1, int(limit_s) + 5))
    os._exit(work())
