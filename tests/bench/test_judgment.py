"""Scores of generated runs: who is rightly blamed, and the table of all sets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import judgment, lib_runs
from bench.lib_runs import Played, cases, fixed_rule, outcome, play_all, rows
from bench.report import Row
from mainstay.detectors.finding import Entity, Evidence, Finding, FindingKind
from mainstay.detectors.generator.catalog import FAULTS, TRAPS
from mainstay.detectors.generator.truth import Truth, blame
from mainstay.detectors.generator.world import JOB, World
from mainstay.probes.core_types import Severity

K = FindingKind
WORLD = World(dp=4, pp=1, tp=4, steps=30)
LATE = float(WORLD.times()[1][-1])
SLOW = blame(20, [K.STRAGGLER], [3])
PLAYED = Played(
    name="slow_rank", ranks=16, seed=1, damaged=False, seconds=9.0, kind_named=True, findings=2, wrong=[], advice=[],
    days=0.5, rule=True,
)  # fmt: skip


def finding(kind: FindingKind, time: float = LATE, severity: Severity = Severity.WARNING, **entity: Any) -> Finding:
    return Finding(
        kind=kind, entity=Entity(**entity), time=time, severity=severity, detector="d", confidence=0.9,
        evidence=Evidence(summary="so"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("said", "found", "wrong"),
    [
        (finding(K.STRAGGLER, job=JOB, rank=3), True, 0),
        (finding(K.STRAGGLER, job=JOB, rank=4), False, 1),
        (finding(K.STRAGGLER, job=JOB, rank=3, time=LATE - 90.0), False, 1),
        (finding(K.STRAGGLER, node="node-0"), True, 0),
        (finding(K.STRAGGLER, node="node-0", device="gpu3"), True, 0),
        (finding(K.STRAGGLER, node="node-0", device="gpu2"), False, 1),
        (finding(K.STRAGGLER, node="node-1"), False, 1),
        (finding(K.JOB_SLOWDOWN, job=JOB), False, 0),
        (finding(K.CONGESTION, job=JOB), False, 1),
        (finding(K.CONGESTION, job=JOB, severity=Severity.INFO), False, 0),
        (replace(finding(K.CONGESTION, job=JOB), active=False), False, 0),
    ],
)
def test_a_finding_is_right_wrong_or_a_consequence(said: Finding, *, found: bool, wrong: int) -> None:
    result = outcome(WORLD, SLOW, [said])
    assert (result.seconds is not None, len(result.wrong)) == (found, wrong)


def test_each_of_two_faults_has_to_be_named() -> None:
    both = Truth(step=20, parts=(SLOW, blame(20, [K.CONGESTION], [5, 6])))
    first, second = finding(K.STRAGGLER, job=JOB, rank=3), finding(K.CONGESTION, job=JOB, rank=1, peer=6)
    assert outcome(WORLD, both, [first]).seconds is None
    result = outcome(WORLD, both, [first, second])
    assert result.seconds is not None
    assert not result.wrong


def test_advice_that_the_fault_explains_is_counted_unless_the_run_is_so_by_design() -> None:
    said = [finding(K.STAGE_IMBALANCE, job=JOB)]
    assert len(outcome(WORLD, SLOW, said).advice) == 1
    assert not outcome(World(dp=4, pp=1, tp=4, steps=30, last_stage=1.6), SLOW, said).advice


def test_the_fixed_rule_blames_who_is_slow_in_five_steps_in_a_row() -> None:
    world = World(dp=4, pp=1, tp=4, steps=30)
    world.slow(20, [3], 1.1)
    world.slow(20, [5], np.where(np.arange(10) % 4 == 0, 1.0, 1.1)[:, None])
    assert fixed_rule(world.recording().by_step[JOB]) == {3}


def test_every_case_is_played_in_every_size_that_can_have_it_and_half_are_damaged() -> None:
    made = cases()
    assert {case.name for case in made} == FAULTS.keys() | TRAPS.keys()
    assert len({(case.name, case.ranks, case.seed) for case in made}) == len(made)
    assert sum(case.name in TRAPS for case in made) >= 500
    assert sum(case.name in FAULTS for case in made) == 3 * len(FAULTS) - 2  # a spine needs three leaves
    assert abs(np.mean([case.damaged for case in made]) - 0.5) < 0.05


def test_runs_in_the_log_are_not_played_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    chosen = [case for case in cases() if case.name == "disk_full" and case.ranks == 16]
    (first,) = play_all([replace(case, shape=case.shape | {"steps": 40, "seconds": 1.0}) for case in chosen], log)
    assert first.name == "disk_full"
    assert play_all(chosen, log) == [first]


def test_rows_name_what_was_missed_and_who_was_blamed() -> None:
    wrong = replace(PLAYED, seconds=None, wrong=["straggler job=run/rank=4"], damaged=True)
    trap = replace(PLAYED, name="swing", wrong=["job_slowdown job=run"])
    made = {row.claim.rpartition(": ")[2]: row for row in rows([PLAYED, wrong, trap])}
    assert made["faults found, right kind and culprit"].figure == 0.5
    assert made["findings about the innocent"].figure == 0.25
    assert made["healthy traps blamed"].note == "swing: job_slowdown in 1"
    assert made["slow rank"].note == "slowest 9 s; missed: 16 ranks, damaged; slow_rank: straggler in 1"


def test_a_set_without_data_says_that_it_was_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judgment, "DATA", tmp_path)
    line, (row,) = judgment.of_set(judgment.SETS[0], [])
    assert (line["recall"], row.note, row.holds) == ("skipped: no data", "skipped: no data", None)


def test_a_line_takes_its_columns_from_the_claims_of_its_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judgment, "DATA", tmp_path)
    (tmp_path / "step-times").mkdir()
    told = {"target": "<= 10", "holds": True, "kind": "replayed", "unit": "samples"}
    delay = Row(claim="published run 10% slower → finding, p95", figure=6.0, n=50, note="median 5, missed 1", **told)  # type: ignore[arg-type]
    line, made = judgment.of_set(judgment.SETS[0], [delay])
    assert (line["recall"], line["delay"], line["n"]) == ("0.980", "6 samples", "50")
    assert [row.holds for row in made] == [None, True]
    assert "| Megatron step times | slowdown | 0.980 |" in judgment.markdown([line])


def test_generated_runs_have_a_line_for_each_size() -> None:
    (line,) = judgment.generated([PLAYED, replace(PLAYED, name="swing", wrong=["job_slowdown job=run"])])
    assert line["recall"] == "1.000"
    assert line["false alarms"] == "1 of 1 traps (2.0 /day)"


def test_quick_writes_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(lib_runs, "play_all", lambda *_, **__: [PLAYED])
    monkeypatch.setattr(judgment, "PAGE", Path("/nowhere"))
    judgment.main(["--quick", "--json", "/nowhere"])
    assert "generated, 16 ranks" in capsys.readouterr().out
