"""Whether every sample went into the model exactly once, by what ranks wrote down (``recovery/examples/journal.py``).

What a rank computed in step s of generation g counts if no later generation begins at s or before: that one began from
a state in which step s was not made. So the journal alone says which work counted; the coordinator is not asked.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


class JournalError(RuntimeError):
    """A journal that cannot be read; the message names file and line."""


@dataclass(frozen=True, slots=True)
class Account:
    """Of a whole run."""

    samples: int
    """(step, micro-batch) pairs that there should be."""
    lost: int
    """Of these: with a layer that no rank computed, in a step that counts."""
    doubled: int
    """With a layer that was computed more than once."""
    repeated: int
    """Lines whose work did not count: it was made again."""


@dataclass(frozen=True, slots=True)
class _Line:
    order: tuple[int, int]
    """Run and generation."""
    step: int
    layers: range
    micro_batches: tuple[int, ...]
    of: int


def account(directories: Sequence[Path], *, steps: int, layers: int) -> Account:
    """Check the journal of a run, or of several of which each continued from the last one's state.

    Args:
        directories: one a run, in order.
        steps: that the last run ended after.
        layers: of the model.

    Raises:
        JournalError: a line is not what an example writes.
    """
    lines = [line for number, directory in enumerate(directories) for line in _read(directory, number)]
    counted = _that_count(lines)
    work: dict[int, dict[int, Counter[int]]] = defaultdict(lambda: defaultdict(Counter))
    sizes = {line.of for line in lines}
    if len(sizes) != 1:
        raise JournalError(f"{directories[0]}: a step has {sorted(sizes)} micro-batches; it should be one number")
    (size,) = sizes
    for line in counted:
        for layer in line.layers:
            work[line.step][layer].update(line.micro_batches)
    lost = doubled = 0
    for step in range(steps):
        for number in range(size):
            times = [work[step][layer][number] for layer in range(layers)]
            lost += min(times) < 1
            doubled += max(times) > 1
    beyond = {(line.step, number) for line in counted for number in line.micro_batches if line.step >= steps}
    return Account(steps * size, lost, doubled + len(beyond), len(lines) - len(counted))


def times(directory: Path) -> dict[int, list[float]]:
    """Step -> Unix times at which ranks were about to update, rising, so far; a step is committed before the next."""
    found: dict[int, list[float]] = defaultdict(list)
    for file in directory.glob("rank-*.jsonl"):
        for line in file.read_text().splitlines():
            said = json.loads(line)
            found[int(said["step"])].append(float(said["time"]))
    return {step: sorted(at) for step, at in found.items()}


def _that_count(lines: Sequence[_Line]) -> list[_Line]:
    begins: dict[tuple[int, int], int] = {}
    for line in lines:
        begins[line.order] = min(line.step, begins.get(line.order, line.step))
    left: dict[tuple[int, int], float] = {}
    least = float("inf")
    for order in sorted(begins, reverse=True):
        left[order] = least  # steps from there on were made again by a later generation
        least = min(least, begins[order])
    return [line for line in lines if line.step < left[line.order]]


def _read(directory: Path, run: int) -> Iterator[_Line]:
    files = sorted(directory.glob("rank-*.jsonl"))
    if not files:
        raise JournalError(f"{directory}: no rank has written a journal")
    for file in files:
        for number, text in enumerate(file.read_text().splitlines(), start=1):
            try:
                said = json.loads(text)
                first, behind = said["layers"]
                yield _Line(
                    (run, int(said["generation"])), int(said["step"]), range(first, behind),
                    tuple(said["micro_batches"]), int(said["of"]),
                )  # fmt: skip
            except (ValueError, KeyError, TypeError) as error:
                raise JournalError(f"{file}:{number}: {error!r}") from error
