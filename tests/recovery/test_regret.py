"""Plans beside what happened: errors, regret, corrected constants, and the alarm when correcting does not help."""

from __future__ import annotations

from dataclasses import fields, replace

import msgspec
import pytest

from recovery.plan import StrategyName
from recovery.planner import plan
from recovery.regret import PARTS, Calibration, Record, ledger, record
from recovery.situation import Costs, DiskHold, Place, Situation, SlotHold


def lost(costs: Costs | None = None) -> Situation:
    """Two replicas; the node of one is gone, a standby elsewhere; a peer's slot and an older file."""
    ranks = tuple(Place(rank=r, dp=r, pp=0, node="ab"[r]) for r in range(2))
    return Situation(
        job="j", generation=1, step=40, step_seconds=1.0, ranks=ranks, state_bytes=(10**9,) * 2, lost_nodes=("b",),
        live={0: 40}, slots=(SlotHold(node="a", rank=0, epoch=40),),
        disk=tuple(DiskHold(rank=r, epoch=38) for r in (0, 1)),
        standbys={"c": 1}, costs=costs or Costs(),
    )  # fmt: skip


def seen(factor: float, **phases: float) -> Record:
    """A recovery whose phases took ``factor`` times as long as planned, but for those that are named."""
    made = plan(lost())
    measured = {part: seconds * factor for part, seconds in made.alternative().parts.items()} | phases
    return record(made, measured, steps_lost=0, step_seconds=1.0)


def test_a_plan_is_kept_with_what_happened() -> None:
    found = seen(1.5)
    assert found.strategy is StrategyName.PEER_COPY
    assert found.error == pytest.approx(0.5)
    assert found.cost_s == pytest.approx(1.5 * sum(found.predicted.values()))
    assert found.others.keys() == {"disk_restart"}
    assert msgspec.json.decode(msgspec.json.encode(found), type=Record) == found


def test_regret_is_what_the_best_alternative_would_have_saved() -> None:
    fine, bad = seen(1.0), seen(1.0, fetch=60.0)
    assert fine.regret_s == 0.0
    assert bad.regret_s == pytest.approx(bad.cost_s - bad.others["disk_restart"])
    assert bad.regret_s > 50.0
    summed = ledger([fine, bad, seen(1.2)])
    assert (summed.recoveries, summed.within_promise, summed.worst) == (3, 2, bad.plan)
    assert summed.regret_s == pytest.approx(bad.regret_s)
    assert ledger([]) == ledger(iter([]))


def test_a_phase_that_was_not_measured_counts_as_predicted() -> None:
    made = plan(lost())
    found = record(made, {"fetch": made.alternative().parts["fetch"]}, steps_lost=2, step_seconds=3.0)
    assert found.error == pytest.approx(0.0)
    assert found.cost_s == pytest.approx(sum(found.predicted.values()) + 6.0)


def test_constants_are_corrected_towards_what_was_measured() -> None:
    known = Calibration().learn(seen(2.0, regroup=0.06))
    corrected = known.correct(Costs())
    assert corrected.net_Bps == pytest.approx(Costs().net_Bps / 2.0)
    assert corrected.fence_s == pytest.approx(Costs().fence_s * 2.0)
    assert corrected.regroup_s == pytest.approx(Costs().regroup_s)
    assert corrected.disk_Bps == Costs().disk_Bps, "nothing was read from disk"
    again = plan(lost(corrected)).alternative()
    assert again.parts["fetch"] == pytest.approx(2.0 * plan(lost()).alternative().parts["fetch"])


def test_one_odd_event_moves_an_average_little_and_raises_no_alarm() -> None:
    known = Calibration()
    for factor in (1.0, 1.0, 1.0, 4.0):
        known = known.learn(seen(factor))
    assert 1.0 < known.phases["fetch"].factor < 1.5
    assert not known.alarms()
    for _ in range(20):
        known = known.learn(seen(1.0))
    assert known.phases["fetch"].factor == pytest.approx(1.0, abs=0.01)
    assert not known.alarms()


def test_plans_made_with_corrected_constants_teach_the_same() -> None:
    plain, corrected = Calibration(), Calibration()
    for factor in (2.0, 3.0, 2.0):
        plain = plain.learn(seen(factor))
        now = {part: phase.factor for part, phase in corrected.phases.items()}
        found = seen(factor)
        predicted = {part: seconds * now.get(part, 1.0) for part, seconds in found.predicted.items()}
        corrected = corrected.learn(replace(found, predicted=predicted), corrected=True)
    assert corrected.phases["fetch"].ratio == pytest.approx(plain.phases["fetch"].ratio)


def test_what_gets_ever_slower_raises_an_alarm() -> None:
    known = Calibration()
    for event in range(8):
        known = known.learn(seen(1.0, fetch=1.2 * 1.9**event))
    (alarm,) = known.alarms()
    assert alarm.startswith("fetch: 8 recoveries took longer than predicted")


def test_shorter_than_a_clock_is_not_compared() -> None:
    known = Calibration().learn(seen(1.0, fence=1e-6))
    assert "fence" not in known.phases


def test_every_constant_has_its_phase() -> None:
    assert {name for names in PARTS.values() for name in names} == {f.name for f in fields(Costs)}


def test_times_below_nothing_and_plans_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="phase fetch of plan"):
        record(plan(lost()), {"fetch": -1.0}, steps_lost=0, step_seconds=1.0)
    hopeless = plan(replace(lost(), standbys={}))
    with pytest.raises(ValueError, match="no feasible alternative"):
        record(hopeless, {}, steps_lost=0, step_seconds=1.0)
