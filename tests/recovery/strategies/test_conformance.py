"""Every recovery strategy, held to the rules of ``strategies/recovery_strategy.py`` with generated cost inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from mainstay.recovery.cost_inputs import GONE, CostInputs, FaultKind
from mainstay.recovery.cost_model.failure_cost import RecoveryAction, price_over
from mainstay.recovery.recovery_plan import RecoveryStrategyName, RestoreStrategyName
from mainstay.recovery.strategies import STRATEGIES, WAYS
from mainstay.recovery.strategies.recovery_strategy import RecoveryStrategy, estimate_action
from mainstay.recovery.strategy_choice import choose_strategy
from tests.recovery.strategies.made_up import cost_inputs

EVERY = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.way.value)
SEEDS = range(200)
W = RecoveryStrategyName


def cost(one: CostInputs, action: RecoveryAction) -> float:
    return price_over(
        action, one.odds.repairs, job_rate=one.job_rate, worker_rate=one.odds.worker_rate, restart_s=1000.0
    ).total_s


@EVERY
def test_it_is_infeasible_for_a_reason_or_has_an_action_and_repeats_its_result(way: RecoveryStrategy) -> None:
    for seed in SEEDS:
        answer = estimate_action(way, cost_inputs(seed))
        assert estimate_action(way, cost_inputs(seed)) == answer
        if isinstance(answer, str):
            assert not answer[0].islower()
            assert answer.endswith(".")
            assert "  " not in answer
            assert "\n" not in answer


def costs(name: str, factor: float, one: CostInputs) -> CostInputs:
    return replace(one, costs=replace(one.costs, **{name: getattr(one.costs, name) * factor}))


def plain(name: str, one: CostInputs) -> CostInputs:
    return replace(one, **{name: 2.0 * getattr(one, name)})


def older(name: str, one: CostInputs) -> CostInputs:
    age = getattr(one.held, name)
    return one if age is None else replace(one, held=replace(one.held, **{name: 2.0 * age}))


def longer(one: CostInputs) -> CostInputs:
    repairs = tuple(each._replace(seconds=2.0 * each.seconds) for each in one.odds.repairs)
    return replace(one, odds=replace(one.odds, repairs=repairs))


SLOWER: dict[str, Callable[[CostInputs], CostInputs]] = {
    **{name: partial(costs, name, 2.0) for name in ("fence_s", "spawn_warm_s", "spawn_cold_s", "regroup_s")},
    **{name: partial(costs, name, 0.5) for name in ("copy_Bps", "net_Bps", "xor_Bps", "disk_Bps")},
    **{name: partial(plain, name) for name in ("detect_s", "warm_up_s", "restart_s")},
    **{name: partial(older, name) for name in ("local_s", "peer_s", "parity_s", "disk_s")},
}


@EVERY
def test_its_price_grows_with_each_of_its_times(way: RecoveryStrategy) -> None:
    for seed in SEEDS:
        one = cost_inputs(seed)
        answer = estimate_action(way, one)
        if isinstance(answer, str):
            continue
        all_slower = one
        for name, slower in SLOWER.items():
            dearer = estimate_action(way, slower(one))
            assert isinstance(dearer, RecoveryAction), (seed, name)
            assert cost(one, dearer) >= cost(one, answer) * (1.0 - 1e-9), (seed, name)
            all_slower = slower(all_slower)
        dearest = estimate_action(way, all_slower)
        assert isinstance(dearest, RecoveryAction)
        assert cost(one, dearest) > cost(one, answer), seed


@EVERY
def test_a_longer_repair_is_never_cheaper(way: RecoveryStrategy) -> None:
    if way.way in {W.BORROW_WORKERS, W.LEAST_REDUNDANCY}:
        return  # what they weigh against a repair is another job's value, and safety
    for seed in SEEDS:
        one, later = cost_inputs(seed), longer(cost_inputs(seed))
        answer, dearer = estimate_action(way, one), estimate_action(way, later)
        assert isinstance(answer, str) == isinstance(dearer, str)
        if isinstance(answer, RecoveryAction) and isinstance(dearer, RecoveryAction):
            assert cost(later, dearer) >= cost(one, answer) * (1.0 - 1e-9), seed


FROM_PEERS = {
    W.PEER_COPY, W.JUST_IN_TIME, W.STANDBY_SWAP, W.DROP_AND_HEAL, W.REROUTE_COUPLED, W.REROUTE_DECOUPLED,
    W.REROUTE_STAGGERED, W.REINSTANTIATE, W.POOL_REBALANCE, W.REPLAN_RESOURCES,
}  # fmt: skip


@pytest.mark.parametrize("way", [way for way in WAYS if way.way in FROM_PEERS], ids=lambda way: way.way.value)
def test_what_only_the_lost_held_cannot_come_from_a_peer(way: RecoveryStrategy) -> None:
    for seed in SEEDS:
        one = cost_inputs(seed)
        if one.fault not in GONE:
            continue
        assert isinstance(estimate_action(way, replace(one, held=replace(one.held, replicated=False))), str)
        everybody = tuple(one.shape.dp if lost else 0 for lost in one.lost)
        assert isinstance(estimate_action(way, replace(one, lost=everybody, broken=None)), str)


@EVERY
def test_nothing_is_restored_where_nothing_is_lost(way: RecoveryStrategy) -> None:
    restores = {W.LOCAL_SLOT, W.PEER_COPY, W.PARITY_REBUILD, W.DISK_RESTART, W.JUST_IN_TIME, W.IN_PROCESS}
    for seed in SEEDS:
        for fault in (FaultKind.SLOW, FaultKind.NOTICE):
            answer = estimate_action(way, replace(cost_inputs(seed), fault=fault))
            if way.way in restores:
                assert isinstance(answer, str)
            elif isinstance(answer, RecoveryAction) and way.way is not W.MORPH:
                assert answer.repeated_s == 0.0 or way.way is W.POOL_REBALANCE


def test_every_name_has_one_way_and_what_runs_says_what_it_runs_as() -> None:
    assert Counter(way.way for way in WAYS) == Counter(RecoveryStrategyName)
    others = {W.STANDBY_SWAP, W.IN_PROCESS}
    assert {way.way for way in WAYS if way.executed_as} == {W(name.value) for name in RestoreStrategyName} | others
    assert {strategy.name for strategy in STRATEGIES} == set(RestoreStrategyName)


def test_each_way_is_possible_often_enough_and_impossible_too() -> None:
    """Or the properties above would hold of nothing."""
    seen = Counter(
        (way.way, isinstance(estimate_action(way, cost_inputs(seed)), str)) for way in WAYS for seed in SEEDS
    )
    assert min(seen[name, masked] for name in RecoveryStrategyName for masked in (True, False)) >= 5, seen


def test_a_job_that_runs_is_offered_only_what_its_coordinator_carries_out() -> None:
    for seed in SEEDS:
        made = choose_strategy(cost_inputs(seed), [way for way in WAYS if way.executed_as is not None])
        assert all(option.executable for option in made.options if option.feasible)
        assert {option.strategies[0] for option in made.options} <= {way.way for way in WAYS if way.executed_as}
