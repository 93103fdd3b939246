"""Arguments of ``mainstay validate`` and ``mainstay criteria`` at their edges."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainstay.detectors.cli_errors import InputError
from mainstay.detectors.validation import cli
from mainstay.probes.benchmarks.result import SuiteResult
from mainstay.probes.benchmarks.suites import SUITES
from mainstay.probes.core_types import Verdict


@pytest.mark.parametrize("budget", [0.0, -0.1, 0.5, 1.0])
def test_a_budget_lies_between_nothing_and_a_half(budget: float) -> None:
    cli._check_budget(1e-9)
    cli._check_budget(0.499)
    with pytest.raises(InputError, match=f"must lie between 0 and 0.5, not {budget:g}"):
        cli._check_budget(budget)


def test_a_request_is_checked_before_anything_is_measured(tmp_path: Path) -> None:
    for device in ("auto", "cpu", "cuda"):
        cli._check_request(device, tmp_path, 0)
    for arguments, words in (
        (("gpu", None, 0), "unknown device 'gpu': choose auto, cpu, or cuda"),
        (("cpu", tmp_path / "none", 0), "is not a directory: name an existing one"),
        (("cpu", None, -1), "--remeasure must be at least 0, not -1"),
    ):
        with pytest.raises(InputError, match=words):
            cli._check_request(*arguments)
    assert cli._chosen(SUITES, "quick") is SUITES["quick"]
    assert cli._part(SUITES["quick"], " gemm , ,copy") == ("gemm", "copy")
    assert cli._part(SUITES["quick"], "") == ()
    with pytest.raises(InputError, match="moon"):
        cli._part(SUITES["quick"], "moon")


def test_a_file_must_be_writable_before_minutes_pass(tmp_path: Path) -> None:
    cli._check_writable(None)
    cli._check_writable(tmp_path / "new.json")
    with pytest.raises(InputError, match="it is a directory"):
        cli._check_writable(tmp_path)
    with pytest.raises(InputError, match="its directory does not exist"):
        cli._check_writable(tmp_path / "none" / "new.json")


def result(host: str, ended: float) -> SuiteResult:
    return SuiteResult(
        suite="quick", started_at=0.0, finished_at=ended, host=host, device="d", cohort="c", software="s", benchmarks=()
    )  # fmt: skip


@pytest.mark.parametrize(
    ("by", "sessions"),
    [
        ("time", ["a@100", "a@100", "b@90000"]),
        ("day", ["a@1970-01-01", "a@1970-01-01", "b@1970-01-02"]),
        ("folder", ["a@/x", "a@/y", "b@/x"]),
        ("machine", ["a", "a", "b"]),
        ("none", ["", "", ""]),
    ],
)
def test_which_runs_share_conditions(by: str, sessions: list[str]) -> None:
    files = [Path("/x/1.json"), Path("/y/2.json"), Path("/x/3.json")]
    results = [result("a", 100.0), result("a", 1900.0), result("b", 90_000.0)]
    assert cli._sessions(by, list(zip(files, results, strict=True))) == sessions


def test_verdicts_as_exit_codes_and_similarities_as_text() -> None:
    assert [cli.EXIT_CODES[one] for one in (Verdict.PASS, Verdict.WARN, Verdict.FAIL, Verdict.UNKNOWN)] == [0, 0, 1, 4]
    assert (cli._digits(None), cli._digits(0.98765), cli._digits(1.0)) == ("-", "0.9877", "1.0000")
