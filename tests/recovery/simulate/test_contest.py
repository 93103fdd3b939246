"""A trace followed by one policy, by pencil; and the planner against every way alone on traces that are made up."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from recovery.outlook import Ability, Fault, Held, Odds, Outlook, Pool
from recovery.plan import WayName
from recovery.pricing.event import Action
from recovery.pricing.iteration import Shape, Stage
from recovery.simulate.contest import BY_NAME, always, follow_policy, planned
from recovery.simulate.traces import Change
from recovery.situation import Costs
from recovery.strategies import WAYS
from recovery.strategies.way import ask

JOB = Outlook(
    shape=Shape(dp=3, pp=2, micro_batches=6), stage=Stage(forward_s=0.1, backward_s=0.1, weight_s=0.1), layers=12,
    state_bytes=1e9, fault=Fault.NODE, lost=(1, 0), odds=Odds(worker_rate=0.0),
    held=Held(local_s=5.0, peer_s=5.0, disk_s=300.0), pool=Pool(least_stages=2),
    costs=Costs(fence_s=1.0, spawn_cold_s=30.0, regroup_s=5.0), detect_s=1.0, warm_up_s=3.0, restart_s=30.0,
    able=frozenset(Ability) - {Ability.REDUNDANT},
)  # fmt: skip
GRID = [Change(0.0, "add", f"node{i}") for i in range(6)]


def action(name: WayName, missing: tuple[int, ...], standbys: int = 0, **more: Any) -> Action:
    found = ask(BY_NAME[name], replace(JOB, lost=missing, pool=replace(JOB.pool, standbys=standbys), **more))
    assert isinstance(found, Action)
    return found


def test_a_loss_costs_its_downtime_and_then_its_rate() -> None:
    drop = action(WayName.DROP_AND_HEAL, (1, 0))
    trace = [*GRID, Change(1000.0, "remove", "node0"), Change(3000.0, "remove", "node1")]
    kept = follow_policy(trace, JOB, always(BY_NAME[WayName.DROP_AND_HEAL]))
    down = drop.downtime_s + drop.repeated_s
    assert kept.useful_s == pytest.approx(1000.0 + (2000.0 - down) * drop.rate)
    assert kept.seconds == 3000.0
    assert kept.picked == {WayName.DROP_AND_HEAL: 2}


def test_a_spare_replaces_what_is_lost_and_a_lost_spare_costs_nothing() -> None:
    swap = action(WayName.STANDBY_SWAP, (1, 0), standbys=1)
    trace = [*GRID, Change(0.0, "add", "spare"), Change(500.0, "remove", "node0"), Change(900.0, "remove", "node9")]
    trace[-1:] = [Change(800.0, "add", "node9"), Change(900.0, "remove", "node9"), Change(1000.0, "add", "last")]
    kept = follow_policy(trace, JOB, always(BY_NAME[WayName.STANDBY_SWAP]))
    assert kept.useful_s == pytest.approx(1000.0 - swap.downtime_s - swap.repeated_s)
    assert kept.picked == {WayName.STANDBY_SWAP: 1}


def test_where_the_one_way_cannot_be_the_job_restarts_on_what_is_left() -> None:
    kept = follow_policy([*GRID, Change(10.0, "remove", "node0"), Change(5000.0, "remove", "node1")], JOB,
                         always(BY_NAME[WayName.STANDBY_SWAP]))  # fmt: skip
    assert kept.picked == {WayName.MORPH: 2}


def test_a_node_that_comes_back_is_taken_in_where_that_pays() -> None:
    drop = action(WayName.DROP_AND_HEAL, (1, 0))
    back = [*GRID, Change(1000.0, "remove", "node0"), Change(2000.0, "add", "new"), Change(4000.0, "remove", "new")]
    kept = follow_policy(back, JOB, always(BY_NAME[WayName.DROP_AND_HEAL]))
    down = drop.downtime_s + drop.repeated_s
    assert kept.useful_s == pytest.approx(1000.0 + (1000.0 - down) * drop.rate + 2000.0 - drop.rejoin_s)


def test_a_job_that_cannot_go_on_stands_still_until_nodes_come() -> None:
    stuck = replace(JOB, held=Held(replicated=False), able=frozenset())
    trace = [*GRID, Change(100.0, "remove", "node0"), Change(200.0, "add", "new"), Change(400.0, "remove", "new")]
    kept = follow_policy(trace, stuck, planned(WAYS))
    restart = 30.0 + 30.0 + 2.0
    assert kept.useful_s == pytest.approx(100.0 + 200.0 - restart)


def test_who_is_told_in_time_repeats_nothing_and_moves_state_beside_training() -> None:
    trace = [*GRID, Change(1000.0, "remove", "node0"), Change(3000.0, "remove", "node1")]
    told = action(WayName.PROACTIVE, (1, 0), fault=Fault.NOTICE, odds=Odds(worker_rate=0.0, notice_s=20.0))
    kept = follow_policy(trace, JOB, always(BY_NAME[WayName.PROACTIVE]), notice_s=20.0)
    assert kept.useful_s == pytest.approx(1000.0 + (2000.0 - told.downtime_s) * told.rate)
    assert kept.picked == {WayName.PROACTIVE: 2}
    untold = follow_policy(trace, JOB, always(BY_NAME[WayName.PROACTIVE]))
    assert untold.picked == {WayName.MORPH: 2}
    assert untold.useful_s < kept.useful_s


def test_a_spare_that_is_about_to_go_is_not_taken_in() -> None:
    trace = [*GRID, Change(0.0, "add", "spare"), Change(500.0, "remove", "node0"), Change(510.0, "remove", "spare")]
    swap = always(BY_NAME[WayName.STANDBY_SWAP])
    end = [Change(4000.0, "remove", "node1")]
    assert follow_policy([*trace, *end], JOB, swap, notice_s=5.0).picked == {WayName.STANDBY_SWAP: 1, WayName.MORPH: 2}
    assert follow_policy([*trace, *end], JOB, swap, notice_s=60.0).picked == {WayName.MORPH: 2}


def test_a_notice_never_comes_before_the_node() -> None:
    late = [
        *GRID,
        Change(100.0, "add", "visitor"),
        Change(110.0, "remove", "visitor"),
        Change(900.0, "remove", "node0"),
    ]
    follow = partial(follow_policy, late, JOB, always(BY_NAME[WayName.DROP_AND_HEAL]))
    assert follow(notice_s=600.0) == follow()


def churn(seed: int) -> list[Change]:
    """Nodes that go every half hour or so and come back after an hour or so."""
    rng = random.Random(seed)
    trace, alive, t = list(GRID), [f"node{i}" for i in range(6)], 0.0
    for i in range(30):
        t += rng.expovariate(1.0 / 1200.0)
        if len(alive) > 3 and (rng.random() < 0.5 or len(alive) >= 8):
            trace.append(Change(t, "remove", alive.pop(rng.randrange(len(alive)))))
        else:
            alive.append(f"new{i}")
            trace.append(Change(t, "add", alive[-1]))
    return [*trace, Change(t + 1.0, "remove", alive[0])]


@pytest.mark.parametrize("seed", range(4))
def test_the_planner_is_not_worse_than_the_best_way_alone_by_more_than_a_hundredth(seed: int) -> None:
    follow = partial(follow_policy, churn(seed), JOB)
    alone = {way.way: follow(always(way)).share for way in WAYS}
    assert follow(planned(WAYS)).share >= 0.99 * max(alone.values())
    assert follow(planned(WAYS), notice_s=30.0).share >= 0.99 * follow(planned(WAYS)).share
