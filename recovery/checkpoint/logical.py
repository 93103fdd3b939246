"""A checkpoint as named global tensors, whichever program wrote it in which pieces (arXiv 2406.18820, section 3).

Names are those of a torch state dict: ``model.W`` for parameters and buffers, ``optimizer.state.W.KEY`` for optimizer
tensors. A tensor consists of boxes, each of which lies somewhere in a file. To read a tensor or a part of it reads no
other bytes. No torch here: arrays have numpy's types (``memory.layout.DTYPES``).
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from mainstay.recovery.checkpoint.file_errors import file_errors
from mainstay.recovery.checkpoint.manifest import CheckpointError, DamagedError
from mainstay.recovery.memory.layout import DTYPES

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[np.generic]
Shape = tuple[int, ...]
Region = tuple[slice, ...]
"""One slice for each dimension, without a step."""
Verify = Callable[[], object] | None
PIECE: Final = 16 << 20
"""Bytes of a tensor that are in memory at once while it is copied or compared."""
MASTER: Final = "fp32"
"""Key of the copy in full precision that optimizers keep of a parameter, as Universal Checkpointing calls it."""


def region_of(shape: Shape) -> Region:
    return tuple(slice(0, length) for length in shape)


def lengths(region: Region) -> Shape:
    return tuple(part.stop - part.start for part in region)


def overlap(offsets: Shape, sizes: Shape, wanted: Region) -> tuple[Region, Region] | None:
    """Where a box and the region ``wanted`` of a tensor meet, in the coordinates of each; None: nowhere."""
    inner, outer = [], []
    for offset, size, part in zip(offsets, sizes, wanted, strict=True):
        first, last = max(offset, part.start), min(offset + size, part.stop)
        if first >= last:
            return None
        inner.append(slice(first - offset, last - offset))
        outer.append(slice(first - part.start, last - part.start))
    return tuple(inner), tuple(outer)


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangular block of a tensor."""

    offsets: Shape
    """Of its first element in the tensor."""
    sizes: Shape
    read: Callable[[Region], Array]
    """Elements of a region within the box, without reading others."""
    place: str = ""
    """Where the bytes are, for people: a file or a rank."""
    verify: Verify = None
    """Read all bytes and check their checksum; raises ``CheckpointError``. None: there is no checksum."""


