"""Who counts as healthy on Longhorn, and what the published rules would say: the yardsticks of ``bench.validator``."""

from __future__ import annotations

import numpy as np

from bench.lib_gpu_variability import Gpu, is_healthy, slow_nodes, splits
from bench.lib_validator_fleet import DEFECTS, fleet, published_rules


def gpus(scale: dict[str, float], nodes: int = 20) -> list[Gpu]:
    random = np.random.default_rng(0)
    return [
        Gpu(
            name=(name := f"n{node}-{device}"),
            node=f"n{node}",
            times=100 * scale.get(name, 1.0) * np.exp(0.004 * random.standard_normal(8)),
            clocks=np.full(8, 1530.0),
        )
        for node in range(nodes)
        for device in range(4)
    ]


def test_a_slow_gpu_and_a_slow_whole_node_are_not_healthy() -> None:
    whole = {f"n3-{device}": 1.04 for device in range(4)}
    fleet_ = gpus(whole | {"n7-1": 1.06, "n9-2": 1.04})
    assert slow_nodes(fleet_) == {"n3"}
    sick = {gpu.name for gpu, healthy in zip(fleet_, is_healthy(fleet_), strict=True) if not healthy}
    assert sick == {*whole, "n7-1"}, "one GPU 4 % slow in a healthy node is counted as healthy"


def test_a_gpu_that_became_slow_is_not_healthy() -> None:
    fleet_ = gpus({})
    fleet_[5].times[4:] *= 1.08
    assert [gpu.name for gpu, healthy in zip(fleet_, is_healthy(fleet_), strict=True) if not healthy] == ["n1-1"]


def test_splits_keep_nodes_together_and_repeat() -> None:
    fleet_ = gpus({})
    for learned, judged in splits(fleet_, 5):
        assert sorted(learned + judged) == list(range(80))
        assert not {fleet_[i].node for i in learned} & {fleet_[i].node for i in judged}
    assert list(splits(fleet_, 3)) == list(splits(fleet_, 3))


def test_the_published_rules_see_what_their_limits_allow() -> None:
    made = fleet(0)
    found = {made.truth[node].words for node in published_rules(made.results) & made.truth.keys()}
    assert {"HBM 20 % slow", "PCIe at half its width", "a benchmark that timed out"} <= found
    assert not found & {"launches three times as slow", "a metric that is missing", "GEMM 5 % slow"}
    assert len(made.truth) == len(DEFECTS)
    assert made.faint not in made.truth
