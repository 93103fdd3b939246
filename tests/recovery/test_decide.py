"""What is decided over all ways: the objective, doubtful alarms, sequences, single copies, and plans made ahead."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from recovery.decide import Decision, Option, decide, prepare
from recovery.outlook import Ability, Fault, Held, Odds, Outlook, Pool
from recovery.plan import WayName
from recovery.pricing.event import Repair
from recovery.pricing.iteration import Shape, Stage
from recovery.situation import Costs
from tests.recovery.strategies.made_up import outlook

W = WayName


def job(**over: Any) -> Outlook:
    """Four pipelines of four stages; a node of stage 1 is gone, nobody stands by, one node could be started."""
    made: dict[str, Any] = {
        "shape": Shape(dp=4, pp=4, micro_batches=16), "stage": Stage(forward_s=0.1, backward_s=0.1, weight_s=0.1),
        "layers": 8, "state_bytes": 1e9, "fault": Fault.NODE, "lost": (0, 1, 0, 0), "gpus": 8,
        "odds": Odds(worker_rate=1e-7, repairs=(Repair(0.5, 600.0), Repair(0.5, 6000.0))),
        "held": Held(local_s=3.0, peer_s=3.0, disk_s=900.0), "pool": Pool(spares=1),
        "costs": Costs(spawn_cold_s=120.0), "able": frozenset({Ability.REROUTE, Ability.DECOUPLED}),
    }  # fmt: skip
    return Outlook(**(made | over))


def option(made: Decision, *ways: WayName) -> Option:
    return next(each for each in made.options if each.ways == ways)


def test_options_are_sorted_and_the_cheapest_is_chosen() -> None:
    for seed in range(150):
        made = decide(outlook(seed))
        assert decide(outlook(seed)) == made
        costs = [each.expected_s for each in made.options if each.feasible]
        assert costs == sorted(costs)
        assert [each.feasible for each in made.options] == sorted(
            (each.feasible for each in made.options), reverse=True
        )
        assert made.chosen == (made.options[0].ways if costs else None)
        assert {each.ways[0] for each in made.options} == set(WayName)
        for each in made.options:
            assert (each.expected_s is None) != each.feasible
            assert each.feasible or each == Option(
                ways=each.ways, feasible=False, executable=each.executable, reason=each.reason
            )
            if each.feasible and each.expected_s is not None and outlook(seed).odds.confidence == 1.0:
                assert each.expected_s == pytest.approx(sum(each.parts.values()))
                assert each.gpu_seconds == pytest.approx(each.expected_s * outlook(seed).workers * outlook(seed).gpus)


def test_going_on_degraded_and_swapping_later_beats_waiting_for_a_spare_and_for_a_repair() -> None:
    made = decide(job())
    assert made.chosen == (W.REROUTE_DECOUPLED, W.STANDBY_SWAP)
    best = made.option()
    assert [step.what for step in best.steps[:2]] == ["reroute_decoupled", "standby_swap"]
    assert best.steps[1].at_s == 120.0
    assert not best.executable
    for other in ((W.REROUTE_DECOUPLED,), (W.DROP_AND_HEAL, W.STANDBY_SWAP), (W.PEER_COPY,)):
        assert (option(made, *other).expected_s or 0.0) > (best.expected_s or 0.0)
    assert made.explanation.startswith("reroute_decoupled, then standby_swap: Training goes on at ")


def test_no_sequence_without_somebody_to_swap_in() -> None:
    none = decide(job(pool=Pool()))
    assert all(len(each.ways) == 1 for each in none.options)
    later = decide(job(pool=Pool(standby_after_s=300.0)))
    assert option(later, W.DROP_AND_HEAL, W.STANDBY_SWAP).steps[1].at_s == 300.0
    now = decide(job(pool=Pool(standbys=1)))
    assert now.chosen == (W.STANDBY_SWAP,)


def test_a_long_repair_weighs_by_its_share() -> None:
    short = option(decide(job(odds=Odds(worker_rate=1e-7, repairs=(Repair(1.0, 600.0),)))), W.DROP_AND_HEAL)
    both = option(decide(job()), W.DROP_AND_HEAL)
    long = option(decide(job(odds=Odds(worker_rate=1e-7, repairs=(Repair(1.0, 6000.0),)))), W.DROP_AND_HEAL)
    assert both.parts["degraded"] == pytest.approx((short.parts["degraded"] + long.parts["degraded"]) / 2.0)
    assert both.worst_s == pytest.approx(long.expected_s)


def test_a_doubtful_alarm_is_acted_on_only_where_waiting_costs_more() -> None:
    def doubtful(p: float, confirm_s: float) -> Decision:
        odds = Odds(worker_rate=1e-7, confidence=p, confirm_s=confirm_s)
        return decide(job(odds=odds, pool=Pool(standbys=1), fault=Fault.PROCESS))

    assert doubtful(0.9, 60.0).act
    assert not doubtful(0.01, 60.0).act
    assert not doubtful(0.9, 0.1).act, "a certain answer in a tenth of a second is cheaper than a recovery for nothing"
    assert "is not acted on yet: acting pays above" in doubtful(0.01, 60.0).explanation
    sure = decide(job())
    assert sure.act
    assert "sure" not in sure.explanation
    assert doubtful(0.3, 60.0).act_above > doubtful(0.3, 600.0).act_above


def test_a_false_alarm_counts_in_the_price() -> None:
    sure, unsure = (job(odds=Odds(worker_rate=1e-7, confidence=p)) for p in (1.0, 0.5))
    real = option(decide(sure), W.DROP_AND_HEAL).expected_s or 0.0
    half = option(decide(unsure), W.DROP_AND_HEAL)
    assert half.expected_s == pytest.approx((real + real - half.parts["degraded"]) / 2.0)


def test_a_single_copy_is_not_left_for_longer_than_allowed() -> None:
    lonely = job(
        shape=Shape(dp=2, pp=4, micro_batches=16), held=Held(local_s=3.0, disk_s=900.0),
        odds=Odds(worker_rate=1e-7, single_copy_s=300.0),
    )  # fmt: skip
    made = decide(lonely)
    alone = option(made, W.DROP_AND_HEAL)
    assert not alone.feasible
    assert alone.reason.endswith("longer than the 300 s allowed.")
    assert option(made, W.DROP_AND_HEAL, W.STANDBY_SWAP).feasible, "the swap ends it after 120 s"
    assert option(made, W.DROP_AND_HEAL, W.STANDBY_SWAP).parts["risk"] > 0.0
    assert option(decide(replace(lonely, held=Held(peer_s=3.0, disk_s=900.0))), W.DROP_AND_HEAL).feasible
    bare = option(decide(replace(lonely, held=Held())), W.DROP_AND_HEAL, W.STANDBY_SWAP)
    assert "no checkpoint on disk" in bare.reason


def test_single_copies_are_never_longer_than_allowed_in_any_outlook() -> None:
    for seed in range(200):
        one = outlook(seed)
        for each in decide(one).options:
            if each.feasible and "risk" in each.parts:
                assert one.odds.single_copy_s >= (each.steps[1].at_s if len(each.ways) > 1 else 60.0)


def test_when_nothing_is_feasible_a_human_is_told_every_reason() -> None:
    made = decide(job(held=Held(replicated=False), pool=Pool(), able=frozenset()))
    assert (made.chosen, made.act) == (None, False)
    assert made.explanation.startswith("Nothing brings the job back by itself")
    with pytest.raises(ValueError, match="no option is feasible"):
        made.option()


def test_every_single_failure_is_decided_ahead_by_classes() -> None:
    ready = prepare(job())
    assert ready.keys() == {(fault, s) for fault in (Fault.ERROR, Fault.PROCESS, Fault.NODE) for s in range(4)}
    assert ready[Fault.NODE, 1] == decide(job())
    assert ready[Fault.NODE, 3] == decide(job(lost=(0, 0, 0, 1), broken=1))
    warm = prepare(job(pool=Pool(standbys=1)))
    assert warm[Fault.PROCESS, 0].chosen == (W.LOCAL_SLOT,)
    assert warm[Fault.NODE, 0].chosen == (W.STANDBY_SWAP,)


def test_a_decision_travels_as_json() -> None:
    made = decide(job())
    raw = msgspec.json.decode(msgspec.json.encode(made))
    assert raw["chosen"] == ["reroute_decoupled", "standby_swap"]
    assert raw["options"][0]["steps"][2]["at_s"] is None, "not known when"


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"lost": (1,)}, "1 entries for 4 stages"),
        ({"lost": (0, 0, 0, 0)}, "names 0 of 16 workers"),
        ({"lost": (5, 0, 0, 0)}, "5 workers of a stage that has 4"),
        ({"broken": 2}, "1 workers cannot be of 2 pipelines"),
        ({"layers": 3}, "3 layers do not make 4 stages"),
        ({"speed": 0.0}, "speed lies above 0"),
        ({"warm_up_s": -1.0}, "must not be negative"),
    ],
)
def test_an_outlook_that_makes_no_sense_is_refused_by_name(over: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        job(**over)


def test_odds_that_make_no_sense_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"repairs: shares sum to 1, not 0\.5"):
        Odds(worker_rate=0.0, repairs=(Repair(0.5, 1.0),))
    with pytest.raises(ValueError, match=r"confidence lies in 0\.\.1, not 2"):
        Odds(worker_rate=0.0, confidence=2.0)
