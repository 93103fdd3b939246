"""Named global tensors: what is read for a part of one, what memory it takes, and what incomplete ones say."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from mainstay.recovery.checkpoint import logical, open_checkpoint
from mainstay.recovery.checkpoint.logical import (
    Box,
    LogicalCheckpoint,
    LogicalTensor,
    array_tensor,
    boxes_of_range,
    file_reader,
    flat_boxes,
    joined,
    problems,
)
from mainstay.recovery.checkpoint.manifest import CheckpointError


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 4), (2, 3, 4), (1, 5, 1, 2), (2, 1, 3)])
def test_a_range_of_elements_is_a_few_blocks(shape: tuple[int, ...]) -> None:
    array = np.arange(math.prod(shape)).reshape(shape)
    for start in range(array.size + 1):
        for stop in range(start, array.size + 1):
            found = list(boxes_of_range(shape, start, stop))
            assert len(found) <= max(1, 2 * len(shape))
            parts = [array[tuple(slice(a, a + n) for a, n in zip(*block, strict=True))].reshape(-1) for block in found]
            assert [*np.concatenate([np.empty(0, int), *parts])] == [*range(start, stop)]


def _stored(path: Path, array: np.ndarray, rows: int) -> LogicalTensor:
    """``array`` in two boxes of one file, cut after ``rows``."""
    path.write_bytes(array.tobytes())
    cuts = ((0, rows), (rows, array.shape[0]))
    boxes = [
        Box(
            (a, 0), (b - a, array.shape[1]), file_reader(path, a * array.strides[0], (b - a, array.shape[1]), "float32")
        )
        for a, b in cuts
    ]
    return LogicalTensor("w", "float32", array.shape, tuple(boxes))


def test_any_region_is_read_across_boxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.random.default_rng(1).standard_normal((9, 5)).astype(np.float32)
    tensor = _stored(tmp_path / "w", array, 4)
    chance = np.random.default_rng(2)
    for _ in range(200):
        (a, b), (c, d) = np.sort(chance.integers(0, 10, 2)), np.sort(chance.integers(0, 6, 2))
        assert np.array_equal(tensor.read((slice(int(a), int(b)), slice(int(c), int(d)))), array[a:b, c:d])
    monkeypatch.setattr(logical, "PIECE", 12)
    assert np.array_equal(np.concatenate([*tensor.pieces(7, 40)]), array.reshape(-1)[7:40])
    assert torch.equal(tensor.torch(), torch.from_numpy(array))


def test_a_part_is_read_without_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "one.pt"
    torch.save({"w": torch.arange(1_000_000.0).reshape(1000, 1000), "v": torch.zeros(1_000_000)}, path)
    tensor = open_checkpoint(path).tensors["model.w"]
    counted: list[int] = []
    real = os.preadv

    def count(fd: int, buffers: list[memoryview], at: int) -> int:
        counted.append(real(fd, buffers, at))
        return counted[-1]

    monkeypatch.setattr(logical.os, "preadv", count)
    assert tensor.read((slice(500, 502), slice(0, 1000)))[1, 3] == 501_003
    assert sum(counted) == 8000
    assert tensor.read((slice(10, 20), slice(7, 8))).reshape(-1).tolist() == [1000 * row + 7 for row in range(10, 20)]
    assert sum(counted) == 8040


def test_pieces_are_never_larger_than_their_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.zeros((64, 1000), np.float32)
    tensor = _stored(tmp_path / "w", array, 10)
    monkeypatch.setattr(logical, "PIECE", 10_000)
    assert max(piece.nbytes for piece in tensor.pieces()) <= 10_000


def test_missing_and_overlapping_boxes_are_named(tmp_path: Path) -> None:
    array = np.zeros((6, 2), np.float32)
    whole = _stored(tmp_path / "w", array, 4)
    gap = LogicalTensor("w", "float32", (6, 2), whole.boxes[:1])
    with pytest.raises(CheckpointError, match="lacks some of its elements"):
        gap.read()
    with pytest.raises(CheckpointError, match="cover it exactly once"):
        gap.check_boxes()
    with pytest.raises(CheckpointError, match="cover it exactly once"):
        LogicalTensor("w", "float32", (6, 2), (*whole.boxes, whole.boxes[0])).check_boxes()
    with pytest.raises(CheckpointError, match="outside of it"):
        LogicalTensor("w", "float32", (5, 2), whole.boxes).check_boxes()
    (tmp_path / "w").write_bytes(array.tobytes()[:-1])
    checkpoint = LogicalCheckpoint(tmp_path, "test", {"w": whole})
    (problem,) = problems(checkpoint)
    assert "ends before byte 48" in problem
    (tmp_path / "w").unlink()
    assert "No such file" in next(problems(checkpoint))


def test_flat_partitions_and_tensors_are_each_others_views() -> None:
    array = np.arange(60.0).astype(np.float32).reshape(3, 4, 5)
    tensor = array_tensor(array, "float32")
    zeros = LogicalTensor("", "float32", (4,), ())
    parts = [joined("float32", [(tensor, a, min(a + 22, 60)), (zeros, 0, max(0, a + 22 - 60))]) for a in (0, 22, 44)]
    assert [part.shape for part in parts] == [(22,)] * 3
    assert parts[2].read().tolist() == [*range(44, 60), *[0.0] * 6]
    whole = [LogicalTensor("", "float32", p.shape, (Box((0,), p.shape, p.read_region),)) for p in map(_Flat, parts)]
    boxes = [
        box for n, part in enumerate(whole) for box in flat_boxes((3, 4, 5), 22 * n, part, 0, min(22, 60 - 22 * n))
    ]
    again = LogicalTensor("w", "float32", (3, 4, 5), tuple(boxes))
    again.check_boxes()
    assert np.array_equal(again.read(), array)
    assert np.array_equal(again.read((slice(1, 3), slice(2, 3), slice(1, 4))), array[1:3, 2:3, 1:4])


class _Flat:
    """A flat tensor as one box."""

    def __init__(self, tensor: LogicalTensor) -> None:
        self.shape = tensor.shape
        self.read_region = tensor.read


def test_what_is_no_checkpoint_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        open_checkpoint(tmp_path / "none")
    (tmp_path / "notes.txt").write_text("x")
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(CheckpointError, match="no checkpoint that Mainstay reads"):
            open_checkpoint(path)
