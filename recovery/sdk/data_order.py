"""Samples in an order that neither the number of ranks nor a failure changes.

Every step has a global batch: ``micro_batches`` micro-batches, numbered from 0, that the ranks divide among themselves
(``mesh.micro_batches``). Which samples a micro-batch has depends only on the seed and on how many samples earlier steps
had. A snapshot keeps that as (epoch, seed, position); a step that fails is taken back with it, and its samples follow
again, also if a loader had read ahead. A global batch may begin in one epoch and end in the next one, so that each
epoch has every sample exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch

T = TypeVar("T")
Indices = npt.NDArray[np.int64]
_Part = tuple[int, int, tuple[int, ...]]
"""Of a step, what a rank reads: seed, samples that come before the step in all epochs, numbers of micro-batches."""

_ROUNDS: Final = 8
_LEAST_BITS: Final = 3
"""Of each half. By a chi-squared test all orders of 3, 4, and 5 samples are equally likely with 3 bits and 8 rounds,
but not with 6 rounds, or with 2 bits and up to 20 rounds: all permutations that a network makes are even."""
_BLOCK: Final = 4096
"""Samples whose order is computed at once: numpy's calls cost more than the arithmetic of a few samples."""


def shuffle(positions: Indices, length: int, seed: int, epoch: int) -> Indices:
    """Return the samples at ``positions`` of an epoch, without the memory that a whole permutation needs.

    A Feistel network permutes all numbers of 2h bits. A number beyond the dataset is permuted again until it is within
    (cycle walking: Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002, section 4). From 16 samples
    on, that makes at most 4 passes on average. ``torch.randperm`` needs 8 bytes for each sample, and torch does not
    promise the same order in every version.

    Args:
        positions: int64 [n], each of 0 to ``length`` - 1.
        length: samples of the dataset.
        seed: of the order.
        epoch: counted from 0; each has another order.

    Returns:
        int64 [n]: over all positions each of 0 to ``length`` - 1 once.
    """
    half = np.uint64(max(_LEAST_BITS, (length - 1).bit_length() + 1 >> 1))
    keys = np.random.SeedSequence([seed, epoch]).generate_state(_ROUNDS, np.uint64)
    samples = positions.astype(np.uint64)
    beyond = np.arange(len(samples))
    while beyond.size:
        left, right = np.divmod(samples[beyond], np.uint64(1) << half)
        for key in keys:  # the round function: a multiplicative hash, of which the high bits are the best
            bits = (right ^ key) * np.uint64(0xBF58476D1CE4E5B9)
            bits = (bits ^ (bits >> np.uint64(32))) * np.uint64(0x94D049BB133111EB)
            left, right = right, left ^ (bits >> (np.uint64(64) - half))
        samples[beyond] = (left << half) | right
        beyond = beyond[samples[beyond] >= length]
    return samples.astype(np.int64)


