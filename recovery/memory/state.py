"""A trainer's state under stable names: parameters, buffers, optimizer state, random numbers, and a blob of scalars.

What ``freeze`` names, ``load`` puts back in place, bit for bit. The layout depends on model and optimizer alone, never
on how far training is, so a restarted process finds its arena again. An optimizer that creates its state at its
first step keeps that manner: a snapshot of one that has not stepped restores to one that has not stepped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from mainstay.recovery.memory import blob, rng_state
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.device import Bounce, DeviceCopier, StridedCopier
from mainstay.recovery.memory.digest import Bytes
from mainstay.recovery.memory.dtensor import global_slice, local
from mainstay.recovery.memory.global_slices import SLICES, DeclaredSlices, GlobalSlice, encode
from mainstay.recovery.memory.layout import DTYPES, Layout
from mainstay.recovery.memory.model_names import MARK, MARK_SPEC, MARK_VALUE, ModelNames
from mainstay.recovery.memory.optimizer import OptimizerState
from mainstay.recovery.memory.pacing import Pacer
from mainstay.recovery.memory.pinning import Pinned
from mainstay.recovery.memory.shard import RestorableState
from mainstay.recovery.memory.slot_copy import Piece, Zeros
from mainstay.recovery.memory.tensor_restore import restore_tensor, restore_tensors

BLOB: Final = "mainstay.blob"
_BLOB_BASE: Final = 64 * 1024
_BLOB_PER_TENSOR: Final = 256
"""Room for the scalars that some optimizers keep for each parameter."""

Extra = Mapping[str, Any]
"""name -> object with ``state_dict``/``load_state_dict`` of plain data, or a plain dict that is refilled in place."""

Arrays = Mapping[str, npt.NDArray[np.generic]]


def dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


class TrainerState:
    """A ``Source`` over a live model and optimizer: hand it to ``SnapshotWriter``, and ``load`` a slot back into it."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
        extra: Extra | None = None,
        names: Mapping[str, str] | None = None,
        sharding: DeclaredSlices | None = None,
    ) -> None:
        self.model = model
        self.extra = dict(extra or {})
        self._check_extra()
        local_names = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
        self._names = None if names is None else ModelNames(names, local_names)
        parameters = {self._whole(name): parameter for name, parameter in model.named_parameters()}
        self._optimizer = None if optimizer is None else OptimizerState(optimizer, parameters)
        self.slices = self._find_slices(sharding)
        """Where tensors that are cut among ranks lie in the whole model."""
        self._slices = encode(self.slices)
        self._generators = rng_state.RngState(_devices(model))
        self._bounce = Bounce()
        self.layout = Layout.build(dict(self._describe()))
        self._seen: dict[str, tuple[int, int, Bytes]] = {}
        """Name -> address, number of elements and bytes of a host tensor: as long as the bytes are held here, another
        tensor at that address is the same memory."""
        self._scratch = {name: np.zeros(t.nbytes, np.uint8) for name, t in self._buffers()}
        self._blob: Bytes = np.zeros(self.layout.specs()[BLOB].nbytes, np.uint8)

    # On a GPU

    def pace(self, busy: Callable[[], bool]) -> None:
        """Let copies off a GPU give way while ``busy`` says that the rank talks to its peers."""
        self._bounce.pacer = Pacer(busy)

    def mapped(self, memory: Bytes) -> None:
        """Slots will be written in ``memory`` from now on: where parameters live on a GPU, register it with CUDA."""
        if self._bounce.pinned is not None:
            self._bounce.pinned.close()
            self._bounce.pinned = None
        if _devices(self.model):
            self._bounce.pinned = Pinned(memory, torch.cuda.cudart())  # type: ignore[no-untyped-call]

    @property
    def pinned(self) -> Pinned | None:
        """The memory registered with CUDA that slots are written in; None without a GPU."""
        return self._bounce.pinned

    # Out

    def freeze(self) -> Mapping[str, Piece]:
        """Copy what may change during forward and backward; refer to the rest.

        Raises:
            ValueError: the scalars have outgrown their room, or are not plain data.
        """
        pieces: dict[str, Piece] = {}
        ready = self._bounce.mark()
        for name, parameter in self._parameters():
            pieces[name] = self._piece(name, parameter, ready)
        for name, buffer in self._buffers():
            pieces[name] = _copied(buffer, self._scratch[name])
        scalars: dict[str, Any] = {
            "extra": {name: item if isinstance(item, dict) else item.state_dict() for name, item in self.extra.items()}
        }
        if self._optimizer is not None:
            tensors, scalars["optimizer"] = self._optimizer.capture()
            for name, tensor in tensors.items():
                pieces[name] = Zeros() if tensor is None else self._piece(name, tensor, ready)
        if self._bounce.pacer is not None:
            self._bounce.pacer.begin_copy(sum(p.tensor.nbytes for p in pieces.values() if isinstance(p, DeviceCopier)))
        arrays, scalars["generators"] = self._generators.capture()
        blob.write(scalars, self._blob)
        own: dict[str, Piece] = {MARK: MARK_VALUE} if self._names is not None else {}
        if self.slices:
            own[SLICES] = self._slices
        return pieces | own | {name: _raw(array) for name, array in arrays.items()} | {BLOB: self._blob}

    def _piece(self, name: str, tensor: torch.Tensor, ready: object) -> Piece:
        known = self._seen.get(name)  # most steps find all tensors where they were: the trainer stands still meanwhile
        contiguous = tensor.is_contiguous()
        if known is not None and contiguous and (tensor.data_ptr(), tensor.numel()) == known[:2]:
            return known[2]
        found = piece_of(tensor.detach(), self._bounce, ready)
        if isinstance(found, np.ndarray):
            self._seen[name] = (tensor.data_ptr(), tensor.numel(), found)
        return found

    # In

    def load(self, arrays: Arrays) -> None:
        """Put the tensors of a slot (by name, as ``read_slot`` gives them) back in place.

        Raises:
            ValueError: a tensor is missing or has another size; nothing was changed then.
        """
        for spec in self.layout.tensors:
            if spec.name != SLICES and (spec.name not in arrays or arrays[spec.name].nbytes != spec.nbytes):
                raise ValueError(f"the snapshot does not fit this model: tensor {spec.name!r} is missing or differs")
        if SLICES in arrays and arrays[SLICES].tobytes() != self._slices.tobytes():
            raise ValueError("the snapshot does not fit this model: its tensors are cut at other places")
        scalars = blob.read(_raw(arrays[BLOB]))
        with torch.no_grad():
            restore_tensors((tensor.detach(), arrays[name]) for name, tensor in (*self._parameters(), *self._buffers()))
            if self._optimizer is not None:
                self._optimizer.put(arrays, scalars["optimizer"])
        self._restore_own(arrays, scalars)

    def rewind(self, pieces: Mapping[str, Piece]) -> None:
        """Undo what a forward and backward pass have moved on since ``freeze`` gave ``pieces`` (its newest).

        Buffers, random numbers, scalars and extras come back; parameters and optimizer tensors, which such a pass
        leaves alone, are not touched.
        """
        specs = self.layout.specs()
        arrays = {
            name: piece.view(DTYPES[specs[name].dtype]).reshape(specs[name].shape)
            for name, piece in pieces.items()
            if isinstance(piece, np.ndarray)
        }
        scalars = blob.read(_raw(arrays[BLOB]))
        with torch.no_grad():
            for name, buffer in self._buffers():
                restore_tensor(buffer.detach(), arrays[name])
        if self._optimizer is not None:
            self._optimizer.put_scalars(scalars["optimizer"])
        self._restore_own(arrays, scalars)

    def _restore_own(self, arrays: Arrays, scalars: dict[str, Any]) -> None:
        """Extras and random numbers."""
        for name, item in self.extra.items():
            state = scalars["extra"].get(name)
            if state is not None and isinstance(item, dict):
                item.clear()
                item.update(state)
            elif state is not None:
                item.load_state_dict(state)
        self._generators.restore(arrays, scalars["generators"])

    # Names

    def _whole(self, name: str) -> str:
        return name if self._names is None else self._names.model_name(name)

    def _parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self.model.named_parameters():
            yield f"param.{self._whole(name)}", local(parameter)

    def _buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, buffer in self.model.named_buffers():
            yield f"buffer.{self._whole(name)}", local(buffer)

    def _find_slices(self, sharding: DeclaredSlices | None) -> dict[str, GlobalSlice]:
        """Of distributed tensors, and of those that the script declares."""
        found: dict[str, GlobalSlice | None] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        for kind, tensors in (("param", self.model.named_parameters()), ("buffer", self.model.named_buffers())):
            for name, tensor in tensors:
                full, shape = f"{kind}.{self._whole(name)}", tuple(local(tensor).shape)
                place = None if sharding is None else sharding.place(name, shape)
                found[full], shapes[full] = place or global_slice(tensor), shape
        if sharding is not None:
            sharding.require_used()
        if self._optimizer is not None:
            made = {full: shape for full, (_, shape) in self._optimizer.describe()}
            for full, name in self._optimizer.owners.items():
                parameter = f"param.{name}"
                same = shapes.get(parameter) == made[full]  # moments lie as their parameter does
                found[full] = self._optimizer.slices.get(full) or (found[parameter] if same else None)
        return {name: place for name, place in found.items() if place is not None}

    def _describe(self) -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
        count = 0
        for name, tensor in (*self._parameters(), *self._buffers()):
            yield name, (dtype_name(tensor), tuple(tensor.shape))
            count += 1
        if self._optimizer is not None:
            yield from self._optimizer.describe()
        yield from self._generators.describe()
        if self._names is not None:
            yield MARK, MARK_SPEC
        if self.slices:
            yield SLICES, ("uint8", (len(self._slices),))
        yield BLOB, ("uint8", (_BLOB_BASE + _BLOB_PER_TENSOR * count,))

    def _check_extra(self) -> None:
        for name, item in self.extra.items():
            if not isinstance(item, dict) and not hasattr(item, "load_state_dict"):
                raise ValueError(f"extra {name!r} is neither a dict nor has it state_dict and load_state_dict")