@dataclass(frozen=True, slots=True)
class LogicalTensor:
    """A tensor of the whole model."""

    name: str
    dtype: str
    """As torch calls it, without ``torch.``."""
    shape: Shape
    boxes: tuple[Box, ...]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * self.numpy_dtype.itemsize

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        return np.dtype(DTYPES[self.dtype])

    def read(self, region: Region | None = None) -> Array:
        """The elements of ``region``, whose bounds count as numpy's do; None: all.

        Raises:
            CheckpointError: a file is short or missing, no box has some of the elements, or it is no such region.
        """
        given = region_of(self.shape) if region is None else region
        if len(given) != len(self.shape) or any(part.step not in (None, 1) for part in given):
            raise CheckpointError(f"tensor {self.name!r} {list(self.shape)} needs a slice for each dimension, no steps")
        bounds = (part.indices(length) for part, length in zip(given, self.shape, strict=True))
        wanted = tuple(slice(start, max(start, stop)) for start, stop, _ in bounds)
        sizes = lengths(wanted)
        met = [(box, where) for box in self.boxes if (where := overlap(box.offsets, box.sizes, wanted))]
        for box, (inner, _) in met:
            if lengths(inner) == sizes:
                return box.read(inner)
        if sum(math.prod(lengths(inner)) for _, (inner, _) in met) != math.prod(sizes):
            raise CheckpointError(f"tensor {self.name!r} {list(self.shape)}: the checkpoint lacks some of its elements")
        out = np.empty(sizes, self.numpy_dtype)
        for box, (inner, outer) in met:
            out[outer] = box.read(inner)
        return out

    def pieces(self, start: int = 0, stop: int | None = None) -> Iterator[Array]:
        """Elements ``[start, stop)`` in row-major order, as arrays [n] of at most ``PIECE`` bytes."""
        end, step = self.numel if stop is None else stop, max(1, PIECE // self.numpy_dtype.itemsize)
        for first in range(start, end, step):
            for offsets, sizes in boxes_of_range(self.shape, first, min(first + step, end)):
                region = tuple(slice(at, at + size) for at, size in zip(offsets, sizes, strict=True))
                yield self.read(region).reshape(-1)

    def torch(self, region: Region | None = None) -> torch.Tensor:
        """The same as a torch tensor on the CPU."""
        import torch  # noqa: PLC0415 - most readers need none

        array, kind = self.read(region), getattr(torch, self.dtype)
        flat = torch.frombuffer(bytearray(array.tobytes()), dtype=kind) if array.size else torch.empty(0, dtype=kind)
        return flat.reshape(array.shape)

    def check_boxes(self) -> None:
        """Check that the boxes are within the tensor and cover it once.

        Raises:
            CheckpointError: they do not.
        """
        shape, kept = self.shape, [box for box in self.boxes if math.prod(box.sizes)]
        for box in kept:
            if any(at + size > length for at, size, length in zip(box.offsets, box.sizes, shape, strict=True)):
                raise CheckpointError(f"tensor {self.name!r} {list(shape)}: a part in {box.place} is outside of it")
        if len({box.offsets for box in kept}) != len(kept) or sum(math.prod(box.sizes) for box in kept) != self.numel:
            raise CheckpointError(f"tensor {self.name!r} {list(shape)}: its parts do not cover it exactly once")

    def verify(self) -> None:
        """Read all bytes, and check them where there is something to check them against.

        Raises:
            CheckpointError: they are damaged, or cannot be read.
        """
        for box in self.boxes:
            if box.verify is not None:
                box.verify()
                continue
            stored = LogicalTensor(self.name, self.dtype, box.sizes, (replace(box, offsets=(0,) * len(box.sizes)),))
            for _ in stored.pieces():
                pass


@dataclass(slots=True)
class LogicalCheckpoint:
    """What a checkpoint holds: tensors, and plain data (numbers, text, lists and dicts of these)."""

    path: Path
    format: str
    tensors: dict[str, LogicalTensor]
    values: dict[str, Any] = field(default_factory=dict)
    """``step``; ``optimizer.param_groups`` as torch has them, with the names of parameters where they are known."""
    quantized: str = ""
    """How far values may be from those that were saved; empty: they are those."""
    parity_bytes: int = 0
    """Of files beside these tensors that decode lost parts."""

    @property
    def step(self) -> int:
        return int(self.values.get("step", 0))

    def add_tensor(self, name: str, tensor: LogicalTensor) -> None:
        """Have ``tensor`` under another name."""
        self.tensors[name] = replace(tensor, name=name)

    def tensor(self, name: str) -> LogicalTensor:
        """The tensor called ``name``.

        Raises:
            CheckpointError: there is none; names the nearest.
        """
        if name in self.tensors:
            return self.tensors[name]
        import difflib  # noqa: PLC0415 - only errors need it

        near = difflib.get_close_matches(name, self.tensors, n=3)
        hint = f"near it are {', '.join(near)}" if near else "mainstay checkpoint du lists names"
        raise CheckpointError(f"{self.path} has no tensor {name!r}; {hint}")

    def model(self) -> dict[str, LogicalTensor]:
        """Parameters and buffers by their name in the model."""
        return {name.removeprefix("model."): t for name, t in self.tensors.items() if name.startswith("model.")}

    def optimizer_state(self) -> dict[str, dict[str, LogicalTensor]]:
        """Parameter -> key -> tensor."""
        state: dict[str, dict[str, LogicalTensor]] = {}
        for name, tensor in self.tensors.items():
            if name.startswith("optimizer.state."):
                parameter, _, key = name.removeprefix("optimizer.state.").rpartition(".")
                state.setdefault(parameter, {})[key] = tensor
        return state

    def param_groups(self) -> list[dict[str, Any]]:
        """The optimizer's groups, each with the names of its parameters.

        Raises:
            CheckpointError: there are several, and the checkpoint does not say which parameters each has.
        """
        groups = [dict(group) for group in self.values.get("optimizer.param_groups") or [{}]]
        if len(groups) == 1 and not all(isinstance(name, str) for name in groups[0].get("params", [0])):
            groups[0]["params"] = list(self.optimizer_state())
        named = all(f"model.{name}" in self.tensors for name in self.optimizer_state() if name.isdecimal())
        if not named or any(not isinstance(name, str) for group in groups for name in group.get("params", [0])):
            raise CheckpointError(f"{self.path} does not say which parameters each optimizer group has, by name")
        return groups

    def nested(self) -> dict[str, Any]:
        """Model, optimizer and plain data as the nested dicts of torch state dicts."""
        tree: dict[str, Any] = {"model": self.model()}
        if self.optimizer_state() or "optimizer.param_groups" in self.values:
            groups = self.values.get("optimizer.param_groups", [])
            tree["optimizer"] = {"state": self.optimizer_state(), "param_groups": groups}
        tree |= {name: value for name, value in self.values.items() if name != "optimizer.param_groups"}
        known = ("model.", "optimizer.state.")
        return tree | {name: tensor for name, tensor in self.tensors.items() if not name.startswith(known)}

    def state_dict(self) -> dict[str, Any]:
        """``nested`` with torch tensors, for ``load_state_dict`` or ``set_optimizer_state_dict``."""

        def load(item: Any) -> Any:
            if isinstance(item, LogicalTensor):
                return item.torch()
            return {key: load(part) for key, part in item.items()} if isinstance(item, dict) else item

        loaded: dict[str, Any] = load(self.nested())
        return loaded


# Boxes


def boxes_of_range(shape: Shape, start: int, stop: int) -> Iterator[tuple[Shape, Shape]]:
    """(offsets, sizes) of the rectangular blocks that elements ``[start, stop)`` in row-major order consist of.

    At most two for each dimension. Each is contiguous in memory and they follow each other.
    """
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    while start < stop:
        offsets = tuple(start // stride % length for stride, length in zip(strides, shape, strict=True))
        if not shape:
            yield (), ()
            return
        axis = next(i for i, stride in enumerate(strides) if start % stride == 0 and start + stride <= stop)
        count = min((stop - start) // strides[axis], shape[axis] - offsets[axis])
        yield offsets, (*(1 for _ in shape[:axis]), count, *shape[axis + 1 :])
        start += count * strides[axis]


def array_tensor(array: Array, dtype: str) -> LogicalTensor:
    """A tensor that is in memory; ``array`` has the numpy type of ``dtype``."""
    box = Box((0,) * array.ndim, array.shape, lambda region: array[region], "memory", lambda: True)
    return LogicalTensor("", dtype, array.shape, (box,))


def joined(dtype: str, parts: Iterable[tuple[LogicalTensor, int, int]]) -> LogicalTensor:
    """A flat tensor [n] of elements ``[start, stop)`` of tensors of ``dtype``; a tensor without boxes is zeros."""
    boxes, at = [], 0
    for tensor, start, stop in parts:
        boxes.append(Box((at,), (stop - start,), partial(_read_flat, tensor, start)))
        at += stop - start
    return LogicalTensor("", dtype, (at,), tuple(box for box in boxes if box.sizes[0]))


def _read_flat(tensor: LogicalTensor, start: int, region: Region) -> Array:
    first, last = start + region[0].start, start + region[0].stop
    if not tensor.boxes:
        return np.zeros(last - first, tensor.numpy_dtype)
    return np.concatenate([*tensor.pieces(first, last)])


def flat_boxes(shape: Shape, position: int, flat: LogicalTensor, start: int, count: int) -> Iterator[Box]:
    """The boxes of elements ``[position, position + count)`` of a tensor that are in ``flat`` [n] from ``start``."""
    (source,) = flat.boxes
    at = start
    for offsets, sizes in boxes_of_range(shape, position, position + count):
        yield Box(offsets, sizes, partial(_read_view, flat, at, sizes), source.place, source.verify)
        at += math.prod(sizes)


def _read_view(flat: LogicalTensor, start: int, sizes: Shape, region: Region) -> Array:
    out = np.empty(lengths(region), flat.numpy_dtype)
    for row, at in _runs(out, sizes, region):
        row[:] = flat.read((slice(start + at, start + at + len(row)),))
    return out


def _runs(out: Array, sizes: Shape, region: Region) -> Iterator[tuple[Array, int]]:
    """The contiguous runs of ``region`` in row-major elements of ``sizes``: (where in ``out``, first element)."""
    strides = tuple(math.prod(sizes[axis + 1 :]) for axis in range(len(sizes)))
    axis = len(sizes)
    while axis and (region[axis - 1].start, region[axis - 1].stop) == (0, sizes[axis - 1]):
        axis -= 1
    lead = max(axis - 1, 0)
    base = sum(part.start * stride for part, stride in zip(region[lead:], strides[lead:], strict=True))
    if out.size:
        places = itertools.product(*(range(part.start, part.stop) for part in region[:lead]))
        for row, place in zip(out.reshape(math.prod(out.shape[:lead]), -1), places, strict=True):
            yield row, base + sum(index * stride for index, stride in zip(place, strides[:lead], strict=True))


# Files


def file_tensor(
    name: str, dtype: str, shape: Shape, path: Path, *, at: int, strides: Shape | None = None, verify: Verify = None
) -> LogicalTensor:
    """A tensor that begins at byte ``at`` of a file; see ``file_reader`` and ``Box``."""
    read = file_reader(path, at, shape, dtype, strides)
    return LogicalTensor(name, dtype, shape, (Box((0,) * len(shape), shape, read, path.name, verify),))


def file_reader(
    path: Path, at: int, sizes: Shape, dtype: str, strides: Shape | None = None
) -> Callable[[Region], Array]:
    """A reader of the elements that begin at byte ``at`` of ``path``, in row-major order or with ``strides``."""
    kind = np.dtype(DTYPES[dtype])
    rows = tuple(math.prod(sizes[axis + 1 :]) for axis in range(len(sizes)))
    strides = rows if strides is None or not math.prod(sizes) else strides

    contiguous = all(size == 1 or a == b for size, a, b in zip(sizes, strides, rows, strict=True))

    def read(region: Region) -> Array:
        with file_errors(path), path.open("rb", buffering=0) as file:
            if contiguous:
                out = np.empty(lengths(region), kind)
                for row, first in _runs(out, sizes, region):
                    read_at(file.fileno(), row.view(np.uint8), at + first * kind.itemsize, path)
                return out
            span = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) + 1
            raw = np.empty(span, kind)
            read_at(file.fileno(), raw.view(np.uint8), at, path)
        steps = tuple(stride * kind.itemsize for stride in strides)
        return np.lib.stride_tricks.as_strided(raw, sizes, steps)[region].copy()

    return read


def read_at(fd: int, out: npt.NDArray[np.uint8], at: int, path: Path) -> None:
    """Fill ``out`` (uint8 [n]) from byte ``at`` of the file.

    Raises:
        CheckpointError: the file ends before, or the disk refused.
    """
    done = 0
    with file_errors(path):
        while done < len(out):
            count = os.preadv(fd, [out[done : done + PIECE].data], at + done)
            if not count:
                raise DamagedError(f"{path} ends before byte {at + len(out)}")
            done += count


# Checks


def problems(checkpoint: LogicalCheckpoint) -> Iterator[str]:
    """Read everything; one line for each tensor that is damaged or incomplete."""
    for tensor in checkpoint.tensors.values():
        try:
            tensor.check_boxes()
            tensor.verify()
        except CheckpointError as error:
            yield f"{tensor.name}: {error}"


def values_of(array: Array, dtype: str) -> npt.NDArray[Any]:
    """Numbers that can be compared and printed: bfloat16 as float32; types of 8 bits as their bits."""
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array
