"""``mainstay validate`` and ``mainstay criteria`` as somebody types them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from detectors.criteria import Criteria, JudgedSuite
from probes.benchmarks.result import BenchmarkResult, Better, MetricValues, State, SuiteResult
from probes.words import Verdict

ROOT = Path(__file__).resolve().parents[2]


def mainstay(*arguments: object, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mainstay", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False)


def write(path: Path, speed: float, *, state: State = State.OK) -> Path:
    values = (speed, speed * 1.01, speed * 0.99) if state is State.OK else ()
    metric = MetricValues(name="fp32_n1024", unit="FLOP/s", better=Better.HIGHER, values=values)
    run = BenchmarkResult(
        benchmark="gemm",
        state=state,
        error=None if state is State.OK else "still running after 60 s: killed",
        seconds=1.0,
        device="cpu",
        metrics=(metric,),
    )
    result = SuiteResult(
        suite="quick",
        started_at=10.0,
        finished_at=20.0,
        host="node-a",
        device="AMD EPYC x2",
        cohort="2x-AMD-EPYC",
        software="torch",
        benchmarks=(run,),
    )
    path.write_bytes(msgspec.json.encode(result))
    return path


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    return [write(tmp_path / f"run-{i}.json", 1e11 * (1 + 0.002 * i)) for i in range(6)]


@pytest.fixture
def criteria(tmp_path: Path, runs: list[Path]) -> Path:
    out = tmp_path / "criteria.json"
    done = mainstay("criteria", "fit", *runs, "--out", out)
    assert done.returncode == 0, done.stderr
    return out


def test_fit_writes_criteria_and_shows_them(criteria: Path, runs: list[Path], tmp_path: Path) -> None:
    (known,) = msgspec.json.decode(criteria.read_bytes(), type=Criteria).criteria
    assert (known.benchmark, known.metric, known.cohort, known.n) == ("gemm", "fp32_n1024", "2x-AMD-EPYC", 6)
    assert known.learned_at == 20.0, "the clock is the data's"
    done = mainstay("criteria", "fit", *runs, "--out", tmp_path / "again.json", "--json")
    assert msgspec.json.decode(done.stdout, type=Criteria) == msgspec.json.decode(criteria.read_bytes(), type=Criteria)


@pytest.mark.parametrize(
    ("speed", "state", "verdict", "code"),
    [
        (1e11, State.OK, Verdict.PASS, 0),
        (0.97e11, State.OK, Verdict.WARN, 0),
        (0.5e11, State.OK, Verdict.FAIL, 1),
        (1e11, State.TIMEOUT, Verdict.UNKNOWN, 4),
    ],
)
def test_check_ends_with_the_verdict(
    criteria: Path, tmp_path: Path, *, speed: float, state: State, verdict: Verdict, code: int
) -> None:
    done = mainstay("criteria", "check", "--criteria", criteria, write(tmp_path / "new.json", speed, state=state))
    assert done.returncode == code, done.stderr
    assert done.stdout.split()[5] == verdict.value.upper()
    assert f"\n{verdict.value.upper()}  node-a" in done.stdout, "the last word is the verdict on the whole"


def test_check_prints_only_json_when_asked(criteria: Path, tmp_path: Path) -> None:
    files = [write(tmp_path / f"new-{i}.json", speed) for i, speed in enumerate((1e11, 0.5e11))]
    done = mainstay("criteria", "check", "--criteria", criteria, *files, "--json")
    judged = msgspec.json.decode(done.stdout, type=list[JudgedSuite])
    assert [one.verdict for one in judged] == [Verdict.PASS, Verdict.FAIL]
    assert done.returncode == 1, "the worst of the files"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "No such file"),
        ("", "not JSON"),
        ("{", "not JSON"),
        (b'{"suite": "\xff"}', "not JSON"),
        ('{"more": ' + "[" * 100_000, "not JSON"),
        ("[]", "Expected `object`, got `array`"),
        ('{"suite": "quick"}', "missing required field `started_at`"),
        ('{"suite": "quick", "started_at": "noon"}', "$.started_at"),
    ],
    ids=["absent", "empty", "truncated", "not UTF-8", "deep", "list", "field missing", "wrong type"],
)
def test_a_bad_result_file_is_named_with_its_field(
    criteria: Path, tmp_path: Path, text: str | bytes | None, words: str
) -> None:
    bad = tmp_path / "bad.json"
    if text is not None:
        bad.write_bytes(text if isinstance(text, bytes) else text.encode())
    done = mainstay("criteria", "check", "--criteria", criteria, bad)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert str(bad) in done.stderr
    assert words in done.stderr


def test_bad_criteria_are_named_with_their_field(criteria: Path, runs: list[Path]) -> None:
    document = msgspec.json.decode(criteria.read_bytes())
    document["criteria"][0]["low"] = "high"
    criteria.write_bytes(msgspec.json.encode(document))
    done = mainstay("criteria", "check", "--criteria", criteria, runs[0])
    assert done.returncode == 2
    assert f"{criteria}: Expected `float | null`, got `str` - at `$.criteria[0].low`" in done.stderr


def test_too_few_runs_are_bad_input(runs: list[Path], tmp_path: Path) -> None:
    done = mainstay("criteria", "fit", *runs[:4], "--out", tmp_path / "none.json")
    assert done.returncode == 2
    assert done.stderr == "mainstay: no criterion can be learned from 4 files: only 4 runs, 5 are needed\n"
    assert not (tmp_path / "none.json").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--suite", "swift"), "unknown suite 'swift': choose quick, standard, deep"),
        (("--device", "tpu"), "unknown device 'tpu'"),
        (("--directory", "/nowhere/at/all"), "/nowhere/at/all: not a directory"),
        (("--out", "/nowhere/at/all/x.json"), "its directory does not exist"),
        (("--criteria", "/nowhere.json"), "/nowhere.json: No such file"),
    ],
)
def test_validate_refuses_bad_input_before_it_measures(arguments: tuple[str, str], words: str) -> None:
    done = mainstay("validate", *arguments)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert words in done.stderr


@pytest.mark.slow
@pytest.mark.processes
def test_validate_measures_this_machine(tmp_path: Path) -> None:
    """The real thing once: every benchmark ran, all is UNKNOWN for want of criteria, JSON and nothing else."""
    out = tmp_path / "run.json"
    done = mainstay("validate", "--json", "--out", out, "--device", "cpu", "--directory", ROOT, seconds=110)
    assert done.returncode == 4, done.stderr
    judged = msgspec.json.decode(done.stdout, type=JudgedSuite)
    assert msgspec.json.decode(out.read_bytes(), type=JudgedSuite) == judged
    assert set(msgspec.json.decode(done.stdout)) >= {
        "suite", "started_at", "finished_at", "host", "device", "benchmarks", "verdicts",
    }  # fmt: skip
    assert {one.benchmark: one.state for one in judged.benchmarks} == dict.fromkeys(
        ("deterministic", "gemm", "memory", "copy", "launch", "allreduce", "disk"), State.OK
    ), [one.error for one in judged.benchmarks]
    assert {one.verdict for one in judged.verdicts} == {Verdict.UNKNOWN}
    shown = mainstay("criteria", "check", "--criteria", _none(tmp_path), out)
    assert "mainstay criteria fit" in shown.stdout, "how to learn some"


def _none(folder: Path) -> Path:
    path = folder / "no-criteria.json"
    path.write_text('{"criteria": []}')
    return path
