"""Which snapshots are of the job's own past: an epoch alone does not say it."""

from __future__ import annotations

import random

from mainstay.recovery.controller.rollback_history import RollbackHistory


def test_what_was_given_up_is_told_by_its_generation() -> None:
    history = RollbackHistory()
    assert history.holds(40, 1)  # nothing was ever given up
    history.record_rollback(10, 5)
    assert history.holds(10, 1)
    assert not history.holds(11, 1)
    assert not history.holds(40, 4)
    assert history.holds(40, 5)  # made again
    history.record_rollback(30, 8)
    assert history.holds(30, 5)
    assert history.holds(10, 1)
    assert not history.holds(31, 5)
    assert not history.holds(20, 4)  # a return further on does not bring back what was given up before
    history.record_rollback(0, 9)
    assert [history.holds(epoch, 8) for epoch in (0, 1, 40)] == [True, False, False]


def test_the_short_memory_forgets_nothing_that_matters() -> None:
    """Against the rule itself: given up is what is later than any return and older than it."""
    draw = random.Random(3)
    for _ in range(50):
        history, returns = RollbackHistory(), []
        for generation in range(2, 12):
            returns.append((draw.randrange(20), generation))
            history.record_rollback(*returns[-1])
            for epoch in range(20):
                for since in range(1, generation + 1):
                    given_up = any(epoch > to and since < then for to, then in returns)
                    assert history.holds(epoch, since) is not given_up


def test_parameters_that_are_not_those_of_the_epoch() -> None:
    history = RollbackHistory()
    history.note(0, 5, 70)
    history.note(0, 5, 71)  # the first word counts
    history.note(1, 5, 80)
    assert history.digest_diverged(5, {0: 70, 1: 80, 2: 90}) == set()
    assert history.digest_diverged(5, {0: 71, 1: 80}) == {0}
    assert history.digest_diverged(6, {0: 71}) == set()  # nothing is known of it
    history.remember(5, {0: 75, 1: 80})
    assert history.digest_diverged(5, {0: 75}) == set()
    history.note(0, 9, 1)
    history.record_rollback(5, 2)
    assert history.digest_diverged(9, {0: 2}) == set()  # step 9 is to be made again, perhaps differently
    assert history.digest_diverged(5, {0: 70}) == {0}


def test_the_memory_of_digests_is_bounded() -> None:
    history = RollbackHistory()
    for epoch in range(1000):
        history.note(0, epoch, epoch)
    assert history.digest_diverged(999, {0: 0}) == {0}
    assert history.digest_diverged(0, {0: 1}) == set()
