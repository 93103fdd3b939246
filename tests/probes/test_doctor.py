"""The doctor: says what is missing, how to get it, and whether the essentials are there."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mainstay.probes import doctor
from mainstay.probes.kernel_log.sources import SourceError

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


def test_what_is_missing_comes_with_a_fix_and_what_is_there_without() -> None:
    for check in doctor.examine():
        assert bool(check.fix) != check.ok, check.name
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
    assert "apt-get" in missing["redis"].fix
    assert not doctor.healthy(missing.values())


def test_it_looks_for_everything_that_reports_a_fault() -> None:
    assert {"kernel log", "NVML events", "RDMA ports"} <= {check.name for check in doctor.examine()}


def test_a_kernel_log_that_is_closed_to_us_comes_with_every_way_to_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(_where: str) -> None:
        raise SourceError("/dev/kmsg: Operation not permitted (needs CAP_SYSLOG); journalctl: not found")

    monkeypatch.setattr("mainstay.probes.kernel_log.sources.open_source", refuse)
    check = doctor._kernel_log()
    assert not check.ok
    assert not check.essential, "a node without it is measured all the same"
    assert "CAP_SYSLOG" in check.found
    assert "--device /dev/kmsg" in doctor._log_fix(tmp_path)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "kmsg").touch()
    assert "dmesg_restrict" not in doctor._log_fix(tmp_path)
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/dmesg_restrict").write_text("1\n")
    fix = doctor._log_fix(tmp_path)
    assert "dmesg_restrict=0" in fix
    assert "systemd-journal" in fix


def test_ports_are_counted_and_dark_ones_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "_INFINIBAND", tmp_path)
    assert not doctor._ports().ok
    for port in ("mlx5_0", "mlx5_1"):
        (tmp_path / port / "ports" / "1").mkdir(parents=True)
        (tmp_path / port / "ports" / "1" / "state").write_text("4: ACTIVE\n")
    assert doctor._ports().found == "2 ports"
    monkeypatch.setattr(doctor.os, "access", lambda path, _mode: "mlx5_1" not in str(path))
    assert doctor._ports().found == "not readable: mlx5_1"
