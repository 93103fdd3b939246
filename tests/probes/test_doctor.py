"""The doctor: says what is missing, how to get it, and whether the essentials are there."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from probes import doctor

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mainstay", "doctor", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_as_json_for_machines() -> None:
    done = run("--json")
    document = json.loads(done.stdout)
    assert done.returncode == (0 if document["ok"] else 1)
    assert {"python >= 3.11", "/dev/shm", "disk", "NVIDIA driver", "torch"} <= {c["name"] for c in document["checks"]}


def test_as_a_table_for_people() -> None:
    done = run()
    assert "mainstay[service]" in done.stdout
    assert "Traceback" not in done.stderr


def test_what_is_missing_comes_with_a_remedy_and_what_is_there_without() -> None:
    for check in doctor.examine():
        assert bool(check.remedy) != check.ok, check.name
        assert check.found
        assert check.needed_for


def test_only_an_essential_decides() -> None:
    good = doctor.Check(name="x", ok=True, essential=True, found="1", needed_for="all")
    assert doctor.healthy([good, replace(good, ok=False, essential=False)])
    assert not doctor.healthy([good, replace(good, ok=False)])


def test_a_machine_without_anything_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(doctor, "find_spec", lambda _name: None)
    missing = {check.name: check for check in doctor.examine() if not check.ok}
    assert {"mainstay[node]", "chromium", "redis", "C compiler"} <= set(missing)
    assert "apt-get" in missing["redis"].remedy
    assert not doctor.healthy(missing.values())
