"""Parts of a decision in the small job of ``strategies.test_by_hand``: swaps, thresholds, steps, sentences."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from mainstay.recovery.cost_inputs import CostInputs, FailureOdds, FaultKind, RollbackCosts, SpareCapacity
from mainstay.recovery.cost_model.failure_cost import RecoveryAction, Repair
from mainstay.recovery.recovery_plan import RecoveryStrategyName
from mainstay.recovery.strategy_choice import (
    ExecutionCapabilities,
    OptionStep,
    StrategyOption,
    _as_learned,
    _explain,
    _exposed,
    _for_nothing,
    _next_swap,
    _order,
    _priced,
    _reason,
    _steps,
    _threshold,
    _waiting,
    choose_strategy,
    single,
)
from tests.recovery.strategies.test_by_hand import job

W, F = RecoveryStrategyName, FaultKind
WAIT = RecoveryAction(
    downtime_s=5.0, repeated_s=2.0, rate=0.75, rejoin_probability=1.0, rejoin_s=4.0, until_repair=True
)

FIXED = replace(WAIT, copies_at_risk=1, until_repair=False, exposed_s=30.0)


def odds(**over: Any) -> FailureOdds:
    made: dict[str, Any] = {"worker_rate": 0.0, "repairs": (Repair(0.25, 100.0), Repair(0.75, 20.0))}
    return FailureOdds(**(made | over))


@pytest.mark.parametrize(
    ("lost", "pool", "at"),
    [
        ((0, 0, 1, 0), SpareCapacity(standbys=1), math.inf),  # at once: no later swap
        ((0, 0, 2, 0), SpareCapacity(standbys=1, spares=1), 30.0),
        ((0, 0, 2, 0), SpareCapacity(standbys=0, spares=2, standby_after_s=7.0), 30.0),
        ((0, 0, 2, 0), SpareCapacity(standbys=1, standby_after_s=700.0), 700.0),
        ((0, 0, 2, 0), SpareCapacity(standbys=1), math.inf),
    ],
)
def test_when_a_standby_can_take_over(lost: tuple[int, ...], pool: SpareCapacity, at: float) -> None:
    """It costs 3 s to regroup, 0.5 s to warm up, 2 s for a warm process and 11 s for its state."""
    assert _next_swap(job(lost=lost, pool=pool)) == (at, 3.0 + 0.5 + 2.0 + 11.0)


@pytest.mark.parametrize(
    ("fault", "down", "factor", "learned"),
    [(F.NODE, 5.0, 2.0, 0.5 + 4.5 * 2), (F.NODE, 0.25, 2.0, 0.25), (F.NOTICE, 5.0, 2.0, 10.0), (F.NODE, 5.0, 1.0, 5.0)],
)
def test_what_was_seen_already_is_not_predicted(fault: FaultKind, down: float, factor: float, learned: float) -> None:
    assert _as_learned(job(fault=fault), replace(WAIT, downtime_s=down), factor).downtime_s == learned


@pytest.mark.parametrize(
    ("over", "cost"),
    [
        ({"fault": F.NODE, "odds": odds(confirm_s=60.0)}, 60.0),
        # at half speed a step takes 27 + 18 s: two fifths of a minute are lost
        ({"fault": F.SLOW, "speed": 0.5, "odds": odds(confirm_s=60.0)}, 60.0 * (1 - 27 / 45)),
        ({"fault": F.NOTICE, "odds": odds(confirm_s=60.0, notice_s=60.0)}, 0.5 + 1.0 + 13.5),
        ({"fault": F.NOTICE, "odds": odds(confirm_s=60.0, notice_s=60.1)}, 0.0),
    ],
)
def test_what_waiting_for_certainty_costs(over: dict[str, Any], cost: float) -> None:
    assert _waiting(job(**over)) == pytest.approx(cost)


def test_acting_for_nothing_costs_all_but_the_repair() -> None:
    one = job(odds=odds(confirm_s=40.0, confidence=0.75))
    assert _for_nothing(one, WAIT) == 5.0 + 2.0 + 0.25 * 40.0 + 4.0
    made = _priced(one, (W.DROP_AND_HEAL,), WAIT, executable=True)
    real = 5.0 + 2.0 + 0.25 * (25.0 + 15.0) + 4.0
    assert made.expected_s == pytest.approx(0.75 * real + 0.25 * 21.0)
    assert made.gpu_seconds == pytest.approx(12 * (0.75 * real + 0.25 * 21.0))
    assert made.worst_s == pytest.approx(5.0 + 2.0 + 25.0 + 4.0), "if the repair takes the 100 s"
    assert made.parts == pytest.approx({"downtime": 5.0, "repeated": 2.0, "degraded": 10.0, "rejoin": 4.0})
    assert _threshold(one, made) == pytest.approx(21.0 / (21.0 + 40.0))
    two = _priced(replace(one, gpus=8), (W.DROP_AND_HEAL,), WAIT, executable=True)
    assert two.gpu_seconds == pytest.approx(8 * (made.gpu_seconds or 0.0))


def test_a_lost_last_copy_costs_a_restart_from_disk() -> None:
    """40 s of the scheduler, 30 s to start, 20 s to read, 600 s to repeat; without a checkpoint nothing to repeat."""
    risky = RecoveryAction(downtime_s=0.0, repeated_s=0.0, copies_at_risk=3, exposed_s=10.0)
    p = 1 - math.exp(-1e-3 * 3 * 10)
    made = _priced(job(odds=odds(worker_rate=1e-3)), (W.PEER_COPY,), risky, executable=False)
    assert made.parts == pytest.approx({"risk": p * 690.0})
    assert _priced(job(odds=odds()), (W.PEER_COPY,), risky, executable=False).parts == {}


@pytest.mark.parametrize(
    ("action", "held", "allowed", "why"),
    [
        (replace(WAIT, copies_at_risk=0), RollbackCosts(), 0.0, None),
        (replace(WAIT, copies_at_risk=1), RollbackCosts(), 1e9, "with no checkpoint on disk behind it"),
        (replace(WAIT, copies_at_risk=1), RollbackCosts(disk_s=0.0), 100.0, None),
        (replace(WAIT, copies_at_risk=1), RollbackCosts(disk_s=0.0), 99.0, "up to 100 s, longer than the 99 s allowed"),
        (FIXED, RollbackCosts(disk_s=1.0), 30.0, None),
        (replace(FIXED, exposed_s=31.0), RollbackCosts(disk_s=1.0), 30.0, "up to 31 s"),
    ],
)
def test_how_long_a_copy_may_stand_alone(
    action: RecoveryAction, held: RollbackCosts, allowed: float, why: str | None
) -> None:
    found = _exposed(job(held=held, odds=odds(single_copy_s=allowed)), action)
    assert (found is None) is (why is None)
    assert why is None or (found is not None and why in found)


def test_steps_of_an_option() -> None:
    first = OptionStep("drop_and_heal", 0.0)
    unknown = math.inf
    assert _steps((W.DROP_AND_HEAL,), replace(WAIT, rejoin_probability=0.0)) == (first,)
    assert _steps((W.DROP_AND_HEAL,), WAIT) == (
        first,
        OptionStep("validate the worker that is back", unknown),
        OptionStep("re-join at the end of a step", unknown),
    )
    soon = replace(WAIT, until_repair=False, back_after_s=30.0)
    assert [step.at_s for step in _steps((W.DROP_AND_HEAL,), soon)] == [0.0, 30.0, 30.0]
    assert _steps((W.DROP_AND_HEAL, W.STANDBY_SWAP), soon) == (
        first, OptionStep("standby_swap", 30.0), OptionStep("validate the node that went", unknown),
        OptionStep("take it back as a spare", unknown),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("action", "said"),
    [
        (replace(WAIT, rate=1.0), "Training continues at its full rate after 5 s."),
        (WAIT, "Training continues at 75.0% of its rate after 5 s, until a repair."),
        (
            replace(WAIT, until_repair=False, back_after_s=1234.5, downtime_s=0.0123),
            "Training continues at 75.0% of its rate after 0.0123 s, until 1.23e+03 s have passed.",
        ),
    ],
)
def test_an_option_in_a_sentence(action: RecoveryAction, said: str) -> None:
    assert _reason(action) == said


def option(*ways: RecoveryStrategyName, cost: float | None = 10.0, executable: bool = True) -> StrategyOption:
    return StrategyOption(
        strategies=ways, feasible=cost is not None, executable=executable, reason=f"{ways[0]}.", expected_s=cost,
        gpu_seconds=None if cost is None else 12 * cost,
    )  # fmt: skip


MORPH = "morph: morph. It is expected to cost 10 s of the job (120 GPU-seconds)."
NOTHING = "Nothing brings the job back automatically, an operator is needed."


def test_options_of_equal_cost_are_the_shorter_then_the_first_by_name() -> None:
    best, named, longer = option(W.DEGRADE), option(W.MORPH), option(W.BORROW_WORKERS, W.STANDBY_SWAP)
    free, not_at_all = option(W.PROACTIVE, cost=0.0), option(W.DEGRADE, cost=None)
    costly = option(W.BORROW_WORKERS, cost=10.5)
    assert sorted([not_at_all, costly, longer, named, best, free], key=_order) == [
        free, best, named, longer, costly, not_at_all,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "chosen", "confidence", "said"),
    [
        ([option(W.MORPH)], 0, 1.0, MORPH + " Nothing else is possible here."),
        (
            [option(W.MORPH, W.STANDBY_SWAP), option(W.DEGRADE, cost=20.0), option(W.PROACTIVE, cost=None)],
            0,
            1.0,
            "morph, then standby_swap" + MORPH[5:] + " Next best: degrade, 20 s of the job (240 GPU-seconds).",
        ),
        (
            [option(W.MORPH, executable=False), option(W.DEGRADE, cost=20.0), option(W.PROACTIVE, executable=False)],
            1,
            1.0,
            MORPH.replace("morph", "degrade").replace("10 s", "20 s").replace("120", "240")
            + " morph would cost less, 10 s of the job (120 GPU-seconds), and is not carried out here."
            + " Nothing else is possible here.",
        ),
        (
            [option(W.MORPH)],
            0,
            0.25,
            MORPH + " Nothing else is possible here. The alarm, 25% sure, is acted on: acting pays above 20%.",
        ),
        (
            [option(W.MORPH)],
            0,
            0.2,
            MORPH + " Nothing else is possible here. The alarm, 20% sure, is not acted on yet: acting pays above 20%.",
        ),
        (
            [option(W.MORPH, cost=None), option(W.DEGRADE, W.STANDBY_SWAP, cost=None)],
            None,
            1.0,
            NOTHING + " morph: morph. degrade + standby_swap: degrade.",
        ),
    ],
)
def test_a_decision_is_explained(
    options: list[StrategyOption], chosen: int | None, confidence: float, said: str
) -> None:
    best = None if chosen is None else options[chosen]
    assert _explain(job(odds=odds(confidence=confidence)), tuple(options), best, 0.2) == said


def test_only_what_a_job_carries_out_is_chosen() -> None:
    means = ExecutionCapabilities(
        carried=frozenset({W.PEER_COPY, W.DISK_RESTART}),
        barred={W.PEER_COPY: "Not in this job."},
        factors={W.DISK_RESTART: 3.0},
    )
    made = choose_strategy(job(), means=means)
    assert made.chosen == (W.DISK_RESTART,)
    told = {each.strategies: each for each in made.options}
    assert (told[W.PEER_COPY,].feasible, told[W.PEER_COPY,].reason) == (False, "Not in this job.")
    assert told[W.DISK_RESTART,].parts["downtime"] == pytest.approx(0.5 + 94.5 * 3.0)
    assert {ways for ways, each in told.items() if each.executable} == {(W.PEER_COPY,), (W.DISK_RESTART,)}
    assert choose_strategy(job(), means=ExecutionCapabilities(carried=frozenset())).chosen is None


@pytest.mark.parametrize(("confidence", "act"), [(1.0, True), (0.0, False)])
def test_a_sure_alarm_is_always_acted_on(confidence: float, act: bool) -> None:
    assert choose_strategy(job(odds=odds(confidence=confidence, confirm_s=0.0))).act is act


def test_one_worker_of_one_stage_fails() -> None:
    one: CostInputs = single(job(lost=(1, 1, 0, 1)), F.PROCESS, 3)
    assert (one.fault, one.lost, one.broken) == (F.PROCESS, (0, 0, 0, 1), 1)
