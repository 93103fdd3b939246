"""``mainstay accept-gpu``: the report, the exit codes, and what a check may do to its process."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from mainstay.probes.benchmarks.base import Device
from mainstay.probes.benchmarks.cancellation import CancelSignal
from mainstay.recovery.accept_gpu.contract import CheckFigure, CheckResult, CheckSettings, CheckStatus
from mainstay.recovery.accept_gpu.registry import CHECKS
from mainstay.recovery.accept_gpu.runner import AcceptanceReport, AcceptanceRun, CannotStartError, without_names
from mainstay.recovery.accept_gpu.snapshot import SnapshotTrial
from mainstay.recovery.accept_gpu.training_job import MOST_RANKS, ranks_of
from tests.commands import run_here
from tests.recovery.accept_gpu import misbehaving

MISBEHAVING = (sys.executable, misbehaving.__file__)
DEVICE = Device(kind="cuda", model="H100", count=8)


def report(*statuses: CheckStatus, evidence: str = "Seen.") -> AcceptanceReport:
    names = list(CHECKS)
    checks = [
        CheckResult(
            name=name, status=status, evidence=evidence, figures=(CheckFigure("speed", 2e9, "B/s"),),
            facts={"driver": "580.95"},
        )
        for name, status in zip(names, statuses, strict=False)
    ]  # fmt: skip
    return AcceptanceReport(
        started_at="2026-01-01T00:00:00+00:00",
        seconds=1.0,
        software="torch",
        device="H100",
        devices=2,
        checks=tuple(checks),
    )


def devices_only(folder: Path, count: int) -> Sequence[str]:
    """A process that knows only how many GPUs there are, and no torch."""
    script = folder / "devices.py"
    script.write_text(
        "import json, sys\n"
        "print(json.dumps({'ready': 'x'}), flush=True)\n"
        "for _ in sys.stdin:\n"
        f"    device = {{'kind': 'cuda', 'model': 'H100', 'count': {count}}}\n"
        "    print(json.dumps({'result': device}), json.dumps({'exit': 0}), sep='\\n', flush=True)\n"
    )
    return (sys.executable, str(script))


@pytest.mark.slow
@pytest.mark.processes
def test_a_check_that_dies_hangs_or_raises_fails_and_the_others_go_on() -> None:
    names = ("killed", "hung", "raising", "good")
    told: list[str] = []
    run = AcceptanceRun(
        names=names, kind="cpu", checks=misbehaving.CHECKS, command=MISBEHAVING, watcher=told.append, with_names=True
    )
    found = run.run()
    assert told == [check.name for check in found.checks] == list(names)
    killed, hung, raising, good = found.checks
    assert [check.status.value for check in found.checks] == ["failed", "failed", "failed", "passed"]
    assert "SIGKILL" in killed.evidence
    assert "still running after 0.5 s" in hung.evidence
    assert raising.evidence.startswith("RuntimeError: CUDA error: an illegal memory access")
    assert "\n" not in raising.evidence
    assert good.evidence == f"{misbehaving.uuid()} of {socket.gethostname()} is cpu"
    assert found.host == socket.gethostname()
    assert not found.passed


def test_what_has_no_time_left_is_skipped(tmp_path: Path) -> None:
    found = AcceptanceRun(names=("nvml", "kill"), minutes=0.01, command=devices_only(tmp_path, 2)).run()
    assert [check.status for check in found.checks] == [CheckStatus.SKIPPED] * 2
    assert "--minutes" in found.checks[0].evidence


def test_a_run_that_is_cancelled_reports_what_it_did_not_do(tmp_path: Path) -> None:
    interrupt = CancelSignal()
    names: list[str] = []

    def cancel(name: str) -> None:
        names.append(name)
        interrupt.set("ended by SIGTERM")

    run = AcceptanceRun(names=("nvml", "kill"), command=devices_only(tmp_path, 2), interrupt=interrupt, watcher=cancel)
    found = run.run()
    interrupt.close()
    assert [(check.status, check.evidence) for check in found.checks] == [(CheckStatus.SKIPPED, "ended by SIGTERM")] * 2


def test_one_gpu_is_too_few(tmp_path: Path) -> None:
    with pytest.raises(CannotStartError, match="torch sees 1 GPU") as raised:
        AcceptanceRun(names=("nvml",), command=devices_only(tmp_path, 1)).run()
    assert "\n" not in str(raised.value)


def test_a_process_without_torch_cannot_start() -> None:
    command = (sys.executable, "-c", "raise ModuleNotFoundError('No module named torch')")
    with pytest.raises(CannotStartError, match=r"torch cannot be imported: .*No module named torch"):
        AcceptanceRun(names=("nvml",), command=command).run()


def test_the_report_names_neither_host_nor_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu-7.site.example")
    text = f"{misbehaving.uuid()} of gpu-7 (gpu-7.site.example) in {Path.home()}/x has cuda:0 and 80 GiB"
    cleaned = without_names(report(CheckStatus.FAILED, evidence=text)).checks[0].evidence
    assert cleaned == "<name> of <name> (<name>) in <name>/x has cuda:0 and 80 GiB"


@pytest.mark.parametrize(("statuses", "code"), [
    ([CheckStatus.PASSED, CheckStatus.PASSED], 0),
    ([CheckStatus.PASSED, CheckStatus.FAILED], 1),
    ([CheckStatus.PASSED, CheckStatus.SKIPPED], 1),
])  # fmt: skip
def test_exit_code_table_and_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, statuses: list[CheckStatus], code: int
) -> None:
    monkeypatch.setattr(AcceptanceRun, "run", lambda _: report(*statuses))
    file = tmp_path / "report.json"
    done = run_here("accept-gpu", "--output", file)
    assert done.returncode == code, done.stderr
    assert all(status.value.upper() in done.stdout for status in statuses)
    assert "2.00 GB/s" in done.stdout
    written = json.loads(file.read_text())
    assert [check["status"] for check in written["checks"]] == [status.value for status in statuses]
    assert written["host"] == ""
    printed = run_here("accept-gpu", "--output", file, "--json")
    assert json.loads(printed.stdout) == written


@pytest.mark.parametrize(("words", "said"), [
    (["--checks", "nvml,nothing"], "unknown check 'nothing'"),
    (["--minutes", "0"], "--minutes must be above 0"),
    (["--minutes", "nan"], "--minutes must be above 0"),
    (["--output", "/no/such/folder/report.json"], "cannot write"),
])  # fmt: skip
def test_bad_options_give_one_line(words: list[str], said: str) -> None:
    done = run_here("accept-gpu", *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_machine_that_cannot_start_gives_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(AcceptanceRun, "run", _raise_too_few)
    done = run_here("accept-gpu", "--output", tmp_path / "report.json")
    assert (done.returncode, done.stderr) == (2, "mainstay accept-gpu: torch sees 1 GPU.\n")
    assert not (tmp_path / "report.json").exists()


def _raise_too_few(_: AcceptanceRun) -> AcceptanceReport:
    raise CannotStartError("torch sees 1 GPU.")


def test_chosen_checks_run_in_the_usual_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    chosen: list[Sequence[str]] = []

    def run(self: AcceptanceRun) -> AcceptanceReport:
        chosen.append(self.names)
        return report(CheckStatus.PASSED)

    monkeypatch.setattr(AcceptanceRun, "run", run)
    for words in ([], ["--checks", "kill, nvml"]):
        assert run_here("accept-gpu", "--output", tmp_path / "report.json", *words).returncode == 0
    assert chosen == [tuple(CHECKS), ("nvml", "kill")]


def test_deadlines_fit_in_the_default_time() -> None:
    assert sum(check.deadline_seconds for check in CHECKS.values()) <= 30 * 60


def test_a_job_has_a_rank_for_each_gpu() -> None:
    assert CheckSettings(device=DEVICE).labels == tuple(f"cuda:{index}" for index in range(8))
    many = CheckSettings(device=Device(kind="cuda", model="H100", count=16))
    assert [ranks_of(CheckSettings(device=DEVICE)), ranks_of(many)] == [8, MOST_RANKS]


def test_the_hunt_finds_a_snapshot_of_half_a_write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trial = SnapshotTrial("cpu", 1 << 16, tmp_path)
    taken, torn = trial.hunt(0.0)
    assert (taken >= 10, torn) == (True, [])
    half = trial.weight[: len(trial.weight) // 2]
    monkeypatch.setattr(trial, "_write", lambda: half.fill_(float(trial.step)))
    taken, torn = trial.hunt(0.0)
    assert torn == list(range(trial.step - taken + 1, trial.step + 1))
    trial.close()


def test_a_full_shared_memory_proves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1 << 20))
    found = CHECKS["snapshot"]().run(CheckSettings(device=DEVICE, folder=str(tmp_path)))
    assert found.status is CheckStatus.FAILED
    assert "/dev/shm" in found.evidence
