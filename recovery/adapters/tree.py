"""Nested state dicts as slots: tensors side by side, the structure and everything else as msgpack. No pickle.

What a framework's checkpoint is made of is admitted (dicts with any plain keys, lists, tuples, tensors, numpy arrays
and numbers, text, bytes); anything else is refused by its path and type.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

from mainstay.recovery.memory import blob
from mainstay.recovery.memory.device import Bounce
from mainstay.recovery.memory.dtensor import local
from mainstay.recovery.memory.global_slices import Slices
from mainstay.recovery.memory.layout import DTYPES, Layout
from mainstay.recovery.memory.slot_copy import Piece
from mainstay.recovery.memory.state import BLOB, Arrays, dtype_name, piece_of
from mainstay.recovery.memory.tensor_restore import restore_tensor

Tree = dict[Any, Any]
_LEAST_ROOM: Final = 64 * 1024
_SLACK: Final = 4
"""The room for plain data is a power of two and this many times what it holds, so that it need not grow soon: a larger
one is another layout, and for the time of one save the rank has nothing in memory."""


class TreeState:
    """A ``State`` over the newest tree that was staged. One that was loaded is in ``loaded``."""

    def __init__(self, layout: Layout | None = None) -> None:
        self.layout = layout or Layout.build({BLOB: ("uint8", (_LEAST_ROOM,))})
        self._tensors: dict[str, torch.Tensor] = {}
        self._body: dict[str, Any] = {}
        self._bounce = Bounce()
        self.loaded: Tree | None = None

    @property
    def slices(self) -> Slices:
        return {}

    def stage(self, tree: Mapping[Any, Any]) -> bool:
        """Refer to ``tree`` until its copy is committed; whether the layout is another one than before.

        Raises:
            ValueError: something in it is no plain data; names its path and type.
        """
        flat = _Flat()
        self._body = {"tree": flat.encode(dict(tree), "state")}
        self._tensors = flat.tensors
        described = {name: (dtype_name(t), tuple(t.shape)) for name, t in flat.tensors.items()}
        layout = Layout.build(described | {BLOB: ("uint8", (self._room(),))})
        changed = layout.digest != self.layout.digest
        self.layout = layout
        return changed

    def _room(self) -> int:
        needed = blob.size(self._body)
        had = self.layout.specs()[BLOB].nbytes
        return had if needed <= had else 1 << (_SLACK * needed - 1).bit_length()

    def freeze(self) -> Mapping[str, Piece]:
        room = np.zeros(self.layout.specs()[BLOB].nbytes, np.uint8)
        blob.write(self._body, room)
        ready = self._bounce.mark()
        pieces: dict[str, Piece] = {name: piece_of(t, self._bounce, ready) for name, t in self._tensors.items()}
        return pieces | {BLOB: room}

    def load(self, arrays: Arrays) -> None:
        scalars = blob.read(arrays[BLOB].reshape(-1).view(np.uint8))
        self.loaded = _decode(scalars["tree"], arrays, self.layout)

    def rewind(self, pieces: Mapping[str, Piece]) -> None:
        """Nothing here is alive, so nothing has moved on."""


class _Flat:
    """Takes a tree apart: ``tensors`` by name; what ``encode`` returns is msgpack's, with indices in their place."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}

    def encode(self, value: Any, path: str) -> Any:
        if value is None or isinstance(value, bool | float | str | bytes):
            return value
        if isinstance(value, int):
            return value if -(1 << 63) <= value < 1 << 63 else ["int", str(value)]
        if isinstance(value, torch.Tensor):
            return ["tensor", self._keep(local(value).detach(), path)]
        if isinstance(value, np.ndarray | np.generic):
            return ["array", self._keep(torch.from_numpy(np.atleast_1d(value).copy()), path), list(value.shape)]
        return self._encode_container(value, path)

    def _encode_container(self, value: Any, path: str) -> Any:
        if isinstance(value, dict):
            kind = "ordered" if isinstance(value, OrderedDict) else "dict"
            return [kind, [[self.encode(k, f"{path}: a key"), self.encode(v, f"{path}.{k}")] for k, v in value.items()]]
        for kind, of in (("size", torch.Size), ("tuple", tuple), ("list", list)):
            if isinstance(value, of):
                return [kind, [self.encode(part, f"{path}.{index}") for index, part in enumerate(value)]]
        name = f"{type(value).__module__}.{type(value).__qualname__}"
        raise ValueError(f"{path} is a {name}: a snapshot keeps tensors, arrays, numbers, text, lists and dicts only")

    def _keep(self, tensor: torch.Tensor, path: str) -> str:
        if dtype_name(tensor) not in DTYPES:
            raise ValueError(f"{path} is a tensor of {tensor.dtype}, which a snapshot does not keep")
        name = path if path not in self.tensors else f"{path}#{len(self.tensors)}"
        self.tensors[name] = tensor
        return name


def _decode(node: Any, arrays: Arrays, layout: Layout) -> Any:
    """The tree again, with memory of its own."""
    if not isinstance(node, list):
        return node
    kind, body, *rest = node
    if kind == "int":
        return int(body)
    if kind == "tensor":
        return _tensor(body, arrays, layout)
    if kind == "array":
        array = _tensor(body, arrays, layout).numpy()
        return array.reshape(rest[0]) if rest[0] else array[0]
    if kind in {"dict", "ordered"}:
        pairs = [(_decode(k, arrays, layout), _decode(v, arrays, layout)) for k, v in body]
        return OrderedDict(pairs) if kind == "ordered" else dict(pairs)
    parts: Sequence[Any] = [_decode(part, arrays, layout) for part in body]
    return {"tuple": tuple, "size": torch.Size, "list": list}[kind](parts)


def _tensor(name: str, arrays: Arrays, layout: Layout) -> torch.Tensor:
    spec = layout.specs()[name]
    made = torch.empty(spec.shape, dtype=getattr(torch, spec.dtype))
    if made.numel():
        restore_tensor(made, arrays[name])
    return made