class _BatchSampler:
    """What a loader gets: indices of this rank's micro-batches of one step after the other, without end.

    It knows nothing of ``ResumableSampler``: a loader's iterator ends its worker processes when the last reference to
    it is gone, but not from within a circle of references.
    """

    def __init__(self, length: int, batch_size: int, micro_batches: int, *, shuffle: bool) -> None:
        self.length, self.micro_batches = length, micro_batches
        self.global_batch = batch_size * micro_batches
        self._batch_size, self._shuffle = batch_size, shuffle
        self.first: _Part | None = None
        """Where the next iterator begins."""

    def __iter__(self) -> Iterator[list[int]]:
        if self.first is None:
            raise RuntimeError("iterate over sampler.step(loader, micro_batches), not over the loader itself")
        return self._lists(*self.first)

    def _lists(self, seed: int, start: int, numbers: tuple[int, ...]) -> Iterator[list[int]]:
        size = self._batch_size
        offsets = (np.array(numbers, np.int64)[:, None] * size + np.arange(size)).ravel()
        steps = max(1, min(_BLOCK // offsets.size, self.length // self.global_batch))
        while True:
            taken = start + np.arange(steps)[:, None] * self.global_batch + offsets
            yield from self._samples(seed, taken.ravel()).reshape(-1, size).tolist()
            start += steps * self.global_batch

    def _samples(self, seed: int, taken: Indices) -> Indices:
        """Indices into the dataset of the samples that have ``taken`` others before them, of all epochs."""
        epochs, positions = np.divmod(taken, self.length)
        if self._shuffle:
            for epoch in np.unique(epochs).tolist():
                here = epochs == epoch
                positions[here] = shuffle(positions[here], self.length, seed, epoch)
        return positions


class ResumableSampler:
    """The order of a dataset that has indices. Give it to ``attach`` in ``extra``, and its batches to a loader.

        sampler = mainstay.ResumableSampler(len(dataset), batch_size=4, micro_batches=8, seed=7)
        loader = DataLoader(dataset, batch_sampler=sampler.batch_sampler, num_workers=2)
        run = mainstay.attach(model, optimizer, extra={"data": sampler})
        for step in run.steps(total):
            with run.step():
                for number, batch in sampler.step(loader, mesh.micro_batches(8)):

    A loader is torch's ``DataLoader``, torchdata's ``StatefulDataLoader``, or another class with a ``batch_sampler``.
    """

    def __init__(
        self, length: int, *, batch_size: int, micro_batches: int, seed: int = 0, shuffle: bool = True
    ) -> None:
        """Begin at the first sample of epoch 0.

        Args:
            length: samples of the dataset.
            batch_size: samples of a micro-batch.
            micro_batches: of all replicas in a step. It and ``batch_size`` may be others when a job is resumed.
            seed: of the order of each epoch.
            shuffle: False: samples follow in the order of the dataset.

        Raises:
            ValueError: a number is too small.
        """
        if min(length, batch_size, micro_batches) < 1 or seed < 0:
            raise ValueError(
                f"length={length}, batch_size={batch_size}, micro_batches={micro_batches} must be at least 1, and "
                f"seed={seed} at least 0"
            )
        self._batches = _BatchSampler(length, batch_size, micro_batches, shuffle=shuffle)
        self._length, self._seed = length, seed
        self._taken = 0
        """Samples before the next step, of all epochs."""
        self._reader: tuple[Iterable[Any], Iterator[Any]] | None = None
        """A loader and its iterator."""
        self._ahead: _Part | None = None
        """What that iterator reads next; None within a step."""

    @property
    def batch_sampler(self) -> Iterable[list[int]]:
        """For a loader that only ``step`` reads."""
        return self._batches

    @property
    def epoch(self) -> int:
        """Of the next sample, counted from 0."""
        return self._taken // self._length

    @property
    def position(self) -> int:
        """Of the next sample in its epoch."""
        return self._taken % self._length

    def state_dict(self) -> dict[str, int]:
        """Where the next step begins: a few numbers, equal on all ranks."""
        return {"epoch": self.epoch, "position": self.position, "seed": self._seed, "length": self._length}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state`` was taken, in its order.

        Raises:
            ValueError: it is no such state, or that of a dataset with another number of samples.
        """
        try:
            epoch, position, seed, length = (int(state[key]) for key in ("epoch", "position", "seed", "length"))
        except (KeyError, TypeError) as error:
            raise ValueError(f"cannot resume the order of samples from {state!r}: {error!r}") from error
        if length != self._length:
            raise ValueError(
                f"the order of samples was saved for {length} samples, but the dataset has {self._length}: resume with "
                "the same dataset"
            )
        if not 0 <= position < length or min(epoch, seed) < 0:
            raise ValueError(f"cannot resume the order of samples from {state!r}: a number is out of range")
        self._taken, self._seed = epoch * length + position, seed

    def step(self, loader: Iterable[Any], micro_batches: Iterable[int]) -> Iterator[tuple[int, Any]]:
        """Take the next global batch, and read this rank's part of it.

        Call it once in every step on every rank, inside ``with run.step():``. The numbers may differ between steps; a
        loader that has read ahead for others begins again.

        Args:
            loader: with the ``batch_sampler`` of this object.
            micro_batches: numbers of those that this rank computes: ``mesh.micro_batches(total)``, or without a mesh
                ``range(rank, total, world_size)``. A rank that needs no data passes ``()``.

        Returns:
            (number, what the loader gives) of each of them, in their order.

        Raises:
            ValueError: a number is not of 0 to ``micro_batches`` - 1, or the loader has another ``batch_sampler``.
        """
        wanted = (self._seed, self._taken, _checked(micro_batches, self._batches.micro_batches))
        self._taken += self._batches.global_batch
        return self._read(loader, wanted, self._taken)

    def _read(self, loader: Iterable[Any], wanted: _Part, end: int) -> Iterator[tuple[int, Any]]:
        seed, _, numbers = wanted
        if not numbers:
            return
        if getattr(loader, "batch_sampler", None) is not self._batches:
            raise ValueError("the loader reads samples of its own: make it with batch_sampler=sampler.batch_sampler")
        if self._reader is None or self._reader[0] is not loader or self._ahead != wanted:
            self._reader, self._batches.first = None, wanted  # workers of an earlier iterator end before others begin
            self._reader = loader, _preserve_rng(loader.__iter__)
        batches = self._reader[1]
        self._ahead = None  # until all are read
        for number in numbers:
            yield number, next(batches)
        self._ahead = (seed, end, numbers)


_END: Final = object()


class StatefulIterable(Protocol):
    """What can be read again from a place in it: Hugging Face's ``IterableDataset``, torchdata's loader."""

    def __iter__(self) -> Iterator[Any]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> object: ...


class ResumableStream:
    """The same for a dataset without indices. Each rank reads all of it, and keeps its own micro-batches.

        stream = mainstay.ResumableStream(dataset.batch(4), micro_batches=8)
        run = mainstay.attach(model, optimizer, extra={"data": stream})
        for step in run.steps(total):
            with run.step():
                for number, batch in stream.step(mesh.micro_batches(8)):

    The order is that of the source, which must be the same on all ranks: give it the same seed, and not this rank's
    part only. What the source does not keep in its state is lost, as the content of a shuffle buffer is.
    """

    def __init__(self, source: StatefulIterable, *, micro_batches: int) -> None:
        """Begin at the source's own state.

        Args:
            source: gives micro-batches, without random numbers of this process. ``set_epoch`` is called where it, or
                its ``dataset``, has that.
            micro_batches: of all replicas in a step.

        Raises:
            ValueError: ``micro_batches`` is less than 1.
        """
        if micro_batches < 1:
            raise ValueError(f"micro_batches={micro_batches} must be at least 1")
        self._source, self._micro_batches = source, micro_batches
        self._items: Iterator[Any] | None = None
        self._fresh = False
        """Nothing was read of this epoch."""
        self.epoch = 0
        """Of the last micro-batch, counted from 0."""

    def state_dict(self) -> dict[str, Any]:
        """Where the next step begins; equal on all ranks."""
        return {"epoch": self.epoch, "source": _preserve_rng(self._source.state_dict)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state`` was taken.

        Raises:
            ValueError: it is no such state.
        """
        if state.keys() != {"epoch", "source"}:
            raise ValueError(f"cannot resume a stream from a state with {sorted(state)} instead of epoch and source")
        self._items = None
        self._begin_epoch(int(state["epoch"]))
        self._source.load_state_dict(state["source"])

    def step(self, micro_batches: Iterable[int]) -> list[tuple[int, Any]]:
        """Read the next global batch, and keep this rank's part of it. See ``ResumableSampler.step``.

        Raises:
            ValueError: a number is not of 0 to ``micro_batches`` - 1, or the source is empty.
        """
        numbers = _checked(micro_batches, self._micro_batches)
        read = ((number, self._next()) for number in range(self._micro_batches))
        kept = {number: item for number, item in read if number in numbers}
        return [(number, kept[number]) for number in numbers]

    def _next(self) -> Any:
        while True:
            if self._items is None:
                self._items = _preserve_rng(self._source.__iter__)
            item = next(self._items, _END)
            if item is not _END:
                self._fresh = False
                return item
            if self._fresh:
                raise ValueError("the source of a stream is empty")
            self._items = None
            self._begin_epoch(self.epoch + 1)
            self._fresh = True

    def _begin_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        holders: list[Any] = [self._source, getattr(self._source, "dataset", None)]
        for holder in holders:
            if hasattr(holder, "set_epoch"):
                holder.set_epoch(epoch)


def _checked(micro_batches: Iterable[int], total: int) -> tuple[int, ...]:
    numbers = tuple(micro_batches)
    if len({*numbers}) < len(numbers) or any(not 0 <= number < total for number in numbers):
        raise ValueError(f"micro-batches {list(numbers)} must be different numbers of 0 to {total - 1}")
    return numbers


def _preserve_rng(call: Callable[[], T]) -> T:
    """Return ``call()``. A loader draws a seed when it begins, and it begins more often in a run with failures."""
    with torch.random.fork_rng(devices=[]):
        return call()
