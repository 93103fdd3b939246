"""Bamboo's rules on two-stage pipelines, by hand."""

from __future__ import annotations

from dataclasses import replace

from bench.lib_redundant import RedundantJob, follow_redundant
from mainstay.recovery.simulate.traces import TraceChange

JOB = RedundantJob(
    samples_per_s={2: 1.0, 3: 1.0, 4: 2.0, 5: 2.0}, samples_per_step=10.0, stages=2, rendezvous_s=5.0,
    reconfigure_s=20.0, failover_factor=1.5,
)  # fmt: skip
"""Steps of 10 s with one pipeline, of 5 s with two."""


def trace(nodes: int, *losses: tuple[float, int]) -> list[TraceChange]:
    return [
        *(TraceChange(0.0, "add", f"n{i}") for i in range(nodes)),
        *(TraceChange(at, "remove", f"n{i}") for at, i in losses),
    ]


def test_a_healthy_job_steps_at_its_rate() -> None:
    done = follow_redundant([*trace(4), TraceChange(105.0, "add", "late")], JOB)
    # From 5 s, steps of 5 s: the 19th ends at 100.
    assert (done.samples, done.seconds) == (190.0, 95.0)


def test_a_neighbor_takes_over_and_the_job_reconfigures_after_the_step() -> None:
    # n1 goes at 12: the step of 10..15 lasts 1.5 s more, then the job reconfigures for 20 s and runs on one pipeline.
    done = follow_redundant(trace(4, (12.0, 1), (61.5, 0)), JOB)
    # 10, 16.5 | 36.5: steps of 10 s end at 46.5, 56.5.
    assert done.samples == 4 * 10.0
    assert done.seconds == 56.5 - 5.0


def test_losing_both_neighbors_is_fatal() -> None:
    # n0 shadows n1 from 12; at 13 n0 goes: all meet for 5 s.
    done = follow_redundant(trace(4, (12.0, 1), (13.0, 0), (50.0, 3)), JOB)
    assert done.regroups >= 2
    lone = follow_redundant(trace(4, (12.0, 1), (50.0, 3)), JOB)
    assert done.samples != lone.samples


def test_too_few_nodes_never_start() -> None:
    assert follow_redundant(trace(1, (50.0, 0)), JOB).samples_per_s == 0.0


def test_the_loss_of_an_idle_node_slows_too() -> None:
    """A flaw of the simulator whose figures were printed; kept, and said."""
    quick = follow_redundant(trace(5, (52.0, 0)), JOB)
    slowed = follow_redundant(trace(5, (12.0, 4), (52.0, 0)), JOB)
    assert slowed.samples < quick.samples


def test_nodes_that_come_make_another_pipeline() -> None:
    late = [
        *trace(2),
        TraceChange(30.0, "add", "n8"),
        TraceChange(30.0, "add", "n9"),
        TraceChange(200.0, "remove", "n8"),
    ]
    alone = [*trace(2), TraceChange(200.0, "remove", "n1")]
    assert follow_redundant(late, JOB).samples > follow_redundant(alone, JOB).samples
    assert follow_redundant(late, replace(JOB, ready_s=1000.0)).samples == 0.0
