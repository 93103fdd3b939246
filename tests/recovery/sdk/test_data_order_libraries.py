"""The order of samples through real loaders, which read ahead: torch, torchdata, and Hugging Face datasets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset, IterableDataset
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from mainstay.recovery.memory import blob
from mainstay.recovery.sdk.data_order import ResumableSampler, ResumableStream, StatefulIterable, shuffle

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata 0.11 on torch 2.13
]

LENGTH, MICRO_BATCHES, STEPS = 50, 4, 12
"""Steps of 12 samples: almost three epochs."""


class Samples(torch.utils.data.Dataset[dict[str, int]]):
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> dict[str, int]:
        return {"id": index}


def indexed() -> Dataset:
    return Dataset.from_dict({"id": list(range(LENGTH))})


def train(loader_class: Callable[..., Any], dataset: Any, **options: Any) -> tuple[list[list[int]], float]:
    """Samples of each step, and a random number after the last one. Step 5 fails, and replicas leave in step 7."""
    sampler = ResumableSampler(LENGTH, batch_size=3, micro_batches=MICRO_BATCHES, seed=3)
    loader = loader_class(dataset, batch_sampler=sampler.batch_sampler, **options)
    torch.manual_seed(5)
    steps: list[list[int]] = []
    for step in range(STEPS):
        saved, numbers = sampler.state_dict(), range(4) if step < 7 else [3, 0]
        if step == 5:
            next(sampler.step(loader, numbers))
            sampler.load_state_dict(saved)
        steps.append([sample for _, batch in sampler.step(loader, numbers) for sample in batch["id"].tolist()])
        assert saved["epoch"] * LENGTH + saved["position"] == 12 * step, "what was read ahead does not count"
    return steps, float(torch.rand(()))


@pytest.mark.processes
@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
@pytest.mark.parametrize("loader_class", [DataLoader, StatefulDataLoader])
@pytest.mark.parametrize("dataset", [Samples, indexed])
def test_what_a_loader_has_read_ahead_is_not_counted(
    loader_class: Callable[..., Any], dataset: Callable[[], Any], workers: dict[str, Any]
) -> None:
    order = [number for epoch in range(3) for number in shuffle(np.arange(LENGTH), LENGTH, 3, epoch).tolist()]
    expected = [order[step * 12 : step * 12 + 12] for step in range(STEPS)]
    expected[7:] = [step[9:] + step[:3] for step in expected[7:]]
    torch.manual_seed(5)
    drawn = float(torch.rand(()))
    assert train(loader_class, dataset(), **workers) == (expected, drawn)


def shards() -> IterableDataset:
    return indexed().to_iterable_dataset(num_shards=4)


SOURCES: dict[str, Callable[[], StatefulIterable]] = {
    "batches": lambda: shards().batch(3),
    "shuffled shards": lambda: shards().shuffle(seed=3, buffer_size=1).batch(3),
    "loader": lambda: StatefulDataLoader(shards(), batch_size=3),
    "workers": lambda: StatefulDataLoader(shards(), batch_size=3, num_workers=2),
    "persistent workers": lambda: StatefulDataLoader(shards(), batch_size=3, num_workers=2, persistent_workers=True),
}


def ids(step: list[tuple[int, Any]]) -> list[int]:
    return [int(sample) for _, batch in step for sample in batch["id"]]


@pytest.mark.processes
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_a_stream_continues_from_any_step(source: Callable[[], StatefulIterable]) -> None:
    """From what a snapshot keeps of it, in a new process or in one that has read more."""
    room = np.zeros(64 * 1024, np.uint8)
    undisturbed, states, steps = ResumableStream(source(), micro_batches=MICRO_BATCHES), [], []
    for _ in range(STEPS):
        blob.write(undisturbed.state_dict(), room)
        states.append(blob.read(room))
        steps.append(ids(undisturbed.step(range(MICRO_BATCHES))))
    order = [sample for step in steps for sample in step]
    assert [sorted(order[at : at + LENGTH]) for at in (0, LENGTH)] == [list(range(LENGTH))] * 2
    for begin in range(0, STEPS, 3):
        other = ResumableStream(source(), micro_batches=MICRO_BATCHES)
        if begin % 2:
            other.step([0])
        other.load_state_dict(states[begin])
        assert [ids(other.step(range(MICRO_BATCHES))) for _ in range(begin, STEPS)] == steps[begin:]


def test_ranks_divide_a_stream_and_continue_it_with_other_shares() -> None:
    def streams(count: int) -> list[ResumableStream]:
        return [ResumableStream(shards().batch(3), micro_batches=MICRO_BATCHES) for _ in range(count)]

    def step(ranks: list[ResumableStream]) -> list[int]:
        parts = [part for rank, one in enumerate(ranks) for part in one.step(range(rank, MICRO_BATCHES, len(ranks)))]
        return ids(sorted(parts, key=lambda part: part[0]))

    alone, two, three = streams(1), streams(2), streams(3)
    whole = [step(alone) for _ in range(8)]
    assert [step(two) for _ in range(4)] == whole[:4]
    assert two[0].state_dict() == two[1].state_dict()
    for stream in three:
        stream.load_state_dict(two[1].state_dict())
    assert [step(three) for _ in range(4)] == whole[4:]


def test_a_stream_that_cannot_go_on_says_why() -> None:
    with pytest.raises(ValueError, match="the source of a stream is empty"):
        ResumableStream(shards().skip(LENGTH), micro_batches=1).step([0])
    stream = ResumableStream(shards().batch(3), micro_batches=MICRO_BATCHES)
    with pytest.raises(ValueError, match=r"from a state with \['length'\] instead of epoch and source"):
        stream.load_state_dict({"length": 4})
    with pytest.raises(ValueError, match="numbers of 0 to 3"):
        stream.step([4])
