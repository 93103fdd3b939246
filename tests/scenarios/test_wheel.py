"""The wheel alone, in an empty environment outside the checkout, does what the checkout does.

The test needs no network: it links the packages that the wheel declares, and no others, from the test environment. pip
then checks that the declared requirements are met. The environment cannot see the checkout or its development tools.
"""

from __future__ import annotations

import email
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import time
import venv
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.xdist_group("control"), pytest.mark.timeout(600)]


def _sources(target: Path) -> Path:
    """Copy what git tracks, and the built dashboard: a build leaves files beside its sources."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_symlink() or (ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name, follow_symlinks=False)
    shutil.copytree(ROOT / "web" / "dist", target / "web" / "dist")
    return target


def _pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    _pip("wheel", "-q", "--no-deps", "--no-index", "--no-build-isolation", "-w", folder, _sources(folder / "sources"))
    return next(folder.glob("mainstay-*.whl"))


def _requirements(wheel: Path) -> set[str]:
    """Name the packages that ``mainstay[all]`` of this wheel requires, directly or through others."""
    with zipfile.ZipFile(wheel) as archive:
        metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        own = email.message_from_bytes(archive.read(metadata)).get_all("Requires-Dist", [])
    todo, found = [("mainstay", "all")], set[tuple[str, str]]()
    while todo:
        name, extra = todo.pop()
        if (name, extra) in found:
            continue
        found.add((name, extra))
        for line in own if name == "mainstay" else importlib.metadata.requires(name) or []:
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                todo += [(canonicalize_name(needed.name), one) for one in ("", *needed.extras)]
    return {name for name, _ in found} - {"mainstay"}


def _link(name: str, packages: Path) -> None:
    """Link the folders and modules of an installed package."""
    distribution = importlib.metadata.distribution(name)
    for entry in {Path(file.parts[0]) for file in distribution.files or []} - {Path(".."), Path("__pycache__")}:
        (packages / entry).symlink_to(str(distribution.locate_file(entry)))


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """The ``mainstay`` command of an environment that has the wheel."""
    home = wheel.parent / "venv"
    venv.create(home, with_pip=False)
    packages = next(home.glob("lib/python*/site-packages"))
    for name in _requirements(wheel):
        _link(name, packages)
    _pip("--python", home / "bin" / "python", "install", "-q", "--no-index", f"mainstay[all] @ {wheel.as_uri()}")
    return home / "bin" / "mainstay"


@pytest.fixture
def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@pytest.fixture
def run(
    installed: Path, tmp_path: Path, environment: dict[str, str]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    def start(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [installed, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )

    return start


def test_the_environment_has_the_wheel_and_not_the_checkout(
    installed: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    code = (
        "import json, importlib.util, mainstay.service.app as app;"
        "print(json.dumps([app.__file__, importlib.util.find_spec('pytest') is None]))"
    )
    command = [installed.with_name("python"), "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    file, is_free_of_development_tools = json.loads(done.stdout)
    assert Path(file).is_relative_to(installed.parents[1])
    assert is_free_of_development_tools


def test_the_demo_kills_a_rank_and_ends_bit_equal(run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = run("demo", "--exit", "--json", "--port", "0", "--kill-at-step", "8", "--steps", "28")
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout)
    assert summary["finished"]
    assert summary["bit_equal"]
    assert summary["verified"]
    assert summary["survivors_restarted"] == []
    assert summary["steps_lost"] <= 1
    assert summary["strategy"] in {"local_slot", "peer_copy", "parity_rebuild"}
    assert summary["detected_s"] > 0


def test_doctor_reports_what_is_missing(run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = run("doctor", "--json")
    assert done.returncode in (0, 1), done.stderr
    assert json.loads(done.stdout)


def test_the_quick_suite_runs(run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = run("validate", "--suite", "quick", "--json")
    assert {one["state"] for one in json.loads(done.stdout)["benchmarks"]} <= {"ok", "skipped"}, done.stdout


@pytest.fixture
def service(
    installed: Path, tmp_path: Path, free_port: Callable[[], int], environment: dict[str, str]
) -> Iterator[str]:
    port = free_port()
    with (tmp_path / "up.log").open("wb") as log:
        process = subprocess.Popen(
            [installed, "up", "--port", str(port), "--data-dir", tmp_path / "data"],
            cwd=tmp_path,
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def test_up_migrates_and_serves_the_dashboard(service: str) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            ready = httpx.get(f"{service}/readyz", timeout=10).status_code == 200
        except httpx.TransportError:
            ready = False
        if ready:
            break
        assert time.monotonic() < deadline, "the service is not ready after 120 s"
        time.sleep(0.2)
    page = httpx.get(service, timeout=10)
    assert "/assets/" in page.text, "this is not the built dashboard"
