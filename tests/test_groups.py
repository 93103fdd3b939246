"""What one worker runs together, and what starts first."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.groups import DECLARED, RECORD, GroupScheduling, longest_first, unit_of

ROOT = Path(__file__).resolve().parents[1]


class Worker:
    """Takes the tests that it is given."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.given: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True


class Kept(dict[str, Any]):
    set = dict.__setitem__


def config(root: Path, recorded: dict[str, float]) -> Any:
    option = SimpleNamespace(markexpr="", keyword="", loadscopereorder=True)
    return SimpleNamespace(
        rootpath=root, option=option, cache=Kept({RECORD: recorded}),
        getvalue=lambda name: {"tx": ["2*popen"]}[name],
    )  # fmt: skip


def test_a_mark_makes_one_unit_of_several_files() -> None:
    assert unit_of("tests/web/test_run_analysis.py::test_x[a@b]", ROOT) == "browser"
    assert unit_of("tests/scenarios/test_kill_rank.py::test_x", ROOT) == "training"
    assert unit_of("tests/scenarios/test_wheel.py::test_x", ROOT) == "control"
    assert unit_of("tests/test_groups.py::test_x", ROOT) == "tests/test_groups.py"


def test_the_longest_starts_first_by_record_then_declaration_then_count() -> None:
    sizes = {"a.py": 5, "browser": 40, "b.py": 9000, "c.py": 1}
    assert longest_first(sizes, {"c.py": 700.0}) == ["b.py", "c.py", "browser", "a.py"]


def test_what_is_declared_is_there() -> None:
    units = {unit_of(path.relative_to(ROOT).as_posix(), ROOT) for path in (ROOT / "tests").rglob("test_*.py")}
    assert units >= DECLARED.keys()


def test_a_unit_stays_with_one_worker_and_its_seconds_are_kept(tmp_path: Path) -> None:
    for name in ("test_one.py", "test_two.py"):
        (tmp_path / name).write_text('pytestmark = [pytest.mark.xdist_group("together")]\n')
    (tmp_path / "test_alone.py").write_text("")
    tests = [f"test_one.py::t{i}" for i in range(4)] + [f"test_alone.py::t{i}" for i in range(4)] + ["test_two.py::t"]
    settings = config(tmp_path, {"together": 9.0, "gone.py": 1.0})
    plan = GroupScheduling(cast("pytest.Config", settings))
    first, second = Worker("gw0"), Worker("gw1")
    for worker in (first, second):
        plan.add_node(cast("Any", worker))
        plan.add_node_collection(cast("Any", worker), tests)
    plan.schedule()
    assert (first.given, second.given) == ([0, 1, 2, 3, 8], [4, 5, 6, 7])
    for worker in (first, second):
        for i in worker.given:
            plan.mark_test_complete(cast("Any", worker), i, 0.5)
    assert settings.cache[RECORD] == {"together": 2.5, "test_alone.py": 2.0, "gone.py": 1.0}
