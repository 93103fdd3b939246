"""Histories, what is learned from them, replay of the past, and the command line."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from mainstay.detectors.selector import learning
from mainstay.detectors.selector.backtest import decide, learn_from, replay
from mainstay.detectors.selector.cli import select
from mainstay.detectors.selector.fleet_history import (
    BenchmarkCost,
    FleetHistory,
    PastDefect,
    SelectionPolicy,
    ValidationOpportunity,
)
from mainstay.detectors.selector.history import (
    HOUR,
    CovariateEncoder,
    Incident,
    NodeHistory,
    _cuts,
    _spells,
    as_known,
)
from mainstay.detectors.selector.learning import learn
from tests.stored import assert_stored

T0 = 1.7e9
BENCHMARKS = (
    BenchmarkCost(name="quick", seconds=10.0, catches=("memory",)),
    BenchmarkCost(name="long", seconds=100.0, catches=("memory", "compute")),
    BenchmarkCost(name="other", seconds=50.0, catches=("fabric",)),
)


def at(hours: float) -> float:
    return T0 + hours * HOUR


def node(*spans: tuple[float, float | None], name: str = "n", until: float = 1000.0, **more: Any) -> NodeHistory:
    incidents = tuple(Incident(at=at(a), back_at=None if b is None else at(b)) for a, b in spans)
    return NodeHistory(node=name, since=T0, until=at(until), incidents=incidents, **more)


def fleet(seed: int = 0, nodes: int = 40, until: float = 2400.0) -> FleetHistory:
    """Nodes of which a quarter fails eight times as often; each defect was found by what is made for it."""
    rng = np.random.default_rng(seed)
    histories, defects, looked = [], [], []
    for i in range(nodes):
        spans, now = [], 0.0
        while (now := now + rng.exponential(80 if i % 4 == 0 else 640)) < until:
            found = ("quick", "long") if rng.random() < 0.8 else ("long",)
            defects.append(PastDefect(at=at(now) + 0.5, node=f"n{i}", defect="memory", found=found))
            looked.append(ValidationOpportunity(at=at(now), nodes=(f"n{i}", f"n{(i + 1) % nodes}")))
            spans.append((now, now + 5))
            now += 5
        histories.append(node(*spans, name=f"n{i}", until=until))
    return FleetHistory(benchmarks=BENCHMARKS, nodes=tuple(histories), defects=tuple(defects), occasions=tuple(looked))


# histories


def test_a_spell_ends_at_an_incident_and_begins_when_the_node_is_back() -> None:
    history = node((10, 12), (100, None))
    told = CovariateEncoder.learn([history]).failure_runs([history])
    ends = [(float(b), bool(o)) for b, o in zip(told.stop, told.observed, strict=True)]
    assert ends[0] == (10.0, True)
    assert ends[-1] == (pytest.approx(88.0), True)  # from hour 12; hour 100 to the end it was down
    assert told.entry[1] == 0.0
    assert float(np.sum(told.stop - told.entry)) == pytest.approx(98.0)


def test_a_node_that_served_before_it_was_watched_enters_late() -> None:
    history = node((20, 21), in_service_since=at(-50))
    told = CovariateEncoder.learn([history]).failure_runs([history])
    assert (told.entry[0], told.observed[: list(told.stop).index(70.0) + 1].tolist()[-1]) == (50.0, 1.0)


def test_survival_counts_from_the_return() -> None:
    history = node((10, 12), (100, 110))
    assert [history.survived(at(h)) for h in (5, 11, 20, 105, 111)] == [5.0, 0.0, 8.0, 0.0, 1.0]


def test_nothing_of_the_future_is_in_a_row_of_covariates() -> None:
    history = node(
        (10, 12),
        (100, 110),
        remediations=(at(12), at(110)),
        errors={"xid": (at(50), at(200))},
        checks=(at(60), at(300)),
    )
    encoder = CovariateEncoder.learn([history])
    for hours in (5.0, 11.0, 55.0, 101.0, 250.0):
        known = as_known(history, at(hours))
        assert encoder.row(history, at(hours)) == encoder.row(known, at(hours))
        assert known.survived(at(hours)) == history.survived(at(hours))


def test_covariates_say_what_they_are_called() -> None:
    history = node((10, 12), errors={"xid": (at(50),)}, checks=(at(60),), cohort="b", remediations=(at(12),))
    others = [node(*[(k * 9 + 1, k * 9 + 2) for k in range(25)], name=c, cohort=c) for c in ("a", "b")]
    encoder = CovariateEncoder.learn([history, *others])
    told = dict(zip(encoder.names, encoder.row(history, at(64)), strict=True))
    assert told["incidents"] == told["incidents_30d"] == told["remediations"] == pytest.approx(np.log(2))
    assert (told["no_incident_yet"], told["cohort_b"]) == (0.0, 1.0)
    assert (told["xid_1d"], told["xid_7d"]) == pytest.approx((np.log(2), np.log(2)))
    assert told["unchecked_hours"] == pytest.approx(np.log(5))


def test_incidents_that_overlap_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match=r"node n: the incident at .* before another is over"):
        node((10, 20), (15, 16))
    with pytest.raises(ValueError, match="watched until"):
        NodeHistory(node="n", since=10.0, until=5.0)
    with pytest.raises(ValueError, match="node n: xid are not in order"):
        node(errors={"xid": (at(5), at(3))})


def hour_node(*spans: tuple[float, float | None], name: str = "n", until: float = 1000.0, **more: Any) -> NodeHistory:
    """Watched from hour 0."""
    incidents = tuple(Incident(at=a * HOUR, back_at=None if b is None else b * HOUR) for a, b in spans)
    return NodeHistory(node=name, since=0.0, until=until * HOUR, incidents=incidents, **more)


def test_time_in_service_ends_with_the_history() -> None:
    """Of three incidents the last comes after the end, and the second begins at the moment of the return."""
    spans = [(10.0, 20.0), (20.0, 30.0), (150.0, 160.0)]
    told = [tuple(x / HOUR for x in one[:3]) for one in _spells(hour_node(*spans, until=100))]
    assert told == [(0.0, 0.0, 10.0), (30.0, 30.0, 100.0)]
    assert [one[3] for one in _spells(hour_node(*spans, until=150))] == [True, True], "at the end itself"
    late = hour_node((10.0, 20.0), until=20.0, in_service_since=-5 * HOUR)
    assert list(_spells(late)) == [(-5 * HOUR, 0.0, 10 * HOUR, True)]
    assert list(_spells(hour_node((10.0, None)))) == [(0.0, 0.0, 10 * HOUR, True)]


@pytest.mark.parametrize(
    ("begin", "end", "marks"),
    [(0.0, 24.0, []), (0.0, 24.1, [24.0]), (24.0, 50.0, [48.0]), (23.9, 48.0, [24.0]), (3000.0, 9999.0, [3072.0])],
)
def test_covariates_are_read_again_well_within_a_spell(begin: float, end: float, marks: list[float]) -> None:
    assert [mark / HOUR for mark in _cuts(hour_node(), 0.0, begin * HOUR, end * HOUR)] == marks


@pytest.mark.parametrize(
    ("at", "days", "count"),
    [(820.1, 30, 1), (820.0, 30, 2), (819.9, 30, 2), (124.1, 1, 0), (124.0, 1, 1), (268.0, 7, 1), (268.1, 7, 0)],
)
def test_windows_reach_back_30_days_one_and_seven(at: float, days: int, count: int) -> None:
    """Incidents at hours 100 and 200, an error at hour 100."""
    encoder = CovariateEncoder((), ("xid",), rate=0.001)
    told = encoder.row(hour_node((100, 101), (200, 201), errors={"xid": (100 * HOUR,)}), at * HOUR)
    assert told[{30: 2, 1: 6, 7: 7}[days]] == pytest.approx(math.log1p(count))


def test_what_is_learned_of_a_fleet_is_compared_at_one_three_and_seven_days() -> None:
    fleet = [
        hour_node(*[(25.0 * k + i, 25.0 * k + i + 1) for k in range(1, 20 + 10 * (i % 2))], name=f"n{i}")
        for i in range(6)
    ]
    assert (learning._HORIZONS, learning._HELD_OUT, learning.LEAST_INCIDENTS) == ((24.0, 72.0, 168.0), 0.3, 30)
    assert set(learn(fleet).held_out) == {"cox", "kaplan-meier", "exponential"}


# learning


def test_a_fleet_with_lemons_is_told_apart_out_of_sample() -> None:
    past = fleet()
    learned = learn(past.nodes)
    assert learned.name == "cox"
    assert learned.held_out["cox"].concordance > 0.65
    assert learned.held_out["cox"].brier < learned.held_out["exponential"].brier
    risk = learned.risk(past.nodes, at(2400), 24.0)
    assert risk[::4].mean() > 3 * np.delete(risk, np.s_[::4]).mean()


def test_risks_are_calibrated_on_what_follows() -> None:
    """Asked at noon of many days, the sum of the risks is about the number of incidents that came."""
    past = fleet(seed=3, nodes=80, until=4000)
    learned = learn([as_known(h, at(2000)) for h in past.nodes])
    expected = came = 0.0
    for hours in range(2000, 3900, 50):
        up = [h for h in past.nodes if h.origin(at(hours)) is not None]
        expected += float(learned.risk(up, at(hours), 24.0).sum())
        came += sum(any(at(hours) <= i.at < at(hours + 24) for i in h.incidents) for h in up)
    assert expected == pytest.approx(came, rel=0.2)


def test_a_fleet_without_structure_costs_nothing() -> None:
    rng = np.random.default_rng(4)
    histories = []
    for i in range(60):
        starts = np.cumsum(rng.exponential(300, 6))
        histories.append(node(*[(t, t + 1e-3) for t in starts if t < 999], name=f"n{i}"))
    learned = learn(histories)
    scores = {name: held.brier for name, held in learned.held_out.items()}
    assert scores[learned.name] == min(scores.values())
    p = learned.risk(histories, at(1000), 24.0)
    assert np.abs(p - (1 - np.exp(-24 / 300))).mean() < 0.02


# replay


def test_too_little_history_runs_everything() -> None:
    past = FleetHistory(benchmarks=BENCHMARKS, nodes=(node((10, 12), name="n0"),))
    decision = decide(
        past, learn_from(past), ValidationOpportunity(at=at(900), nodes=("n0",)), SelectionPolicy(target_risk=0.9)
    )
    assert decision.record.benchmarks == ("quick", "long", "other")
    assert not decision.record.learned
    assert "0 defects on record" in decision.record.reason


def test_a_replay_knows_only_what_was_known_then() -> None:
    """What happens after the last occasion changes no decision."""
    past = fleet(nodes=12)
    told: dict[bool, list[Any]] = {}
    middle = at(1200)
    early = tuple(o for o in past.occasions if o.at < middle)
    for cut in (False, True):
        given = msgspec.structs.replace(past.until(middle) if cut else past, occasions=early)
        told[cut] = []
        replay(
            given,
            SelectionPolicy(target_risk=0.05),
            each=lambda o, d, cut=cut: told[cut].append((o.at, d.nodes, d.record.benchmarks)),
        )
    assert told[False] == told[True]
    assert any(nodes for _, nodes, _ in told[True])


def test_a_stricter_policy_finds_more_and_spends_more() -> None:
    past = fleet(nodes=12)
    strict, loose = (replay(past, SelectionPolicy(target_risk=risk)) for risk in (0.01, 0.3))
    assert strict.found + strict.missed == loose.found + loose.missed == len(past.defects)
    assert strict.found > loose.found
    assert loose.node_seconds < strict.node_seconds < strict.full_node_seconds


def test_what_never_ran_is_unknowable() -> None:
    past = fleet(nodes=12)
    blind = tuple(
        msgspec.structs.replace(d, found=("other",), ran=("other",)) if i > 60 else d
        for i, d in enumerate(sorted(past.defects, key=lambda d: d.at))
    )
    outcome = replay(msgspec.structs.replace(past, defects=blind), SelectionPolicy(target_risk=0.02))
    assert 0 < outcome.unknowable <= outcome.missed


def test_what_costs_more_than_it_averts_is_not_run() -> None:
    past = fleet(nodes=12)
    occasion = ValidationOpportunity(at=at(2400), nodes=("n0", "n1"))
    known = learn_from(past)
    expensive, cheap = (
        decide(past, known, occasion, SelectionPolicy(target_risk=0.0, worth=hours)) for hours in (0.001, 1000.0)
    )
    assert expensive.record.benchmarks == expensive.nodes == ()
    assert "not worth its time" in expensive.record.considered[0].reason
    assert cheap.nodes == ("n0", "n1")


# the command line


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "history.json"
    made.write_bytes(msgspec.json.encode(fleet(nodes=12)))
    return made


def call(*arguments: str) -> int:
    return int(select([str(a) for a in arguments], result_action="return_value"))


def test_plan_prints_why(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan", file, "--nodes", "n0,n1", "--target-risk", "0.05") == 0
    said = capsys.readouterr().out
    assert "quick" in said
    assert "the risk falls from" in said
    assert "run on: n0" in said


@pytest.mark.slow
def test_plans_and_backtests_are_the_stored_ones(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for arguments in (
        ("plan", "--nodes", "n0,n1,n4", "--target-risk", "0.05"),
        ("plan", "--keep", "0.8", "--hours", "100"),
        ("plan", "--worth", "1"),
        ("backtest", "--target-risk", "0.2"),
        ("backtest", "--keep", "0.7"),
        ("backtest", "--worth", "5"),
    ):
        assert call(arguments[0], file, *arguments[1:], "--json") == 0
        found.append(json.loads(capsys.readouterr().out))
    assert_stored(Path(__file__).parent / "stored" / "plans.json", found)


def test_plan_as_json_is_the_record(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan", file, "--nodes", "n0", "--keep", "0.9", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["nodes"] == ["n0"]
    assert {c["benchmark"] for c in told["record"]["considered"]} == {"quick", "long", "other"}


def test_backtest_prints_what_would_have_been(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("backtest", file, "--target-risk", "0.2") == 0
    said = capsys.readouterr().out
    assert "defects that the past found" in said
    assert "node-hours" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["plan", "{file}", "--target-risk", "2"], "--target-risk is 2"),
        (["plan", "{file}", "--target-risk", "0.1", "--keep", "0.9"], "not both"),
        (["plan", "{file}", "--hours", "0"], "--hours is 0"),
        (["plan", "{file}", "--worth", "0"], "--worth is 0"),
        (["plan", "{file}", "--worth", "inf"], "--worth is inf"),
        (["plan", "{file}", "--nodes", "n0,n0"], "each once"),
        (["plan", "nowhere.json"], "nowhere.json: No such file"),
        (["backtest", "{bad}"], "Expected"),
        (["backtest", "{empty}"], "no benchmark"),
        (["plan", "{free}"], "benchmark 'a' costs 0 s"),
        (["plan", "{twice}"], "benchmark 'a' is there twice"),
    ],
)
def test_bad_input_is_one_clear_line(
    arguments: list[str], said: str, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, empty = tmp_path / "bad.json", tmp_path / "empty.json"
    bad.write_text('{"benchmarks": [{"name": 3}]}')
    one = {"name": "a", "seconds": 1}
    free, twice = tmp_path / "free.json", tmp_path / "twice.json"
    free.write_text(json.dumps({"benchmarks": [one | {"seconds": 0}], "nodes": []}))
    twice.write_text(json.dumps({"benchmarks": [one, one], "nodes": []}))
    empty.write_text('{"benchmarks": [], "nodes": []}')
    assert call(*(a.format(file=file, bad=bad, empty=empty, free=free, twice=twice) for a in arguments)) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_node_that_nobody_knows_gets_everything(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan", file, "--nodes", "n0,stranger") == 0
    assert "nothing is known of node stranger; the whole suite runs" in capsys.readouterr().out
