"""Who wrote which epoch, and that a late verdict finds the newest clean one: by hand, and over many random jobs."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from mainstay.recovery.controller.monitors import corruption_tracker
from mainstay.recovery.controller.monitors.corruption_tracker import EpochWriters

AB = frozenset("ab")


def ledger(*, steps: int, nodes: frozenset[str] = AB) -> EpochWriters:
    """Step k is committed at second k."""
    made = EpochWriters(0, 0.0)
    for step in range(1, steps + 1):
        made.committed(step, float(step), nodes)
    return made


def test_what_ended_before_the_node_went_bad_is_clean() -> None:
    assert ledger(steps=10).last_clean_epoch("a", 4.0) == 4
    assert ledger(steps=10).last_clean_epoch("a", 4.5) == 4
    assert ledger(steps=10).last_clean_epoch("a", 0.0) == 0


def test_a_node_that_took_no_part_taints_nothing() -> None:
    assert ledger(steps=10).last_clean_epoch("c", 0.0) == 10
    assert ledger(steps=10).last_clean_epoch("a", 10.0) == 10
    assert EpochWriters().last_clean_epoch("a", 5.0) == 0


def test_what_was_given_up_is_no_past() -> None:
    """The job went back to 3 and made its steps again without the node."""
    made = ledger(steps=6)
    made.went_back(3)
    for step in (4, 5):
        made.committed(step, 10.0 + step, frozenset("bc"))
    assert made.last_clean_epoch("a", 3.5) == 5
    assert made.last_clean_epoch("a", 2.0) == 2


def test_a_verdict_that_was_acted_upon_ends() -> None:
    made = ledger(steps=6)
    made.went_back(3)
    for step in (4, 5):
        made.committed(step, 10.0 + step, AB)  # the same node, another device
    assert made.last_clean_epoch("a", 3.5, until=8.0) == 3  # the step that began before it was sent away
    made = ledger(steps=3)
    made.committed(4, 9.0, frozenset("b"))
    made.committed(5, 10.0, AB)
    assert made.last_clean_epoch("a", 3.5, until=8.0) == 5
    assert made.last_clean_epoch("a", 3.5) == 4


def test_of_an_earlier_run_nothing_is_known() -> None:
    resumed = EpochWriters(100, 50.0)
    resumed.committed(101, 51.0, AB)
    assert resumed.last_clean_epoch("a", 40.0) is None
    assert resumed.last_clean_epoch("a", 50.5) == 100


def test_a_long_past_is_thinned_towards_the_safe_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corruption_tracker, "MOST", 64)
    rng = random.Random(5)
    made, whole = EpochWriters(), list[tuple[int, float, frozenset[str]]]()
    for step in range(1, 3000):
        nodes = frozenset(node for node in "abcd" if rng.random() < 0.999)
        made.committed(step, float(step), nodes)
        whole.append((step, float(step), nodes))
    for since in range(0, 3000, 7):
        corrupt = (step for step, at, nodes in whole if at > since and "a" in nodes)
        assert (made.last_clean_epoch("a", since) or 0) < next(corrupt, 3000)
    assert made.last_clean_epoch("a", 2990.0) == 2990


@dataclass
class Simulated:
    """A job of four ranks on nodes of their own, whose one node goes bad; snapshots as agents and disk keep them."""

    seed: int
    slots: int = 3
    disk_every: int = 5
    disk_keep: int = 6
    state: float = 0.0
    poisoned: dict[int, bool] = field(default_factory=dict)

    def run(self) -> tuple[int, int, dict[int, bool]]:
        """(first wrong step, newest epoch that can be restored under the verdict, epoch -> whether it holds wrong)."""
        rng = random.Random(self.seed)
        names = [f"n{i}" for i in range(4)]
        bad, made, now, step = rng.choice(names), EpochWriters(), 0.0, 0
        onset, late = rng.randint(6, 20), rng.randint(0, 22)
        members, since, wrong, first = set(names), None, False, 0
        while since is None or step < first + late:
            step += 1
            now += rng.uniform(0.5, 1.5)
            if step == 4 and rng.random() < 0.5:  # a node is lost before, and comes back from a spare
                members = {*members - {rng.choice(sorted(members - {bad}))}, "spare"}
                made.went_back(2)
                step = 3
            if step == onset and since is None:
                since, first = now - rng.uniform(0.0, 0.4), step
            wrong = wrong or (since is not None and bad in members)  # one rank's gradients are in everybody's sum
            made.committed(step, now, frozenset(members))
            self.poisoned[step] = wrong
        newest = made.last_clean_epoch(bad, since)
        disk = list(range(self.disk_every, step + 1, self.disk_every))[-self.disk_keep :]
        kept = sorted({*range(max(0, step - self.slots + 1), step + 1), *disk, 0})
        return first, max(e for e in kept if newest is not None and e <= newest), self.poisoned


@pytest.mark.parametrize("seed", range(300))
def test_a_restore_lands_before_the_corruption(seed: int) -> None:
    first, restored, poisoned = Simulated(seed).run()
    assert restored < first
    assert not poisoned.get(restored, False)
    # And not further back than need be: the newest snapshot on disk or in memory that is clean.
    assert restored >= (first - 1) // 5 * 5


def test_steps_made_again_begin_when_the_job_goes_back() -> None:
    """The step before them is old, but no rank worked on them before the node's ranks had another device."""
    ledger = EpochWriters(0, 100.0)
    for epoch in range(1, 6):
        ledger.committed(epoch, 100.0 + epoch, frozenset({"a", "b"}))
    assert ledger.last_clean_epoch("b", 102.5) == 2
    ledger.went_back(2, 120.0)
    for epoch in (3, 4):
        ledger.committed(epoch, 120.0 + epoch, frozenset({"a", "b"}))
    assert ledger.last_clean_epoch("b", 102.5, until=119.0) == 4, "it was sent away before they began"
    assert ledger.last_clean_epoch("b", 102.5) == 2, "it never was"
