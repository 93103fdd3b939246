"""``mainstay validate`` and ``mainstay criteria`` as a user types them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from mainstay.detectors.validation.verdict import Criteria, SuiteVerdict
from mainstay.probes.benchmarks.result import BenchmarkResult, BenchmarkState, Better, MetricValues, SuiteResult
from mainstay.probes.core_types import Verdict
from tests.commands import run_here as mainstay

ROOT = Path(__file__).resolve().parents[2]
DAYS = ("monday", "monday", "tuesday", "tuesday", "friday", "friday")


def write(path: Path, speed: float, *, state: BenchmarkState = BenchmarkState.OK) -> Path:
    values = (speed, speed * 1.01, speed * 0.99) if state is BenchmarkState.OK else ()
    metric = MetricValues(name="fp32_n1024", unit="FLOP/s", better=Better.HIGHER, values=values)
    run = BenchmarkResult(
        benchmark="gemm",
        state=state,
        error=None if state is BenchmarkState.OK else "still running after 60 s: killed",
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
    done = mainstay("criteria", "fit", *runs, "--output", out)
    assert done.returncode == 0, done.stderr
    return out


def test_fit_writes_criteria_and_shows_them(criteria: Path, runs: list[Path], tmp_path: Path) -> None:
    (known,) = msgspec.json.decode(criteria.read_bytes(), type=Criteria).criteria
    assert (known.benchmark, known.metric, known.cohort, known.n) == ("gemm", "fp32_n1024", "2x-AMD-EPYC", 6)
    assert known.learned_at == 20.0, "the clock is the data's"
    done = mainstay("criteria", "fit", *runs, "--output", tmp_path / "again.json", "--json")
    assert msgspec.json.decode(done.stdout, type=Criteria) == msgspec.json.decode(criteria.read_bytes(), type=Criteria)


@pytest.mark.parametrize(
    ("speed", "state", "verdict", "code"),
    [
        (1e11, BenchmarkState.OK, Verdict.PASS, 0),
        (0.97e11, BenchmarkState.OK, Verdict.WARN, 0),
        (0.5e11, BenchmarkState.OK, Verdict.FAIL, 1),
        (1e11, BenchmarkState.TIMEOUT, Verdict.UNKNOWN, 4),
    ],
)
def test_check_ends_with_the_verdict(
    criteria: Path, tmp_path: Path, *, speed: float, state: BenchmarkState, verdict: Verdict, code: int
) -> None:
    done = mainstay("criteria", "check", "--criteria", criteria, write(tmp_path / "new.json", speed, state=state))
    assert done.returncode == code, done.stderr
    assert done.stdout.split()[5] == verdict.value.upper()
    assert f"\n{verdict.value.upper()}  node-a" in done.stdout, "the last word is the verdict on the whole"


def test_check_prints_only_json_when_asked(criteria: Path, tmp_path: Path) -> None:
    files = [write(tmp_path / f"new-{i}.json", speed) for i, speed in enumerate((1e11, 0.5e11))]
    done = mainstay("criteria", "check", "--criteria", criteria, *files, "--json")
    judged = msgspec.json.decode(done.stdout, type=list[SuiteVerdict])
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


def test_sessions_are_told_from_folders_and_one_alone_is_a_warning(
    criteria: Path, runs: list[Path], tmp_path: Path
) -> None:
    (one,) = msgspec.json.decode(criteria.read_bytes(), type=Criteria).criteria
    assert one.sessions is not None
    assert one.sessions.count == 1, "they ended in the same second"
    for day in ("monday", "tuesday", "friday"):
        (tmp_path / day).mkdir()
    spread = [write(tmp_path / day / path.name, 1e11 + i) for i, (day, path) in enumerate(zip(DAYS, runs, strict=True))]
    out = tmp_path / "sessions.json"
    done = mainstay("criteria", "fit", *spread, "--output", out, "--sessions", "folder")
    assert done.returncode == 0, done.stderr
    assert "WARN" not in done.stdout
    (three,) = msgspec.json.decode(out.read_bytes(), type=Criteria).criteria
    assert three.sessions is not None
    assert (three.sessions.count, three.sessions.freedom) == (3, 2)
    warned = mainstay("criteria", "fit", *runs, "--output", out)
    assert "WARN: learned from one session: the limits hold for that session only" in warned.stdout


def test_too_few_runs_are_bad_input(runs: list[Path], tmp_path: Path) -> None:
    done = mainstay("criteria", "fit", *runs[:4], "--output", tmp_path / "none.json")
    assert done.returncode == 2
    assert done.stderr == "mainstay criteria: no criterion can be learned from 4 files: only 4 runs, 5 are needed\n"
    assert not (tmp_path / "none.json").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--suite", "swift"), "unknown suite 'swift': choose quick, standard, deep"),
        (("--device", "tpu"), "unknown device 'tpu'"),
        (("--disk-test-dir", "/nowhere/at/all"), "/nowhere/at/all is not a directory"),
        (("--output", "/nowhere/at/all/x.json"), "its directory does not exist"),
        (("--criteria", "/nowhere.json"), "cannot read /nowhere.json: No such file"),
    ],
)
def test_validate_refuses_bad_input_before_it_measures(arguments: tuple[str, str], words: str) -> None:
    done = mainstay("validate", *arguments)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert words in done.stderr


def fleet(
    folder: Path, name: str, seed: int, *, slow: dict[str, float] | None = None, noise: float = 0.003
) -> list[Path]:
    """Six hosts of four GPUs that keep their differences: a steady metric and one that repeats badly."""
    lasting, random, files = np.random.default_rng(5), np.random.default_rng(seed), []
    for host in (f"node-{i}" for i in range(6)):
        results = []
        for device in (f"cuda:{i}" for i in range(4)):
            level = 1e14 * np.exp(0.005 * lasting.standard_normal()) / (slow or {}).get(f"{host}/{device}", 1.0)
            steady = level * np.exp(noise * random.standard_normal(7))
            rough = 1e-5 * np.exp(0.12 * random.standard_normal(7))
            metrics = (
                MetricValues(name="bf16", unit="FLOP/s", better=Better.HIGHER, values=tuple(map(float, steady))),
                MetricValues(name="wake", unit="s", better=Better.LOWER, values=tuple(map(float, rough))),
            )
            results.append(
                BenchmarkResult(
                    benchmark="gemm", state=BenchmarkState.OK, error=None, seconds=1.0, device=device, metrics=metrics
                )
            )
        document = SuiteResult(
            suite="quick",
            started_at=1.0,
            finished_at=2.0,
            host=host,
            device="H100 x4",
            cohort="4x-H100",
            software="torch",
            benchmarks=tuple(results),
        )
        files.append(folder / f"{name}-{host}.json")
        files[-1].write_bytes(msgspec.json.encode(document))
    return files


EVERYBODY = {f"node-{host}/cuda:{gpu}": 1.03 for host in range(6) for gpu in range(4)}


def test_fit_takes_distributions_where_they_repeat_and_limits_elsewhere(tmp_path: Path) -> None:
    files = [*fleet(tmp_path, "a", 1), *fleet(tmp_path, "b", 2)]
    out = tmp_path / "criteria.json"
    sources = {}
    for method in ("auto", "cdf", "robust"):
        done = mainstay("criteria", "fit", *files, "--output", out, "--method", method)
        assert done.returncode == 0, done.stderr
        learned = msgspec.json.decode(out.read_bytes(), type=Criteria)
        sources[method] = {one.metric: one.source.removeprefix("learned:") for one in learned.criteria}
        refused = [one.reason for one in learned.refused]
        assert all("0.98 makes a gate" in reason for reason in refused)
        assert len(refused) == (method == "cdf")
    assert sources == {
        "auto": {"bf16": "Validator", "wake": "RobustLimits"},
        "cdf": {"bf16": "Validator"},
        "robust": {"bf16": "RobustLimits", "wake": "RobustLimits"},
    }


def test_check_says_what_slow_devices_share(tmp_path: Path) -> None:
    out = tmp_path / "criteria.json"
    assert mainstay("criteria", "fit", *fleet(tmp_path, "a", 1), "--output", out).returncode == 0
    slow = fleet(tmp_path, "b", 2, slow={f"node-3/cuda:{gpu}": 1.1 for gpu in range(4)})
    done = mainstay("criteria", "check", *slow, "--criteria", out)
    assert done.returncode == 1
    assert done.stdout.endswith("4 of 4 devices of node-3 are slow: look for one fault that they share, not for 4.\n")


@pytest.mark.parametrize(
    ("slow", "code", "words"),
    [
        ({}, 0, "did not move as a whole"),
        (EVERYBODY, 1, "blame the update, not the nodes"),
        ({"node-2/cuda:1": 1.08}, 1, "slower by themselves: node-2/cuda:1"),
    ],
    ids=["nothing", "everybody", "one"],
)
def test_drift_tells_an_update_from_a_device(tmp_path: Path, slow: dict[str, float], code: int, words: str) -> None:
    before, after = fleet(tmp_path, "a", 1), fleet(tmp_path, "b", 2, slow=slow)
    done = mainstay("criteria", "compare", "--before", *before, "--after", *after, "--json")
    steady = msgspec.json.decode(done.stdout)[0]
    assert words in steady["reason"]
    assert steady["verdict"] == ("fail" if code else "pass")
    assert done.returncode in ((code,) if code else (0, 4)), "the rough metric may be too noisy to tell"


def test_drift_of_too_few_is_unknown(tmp_path: Path) -> None:
    before, after = fleet(tmp_path, "a", 1)[:1], fleet(tmp_path, "b", 2)[:1]
    done = mainstay("criteria", "compare", "--before", *before, "--after", *after)
    assert done.returncode == 4
    assert "4 devices before and 4 after" in done.stdout
    gone = mainstay("criteria", "compare", "--before", *before, "--after", tmp_path / "none.json")
    assert gone.returncode == 2
    assert len(gone.stderr.splitlines()) == 1


def test_repeatability_names_what_is_no_gate(tmp_path: Path) -> None:
    once = fleet(tmp_path, "a", 1)
    done = mainstay("criteria", "repeatability", *once)
    assert done.returncode == 4, "nothing was repeated"
    twice = mainstay("criteria", "repeatability", *once, *fleet(tmp_path, "b", 2), "--json")
    steady, rough = msgspec.json.decode(twice.stdout)
    assert (steady["verdict"], rough["verdict"]) == ("pass", "fail")
    assert rough["similarity"] < 0.98 < steady["similarity"]
    assert twice.returncode == 1


@pytest.mark.slow
@pytest.mark.processes
def test_validate_measures_this_machine(tmp_path: Path) -> None:
    """The real thing once: every benchmark ran, all is UNKNOWN for want of criteria, JSON and nothing else."""
    out = tmp_path / "run.json"
    command = [sys.executable, "-m", "mainstay", "validate", "--json", "--output", out]
    command += ["--device", "cpu", "--disk-test-dir", ROOT]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 4, done.stderr
    judged = msgspec.json.decode(done.stdout, type=SuiteVerdict)
    assert msgspec.json.decode(out.read_bytes(), type=SuiteVerdict) == judged
    assert set(msgspec.json.decode(done.stdout)) >= {
        "suite", "started_at", "finished_at", "host", "device", "benchmarks", "verdicts",
    }  # fmt: skip
    assert {one.benchmark: one.state for one in judged.benchmarks} == dict.fromkeys(
        ("deterministic", "gemm", "memory", "copy", "launch", "allreduce", "disk", "tcp"), BenchmarkState.OK
    ), [one.error for one in judged.benchmarks]
    assert {one.verdict for one in judged.verdicts} == {Verdict.UNKNOWN}
    shown = mainstay("criteria", "check", "--criteria", _none(tmp_path), out)
    assert "mainstay criteria fit" in " ".join(shown.stdout.split()), "how to learn some"


def _none(folder: Path) -> Path:
    path = folder / "no-criteria.json"
    path.write_text('{"criteria": []}')
    return path
