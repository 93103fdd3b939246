"""A job that shrinks, followed step by step and compared with what a pencil says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.lib_elastic_job import ElasticJob, Saving, follow
from mainstay.recovery.simulate.traces import TraceChange

JOB = ElasticJob(samples_per_s={1: 1.0, 2: 2.0, 3: 4.0}, samples_per_step=8.0, regroup_s=3.0)
"""Steps of 8, 4 and 2 seconds."""


def join_nodes(at: float, *names: str) -> list[TraceChange]:
    return [TraceChange(at, "add", name) for name in names]


def lose(at: float, *names: str) -> list[TraceChange]:
    return [TraceChange(at, "remove", name) for name in names]


def test_only_the_running_step_is_lost() -> None:
    # Starts at 3; steps of 2 s until 20: 8 whole ones (19). Regroups until 23; steps of 4 s until 40: 4 (39).
    done = follow([*join_nodes(0.0, "a", "b", "c"), *lose(20.0, "a"), *lose(40.0, "b")], JOB)
    assert (done.samples, done.seconds, done.regroups, done.lost_steps) == (12 * 8.0, 36.0, 2, 0)
    assert done.samples_per_s == pytest.approx(96.0 / 36.0)


def test_checkpoints_cost_time_and_bound_the_loss() -> None:
    # Steps of 2 s from 3, a checkpoint of 1 s after each 3: ends at 5 7 9 | 12 14 16 | 19; lost at 20: one step undone.
    done = follow(
        [*join_nodes(0.0, "a", "b", "c"), *lose(20.0, "a")], replace(JOB, saving=Saving(cost_s=1.0, every_steps=3))
    )
    assert (done.samples, done.lost_steps) == (6 * 8.0, 1)


def test_a_checkpoint_that_a_loss_cuts_off_does_not_count() -> None:
    done = follow(
        [*join_nodes(0.0, "a", "b", "c"), *lose(9.5, "a")], replace(JOB, saving=Saving(cost_s=1.0, every_steps=3))
    )
    assert (done.samples, done.lost_steps) == (0.0, 3)


def test_steps_may_go_on_while_it_regroups() -> None:
    # The step that began at 19 ends at 21, within the regroup: it counts, the one after it ends at 23 and does not.
    trace = [*join_nodes(0.0, "a", "b", "c"), *lose(20.0, "a"), *lose(40.0, "b")]
    assert follow(trace, replace(JOB, works_on=True)).samples == 13 * 8.0


def test_a_loss_during_a_regroup_begins_it_anew() -> None:
    # Regroup from 20, again from 22 until 25: one step of 8 s until 34.
    done = follow([*join_nodes(0.0, "a", "b", "c"), *lose(20.0, "a"), *lose(22.0, "b"), *lose(34.0, "c")], JOB)
    assert done.samples == 9 * 8.0
    assert done.regroups == 3


def test_nodes_that_come_are_taken_in_at_the_next_regroup() -> None:
    # Two nodes: steps of 4 s from 3 until 20 (4). A third came at 5; b goes at 20: two are left, 4 s again from 23.
    done = follow([*join_nodes(0.0, "a", "b"), *join_nodes(5.0, "c"), *lose(20.0, "b"), *lose(32.0, "a")], JOB)
    assert done.samples == (4 + 2) * 8.0


def test_nodes_need_time_to_be_ready() -> None:
    done = follow([*join_nodes(0.0, "a", "b", "c"), *lose(20.0, "a")], replace(JOB, ready_s=10.0))
    assert (done.samples, done.seconds) == (3 * 8.0, 6.0)


def test_too_few_nodes_stand_still() -> None:
    job = replace(JOB, samples_per_s={1: 0.0, 2: 2.0})
    done = follow([*join_nodes(0.0, "a", "b"), *lose(20.0, "a"), *lose(99.0, "b")], job)
    assert done.samples == 4 * 8.0
    assert follow(join_nodes(0.0, "a"), JOB).samples_per_s == 0.0