def restore(arena: Arena, epoch: int, state: RestorableState) -> int:
    """Check the slot of ``epoch`` and load it, straight from the arena; returns the bytes of the slot.

    Raises:
        SlotMissingError, CorruptArenaError: nothing was changed.
        TornSlotError: the slot was overwritten meanwhile; the state is a mixture and must be restored again.
    """
    record = arena.find(epoch)
    arena.check(record)
    with arena.reading(record) as data:
        state.load(arena.layout.views(data))
    return record.nbytes


def piece_of(tensor: torch.Tensor, bounce: Bounce, ready: object) -> Piece:
    """What copies a detached tensor: its own bytes where they lie together in host memory."""
    if tensor.device.type != "cpu":
        return DeviceCopier(tensor, bounce, ready)
    return host_bytes(tensor) if tensor.is_contiguous() else StridedCopier(tensor)


def host_bytes(tensor: torch.Tensor) -> Bytes:
    """The memory of a contiguous CPU tensor, without a copy."""
    array: Bytes = tensor.reshape(-1).view(torch.uint8).numpy()
    return array


def _raw(array: npt.NDArray[np.generic]) -> Bytes:
    return array.reshape(-1).view(np.uint8)


def _copied(tensor: torch.Tensor, scratch: Bytes) -> Bytes:
    torch.from_numpy(scratch).view(tensor.dtype).reshape(tensor.shape).copy_(tensor.detach())
    return scratch


def _devices(model: torch.nn.Module) -> tuple[int, ...]:
    """Indices of the CUDA devices that the parameters live on."""
    return tuple(sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"}))
