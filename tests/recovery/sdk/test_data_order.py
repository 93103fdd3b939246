"""The order of samples: a permutation in each epoch, on any ranks, and the same after a step is made again."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from mainstay.recovery.memory.state import TrainerState
from mainstay.recovery.sdk.data_order import ResumableSampler, ResumableStream, shuffle
from mainstay.recovery.sdk.snapshot_session import SnapshotSession, _Stash
from mainstay.recovery.work_assignment import WorkAssignment

Step = list[tuple[int, list[int]]]


class Indices:
    """A loader that gives the indices themselves, and reads some micro-batches ahead."""

    def __init__(self, sampler: ResumableSampler, ahead: int = 3) -> None:
        self.batch_sampler, self._ahead = sampler.batch_sampler, ahead

    def __iter__(self) -> Iterator[list[int]]:
        source = iter(self.batch_sampler)
        read = [next(source) for _ in range(self._ahead)]
        while True:
            read.append(next(source))
            yield read.pop(0)


class Rank:
    """One process: its sampler, and what it has read in the step under way."""

    def __init__(self, length: int, micro_batches: int, state: dict[str, int] | None = None) -> None:
        self.sampler = ResumableSampler(length, batch_size=2, micro_batches=micro_batches, seed=5)
        self.loader = Indices(self.sampler)
        if state is not None:
            self.sampler.load_state_dict(state)

    def step(self, numbers: tuple[int, ...], count: int | None = None) -> Step:
        """Read the micro-batches of a step; with ``count`` only the first few, then it fails."""
        batches = self.sampler.step(self.loader, numbers)
        if count is None:
            return list(batches)
        return [batch for batch, _ in zip(batches, range(count), strict=False)]


def expected(length: int, samples: int, seed: int = 5) -> list[int]:
    """The first ``samples`` samples of all epochs."""
    epochs = range(-(-samples // length))
    order = [number for epoch in epochs for number in shuffle(np.arange(length), length, seed, epoch).tolist()]
    return order[:samples]


# The permutation


@pytest.mark.parametrize("length", [*range(1, 70), 100, 255, 256, 257, 1000, 65_537])
def test_an_epoch_has_every_sample_once(length: int) -> None:
    assert sorted(shuffle(np.arange(length), length, 3, 4).tolist()) == list(range(length))


def test_the_order_is_the_same_in_every_release() -> None:
    """A job may be resumed by another version than the one that saved it."""
    assert shuffle(np.arange(10), 10, 7, 0).tolist() == [7, 8, 9, 2, 5, 0, 1, 4, 3, 6]
    assert shuffle(np.array([0, 1, 10**15 - 1]), 10**15, 7, 2).tolist() == [
        157377366471676,
        305269419467010,
        120079966738274,
    ]


def test_seeds_and_epochs_differ() -> None:
    orders = {tuple(shuffle(np.arange(50), 50, seed, epoch).tolist()) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16


@pytest.mark.parametrize("length", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_all_orders_of_few_samples_are_equally_likely(length: int) -> None:
    """By a chi-squared test: a fair shuffle stays below the limit in all but 1 of 10,000 choices of seeds."""
    orders = math.factorial(length)
    counts = Counter(tuple(shuffle(np.arange(length), length, seed, 0).tolist()) for seed in range(orders * 60))
    statistic = sum((count - 60) ** 2 / 60 for count in counts.values()) + 60 * (orders - len(counts))
    freedom = orders - 1
    assert statistic < freedom * (1 - 2 / (9 * freedom) + 3.72 * math.sqrt(2 / (9 * freedom))) ** 3  # Wilson-Hilferty


def test_neighbors_of_a_large_dataset_are_not_related() -> None:
    length = 100_000
    order = shuffle(np.arange(length), length, 1, 0).astype(float)
    for a, b in ((order, np.arange(length)), (order[1:], order[:-1])):
        assert abs(np.corrcoef(a, b)[0, 1]) < 4 / math.sqrt(length)
    assert np.count_nonzero(np.abs(np.diff(order)) == 1) < 12  # 2 on average, of a Poisson distribution


# Steps of a job


def test_the_order_is_the_same_for_any_number_of_ranks() -> None:
    for dp in (1, 2, 3, 6):
        ranks = [Rank(50, 6) for _ in range(dp)]
        taken: list[int] = []
        for _ in range(20):
            step = [batch for rank, one in enumerate(ranks) for batch in one.step(tuple(range(rank, 6, dp)))]
            taken += [sample for _, batch in sorted(step) for sample in batch]
        assert taken == expected(50, 240), dp
        assert all((one.sampler.epoch, one.sampler.position) == (4, 40) for one in ranks)


@pytest.mark.parametrize("seed", range(25))
def test_kills_retries_absent_replicas_and_other_shapes_change_nothing(seed: int) -> None:
    """A job as it might go: each step may fail, and the ranks may be others, or have other shares, in the next one."""
    chance = random.Random(seed)
    length, micro_batches = chance.randint(1, 90), chance.randint(4, 9)
    dp = chance.randint(1, 4)
    ranks = [Rank(length, micro_batches) for _ in range(dp)]
    assignment = WorkAssignment(replicas=tuple(range(dp)))
    saved = ranks[0].sampler.state_dict()
    taken: list[int] = []
    for _ in range(60):
        shares = assignment.micro_batches(micro_batches, dp)
        event = chance.choice(["commit", "commit", "commit", "kill", "retry", "reassign", "reshape"])
        if event == "commit":
            step = [batch for replica, numbers in shares.items() for batch in ranks[replica].step(numbers)]
            assert sorted(number for number, _ in step) == list(range(micro_batches))
            taken += [sample for _, batch in sorted(step) for sample in batch]
            states = [ranks[replica].sampler.state_dict() for replica in shares]
            saved = states[0]
            assert states == [saved] * len(states)
            continue
        for replica, numbers in shares.items():  # the step fails: some ranks have read more of it than others
            ranks[replica].step(numbers, chance.randint(0, len(numbers)))
        if event == "kill":
            ranks[chance.randrange(dp)] = Rank(length, micro_batches)
        elif event == "reassign":
            there = sorted(chance.sample(range(dp), chance.randint(1, dp)))
            assignment = WorkAssignment(replicas=tuple(there), shares=tuple(chance.uniform(0.5, 2) for _ in there))
        elif event == "reshape":
            dp = chance.randint(1, 4)
            ranks = [Rank(length, micro_batches) for _ in range(dp)]
            assignment = WorkAssignment(replicas=tuple(range(dp)))
        for rank in ranks:
            rank.sampler.load_state_dict(saved)
    assert taken == expected(length, len(taken))


def test_a_resumed_job_may_have_another_global_batch_but_not_another_dataset() -> None:
    rank = Rank(50, 6)
    taken = [sample for _, batch in rank.step((0, 1, 2, 3, 4, 5)) for sample in batch]
    other = Rank(50, 3, rank.sampler.state_dict())
    taken += [sample for _, batch in other.step((0, 1, 2)) for sample in batch]
    assert taken == expected(50, 18)
    with pytest.raises(ValueError, match="saved for 50 samples, but the dataset has 51"):
        Rank(51, 6, rank.sampler.state_dict())


def test_the_seed_of_the_saved_order_holds() -> None:
    other = ResumableSampler(50, batch_size=2, micro_batches=1, seed=99)
    other.load_state_dict(Rank(50, 1).sampler.state_dict())
    assert [batch for _, batch in other.step(Indices(other), [0])] == [expected(50, 2)]


def test_without_shuffling_the_order_is_the_dataset_s() -> None:
    sampler = ResumableSampler(5, batch_size=3, micro_batches=2, shuffle=False)
    loader = Indices(sampler)
    assert [list(sampler.step(loader, [0, 1])) for _ in range(2)] == [
        [(0, [0, 1, 2]), (1, [3, 4, 0])],
        [(0, [1, 2, 3]), (1, [4, 0, 1])],
    ]


def test_a_rank_that_needs_no_data_starts_no_loader() -> None:
    sampler = ResumableSampler(50, batch_size=2, micro_batches=4)
    assert list(sampler.step(None, ())) == []  # type: ignore[arg-type]
    assert sampler.position == 8


@pytest.mark.parametrize("numbers", [[4], [-1], [1, 1]])
def test_a_wrong_micro_batch_is_named(numbers: list[int]) -> None:
    sampler = ResumableSampler(50, batch_size=2, micro_batches=4)
    with pytest.raises(ValueError, match=r"must be different numbers of 0 to 3"):
        sampler.step(Indices(sampler), numbers)
    assert sampler.position == 0


@pytest.mark.parametrize("state", [
    {}, {"epoch": 0}, {"epoch": 0, "position": 50, "seed": 1, "length": 50},
    {"epoch": -1, "position": 0, "seed": 1, "length": 50}, {"epoch": None, "position": 0, "seed": 1, "length": 50},
])  # fmt: skip
def test_a_foreign_state_is_refused(state: dict[str, Any]) -> None:
    sampler = ResumableSampler(50, batch_size=2, micro_batches=4)
    with pytest.raises(ValueError, match="cannot resume the order of samples from"):
        sampler.load_state_dict(state)
    assert sampler.state_dict() == ResumableSampler(50, batch_size=2, micro_batches=4).state_dict()


def test_numbers_that_are_too_small_are_refused() -> None:
    for name in ("length", "batch_size", "micro_batches"):
        with pytest.raises(ValueError, match=f"{name}=0"):
            ResumableSampler(**{"length": 5, "batch_size": 1, "micro_batches": 1} | {name: 0})
    with pytest.raises(ValueError, match="seed=-1"):
        ResumableSampler(5, batch_size=1, micro_batches=1, seed=-1)
    with pytest.raises(ValueError, match="micro_batches=0"):
        ResumableStream(iter(()), micro_batches=0)  # type: ignore[arg-type]


def test_whoever_passes_the_sampler_by_is_told() -> None:
    """Nothing would count what is taken."""
    sampler = ResumableSampler(50, batch_size=2, micro_batches=4)
    with pytest.raises(ValueError, match="reads samples of its own"):
        next(sampler.step(DataLoader(range(50), batch_size=2), [0]))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=r"iterate over sampler\.step"):
        next(iter(DataLoader(range(50), batch_sampler=sampler.batch_sampler)))  # type: ignore[arg-type]


def test_a_first_step_that_is_made_again_begins_as_it_did() -> None:
    """No rank had a snapshot to restore: what the failed attempt took and drew is put back before the next save."""
    model, sampler = torch.nn.Linear(2, 2), ResumableSampler(50, batch_size=2, micro_batches=4)
    session: Any = object.__new__(SnapshotSession)
    session._stash = _Stash(TrainerState(model, torch.optim.SGD(model.parameters(), lr=0.1), {"data": sampler}))
    session._writer = None
    session.save(0)
    sampler.step((), ())
    drawn = torch.rand(3)
    session.save(0)
    assert sampler.position == 0
    assert torch.equal(torch.rand(3), drawn)
