"""A rank's own seconds from what it reports, and whether a neighbor's process on the node explains them."""

from __future__ import annotations

import numpy as np
import pytest

from mainstay.detectors.base import Samples
from mainstay.detectors.entity_state import EntityState
from mainstay.detectors.finding import Entity
from mainstay.detectors.straggler.compute_time import AssignedWork, ComputeTime, has_noisier_neighbor, nodes_of
from mainstay.detectors.straggler.config import StragglerConfig
from mainstay.probes.core_types import StepPhase

NAN = float("nan")


def steps(ranks: int, **signals: object) -> Samples:
    """[step, rank] values by signal; one value stands for all ranks of a step."""
    columns = [np.array(value, float) for value in signals.values()]
    columns = [np.repeat(c[:, None], ranks, axis=1) if c.ndim == 1 else c for c in columns]
    x = np.stack(columns, axis=1)
    return Samples(
        entities=tuple(Entity(job="j", rank=r) for r in range(ranks)),
        groups=("",) * ranks,
        signals=tuple(signals),
        t=np.arange(len(x), dtype=np.float64),
        x=x,
    )


def seconds(samples: Samples) -> list[list[float]]:
    rows, compute = EntityState(), ComputeTime()
    ComputeTime.fields(rows)
    rows.align(samples.entities)
    return [compute.seconds(rows, samples, k).tolist() for k in range(len(samples.t))]


@pytest.mark.parametrize(
    ("whole", "forward", "backward", "delay", "expected"),
    [
        (3.0, NAN, NAN, NAN, 3.0),
        (3.0, 1.0, 1.5, NAN, 2.5),  # sections are preferred
        (3.0, 1.0, NAN, NAN, 3.0),
        (3.0, 1.0, 1.5, 0.4, 2.5),
        (2.0, 1.0, 1.5, 0.4, 2.1),  # sections that outlast the thread's clock are wall time: less the delay
        (2.5, 1.0, 1.5, 0.4, 2.5),
        (2.0, 1.0, 1.5, 2.2, 1.0),  # but at least half of the thread's clock
        (0.0, NAN, NAN, NAN, NAN),
        (-1.0, NAN, NAN, NAN, NAN),
        (0.5, NAN, NAN, NAN, 0.5),
    ],
)
def test_which_seconds_are_the_ranks_own(
    whole: float, forward: float, backward: float, delay: float, expected: float
) -> None:
    told = steps(
        1, compute_time_seconds=[whole], forward_seconds=[forward], backward_seconds=[backward],
        run_delay_seconds=[delay],
    )  # fmt: skip
    assert seconds(told)[0] == pytest.approx([expected], nan_ok=True)


def test_a_rank_that_told_sections_once_is_measured_by_them() -> None:
    told = steps(1, compute_time_seconds=[3.0, 3.1], forward_seconds=[1.0, NAN], backward_seconds=[1.0, 1.0])
    assert seconds(told) == [[2.0], [pytest.approx(NAN, nan_ok=True)]]


@pytest.mark.parametrize(
    ("phase", "counts"), [(StepPhase.TRAIN, True), (NAN, True), (StepPhase.WARM_UP, False), (-1, False)]
)
def test_only_steps_of_training_count(phase: float, counts: bool) -> None:
    told = steps(1, compute_time_seconds=[3.0], step_phase=[phase])
    assert seconds(told) == [[pytest.approx(3.0 if counts else NAN, nan_ok=True)]]


@pytest.mark.parametrize(
    ("repeating", "ranks", "stuck"),
    [
        (1, 2, True),  # one alone is stuck, however few others there are
        (2, 10, True),  # a fifth of the ranks
        (3, 10, False),  # more: the clock is coarse
        (2, 9, False),
        (2, 2, False),
    ],
)
def test_a_value_that_repeats_exactly_is_a_stuck_sensor(repeating: int, ranks: int, stuck: bool) -> None:
    first = np.arange(1.0, ranks + 1)
    second = np.where(np.arange(ranks) < repeating, first, first + 0.5)
    found = seconds(steps(ranks, compute_time_seconds=np.stack((first, second))))
    assert np.isnan(found[1]).tolist() == [stuck] * repeating + [False] * (ranks - repeating)
    assert found[1][repeating:] == second[repeating:].tolist()


def test_a_sensor_is_stuck_also_after_a_missing_sample() -> None:
    found = seconds(steps(3, compute_time_seconds=[[1.0, 2.0, 3.0], [NAN, 2.5, 3.5], [1.0, 2.0, 3.0]]))
    assert found[2] == pytest.approx([NAN, 2.0, 3.0], nan_ok=True)


def test_seconds_are_scaled_to_the_usual_assignment() -> None:
    told = steps(3, micro_batches=[[4, 4, 8], [5, 4, NAN], [0, -1, 2]], compute_time_seconds=[1.0, 2.0, 3.0])
    work = AssignedWork()
    scales = [work.scale(told, k).tolist() for k in range(3)]
    assert scales == [[1.0, 1.0, 0.5], [0.8, 1.0, 1.0], [1.0, 1.0, 2.0]]
    assert AssignedWork().scale(steps(2, x=[1.0]), 0).tolist() == [1.0, 1.0]
    assert seconds(told)[1] == [1.6, 2.0, 2.0]


def test_ranks_that_tell_no_node_share_one() -> None:
    names = ("b", None, "a", "b", None)
    assert nodes_of([Entity(rank=r, node=node) for r, node in enumerate(names)]).tolist() == [2, 0, 1, 2, 0]


@pytest.mark.parametrize(
    ("slowdown", "wait", "own", "noisier"),
    [
        # A rank of 2 s that is 25 % slow lost 0.4 s; the other's process took the half of 8 s, so that 0.4 s is a tenth
        (1.25, 0.67, 0.0, True),
        (1.25, 0.66, 0.0, False),
        (1.2, 0.65, 0.0, True),
        (1.25, 0.67, 0.2, False),  # what the rank itself waited is no excess of the other
    ],
)
def test_a_process_beside_a_rank_explains_less_than_a_tenth_of_what_it_took(
    slowdown: float, wait: float, own: float, noisier: bool
) -> None:
    x = np.log(np.full((3, 2), 2.0))
    waits = np.tile([own, wait], (3, 1))
    took = 2.0 * wait / (1 - wait) - 2.0 * own / (1 - own)
    assert (2.0 * (1 - 1 / slowdown) < 0.1 * took) is noisier
    assert has_noisier_neighbor(x, waits, 0, slowdown, 0.1) is noisier
    assert not has_noisier_neighbor(x, waits * NAN, 0, slowdown, 0.1)
    assert not has_noisier_neighbor(x, waits, 1, slowdown, 0.1), "the one that waits most"


@pytest.mark.parametrize(("sigma", "share"), [(0.02, np.expm1(2 * 0.02)), (0.004, 0.01), (0.005, np.expm1(0.01))])
def test_the_smallest_slowdown_that_a_dozen_steps_show(sigma: float, share: float) -> None:
    """(k + h / 12) sigma = 2 sigma with the usual numbers, and never less than is worth a word."""
    assert StragglerConfig().smallest_slowdown(sigma) == pytest.approx(share)
    assert StragglerConfig(k=0.5, h=6.0).smallest_slowdown(0.05) == pytest.approx(np.expm1(0.05))
