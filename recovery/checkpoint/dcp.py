"""The ``.metadata`` of a step: what ``torch.distributed.checkpoint`` wants to know, written without torch.

Names are those that a torch state dict would have: ``model.W`` for parameters and buffers, ``optimizer.state.W.KEY``
for optimizer tensors. They stand behind ``ppP.tpT.`` where the job has several stages whose names are their own, behind
``tpT.`` where it has tensor slices and does not say how they are cut. Where it does (``memory.global_slices``), the
slices of all ranks are chunks of one tensor, and so are the shares that replicas divide among themselves to write.
What data-parallel replicas hold alike stands there once, and so does what stages hold alike under one name of the
model. What is a rank's own (random numbers, scalars, and tensors that differ) stands behind ``rankR.``. Reading foreign
metadata goes through ``opcodes``: only torch's metadata classes are admitted, and even those are never built.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mainstay.recovery.checkpoint.manifest import CheckpointError, CheckpointPart, TensorEntry
from mainstay.recovery.checkpoint.pickle_codec import (
    Name,
    OpcodesError,
    PickledCall,
    PickledDict,
    PickledObject,
    decode,
    encode,
)
from mainstay.recovery.memory.global_slices import SLICES, GlobalSlice
from mainstay.recovery.memory.layout import DTYPES
from mainstay.recovery.memory.model_names import MARK, MODEL
from mainstay.recovery.mesh_shape import MeshShape

_METADATA: Final = "torch.distributed.checkpoint.metadata"
_FILES: Final = "torch.distributed.checkpoint.filesystem"
DCP_VERSION: Final = "1.0.0"
ADMITTED: Final = (
    *(f"{_METADATA}.{name}" for name in (
        "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "TensorProperties", "ChunkStorageMetadata",
        "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING",
    )),
    f"{_FILES}._StorageInfo", "torch.Size", "torch.serialization._get_layout", "pathlib.PosixPath",
    "pathlib._local.PosixPath", *(f"torch.{dtype}" for dtype in DTYPES),
)  # fmt: skip
"""Every name that torch's own writer puts there. None of them is imported here."""
_SIZE: Final = Name("torch", "Size")
_MAX_METADATA: Final = 1 << 30
BLOB: Final = "mainstay.blob"
"""As ``mainstay.recovery.memory.state`` names the scalars of a rank; that module needs torch."""


def own(name: str) -> bool:
    """Whether a tensor is a rank's own by its nature: random numbers, its scalars, its layout."""
    return name.startswith(("rng.", "mainstay."))


def public_name(name: str) -> str:
    """What others call the tensor that a slot calls ``name``."""
    kind, _, rest = name.partition(".")
    if kind in {"param", "buffer"}:
        return f"model.{rest}"
    if kind == "optim":
        return f"optimizer.{rest}" if rest.startswith("groups.") else f"optimizer.state.{rest}"
    return name


def keys(parts: Sequence[CheckpointPart], *, plain: bool = False) -> dict[tuple[int, str], str]:
    """(rank, name in its slot) -> name in the state dict, for every tensor that is listed.

    Of equal tensors of data-parallel replicas the lowest rank's is listed, and the first stage's where several have one
    under the same name of the model. ``plain`` leaves layouts and marks out.
    """
    found: dict[tuple[int, str], str] = {}
    taken: dict[tuple[str, GlobalSlice], int] = {}
    """Key and place -> digest of what stands there."""
    for members in roles(parts):
        role = prefix_of(members[0])
        digests: dict[tuple[str, GlobalSlice], set[int]] = {}
        for tensor in (tensor for part in members for tensor in _listed(part, plain)):
            digests.setdefault((tensor.name, tensor.slice), set()).add(tensor.digest)
        for part in members:
            for tensor in _listed(part, plain):
                alike = len(digests[tensor.name, tensor.slice]) == 1
                key = f"{role}{public_name(tensor.name)}"
                if own(tensor.name) or not alike or taken.get((key, tensor.slice), tensor.digest) != tensor.digest:
                    found[part.rank, tensor.name] = f"rank{part.rank}.{public_name(tensor.name)}"
                elif (key, tensor.slice) not in taken:
                    found[part.rank, tensor.name] = key
                    taken[key, tensor.slice] = tensor.digest
    return found


def _listed(part: CheckpointPart, plain: bool) -> tuple[TensorEntry, ...]:
    return tuple(t for t in part.tensors if t.name not in {MARK, SLICES}) if plain else part.listed


def roles(parts: Sequence[CheckpointPart]) -> list[list[CheckpointPart]]:
    """Parts of the data-parallel replicas of one stage and tensor slice, by rank; the first stage first."""
    result: dict[tuple[int, ...], list[CheckpointPart]] = {}
    for part in sorted(parts, key=lambda p: p.rank):
        depth, *place = part.shape.cut(part.rank)
        result.setdefault((-depth, *place), []).append(part)  # with pipelines of unlike depth, the deepest first
    return [result[place] for place in sorted(result)]


def prefix_of(part: CheckpointPart) -> str:
    if part.has_model_names and part.is_sliced:
        return ""
    return prefix(part.shape, part.rank, model_names=part.has_model_names)


def prefix(shape: MeshShape, rank: int, *, model_names: bool) -> str:
    """What stands before the names of a rank's stage and slice."""
    _, pp, tp = shape.place(rank)
    if model_names:
        return "" if shape.tp == 1 else f"tp{tp}."
    return f"pp{pp}.tp{tp}."


def replicated(parts: Sequence[CheckpointPart]) -> bool:
    """Whether replicas hold the same, but for what is a rank's own by its nature."""
    for members in roles(parts):
        kept = [{(t.name, t.slice): t.digest for t in part.tensors if not own(t.name)} for part in members]
        shares = any(part.is_share for part in members)  # divided among replicas that are known to be equal
        if any(other != kept[0] for other in kept[1:] if not shares):
            return False
    return not any(part.shape.depths for part in parts) or _one_model(parts)


def _one_model(parts: Sequence[CheckpointPart]) -> bool:
    """Whether pipelines that are cut otherwise hold the same of the model, tensor by tensor."""
    digests: dict[str, int] = {}
    model = (tensor for part in parts for tensor in part.tensors if tensor.name.startswith(MODEL))
    return all(digests.setdefault(tensor.name, tensor.digest) == tensor.digest for tensor in model)


# Writing


def metadata(parts: Sequence[CheckpointPart], *, plain: bool = False) -> bytes:
    """The content of ``.metadata`` for a directory with ``parts``; see ``keys``."""
    names = keys(parts, plain=plain)
    listed = [
        (names[part.rank, tensor.name], part, tensor)
        for part in sorted(parts, key=lambda p: p.rank)
        for tensor in _listed(part, plain)
        if (part.rank, tensor.name) in names
    ]
    pieces: dict[str, list[TensorEntry]] = {}
    for key, _, tensor in listed:
        pieces.setdefault(key, []).append(tensor)
    state = {
        "state_dict_metadata": {key: _tensor(tensors) for key, tensors in pieces.items()},
        "planner_data": {key: (key,) for key in pieces},
        "storage_data": PickledDict([(_index(key, tensor), _stored(part, tensor)) for key, part, tensor in listed]),
        "storage_meta": None,
        "version": DCP_VERSION,
    }
    return encode(PickledObject(Name(_METADATA, "Metadata"), state))


def _size(numbers: Iterable[int]) -> PickledCall:
    return PickledCall(_SIZE, (tuple(numbers),))


def _tensor(pieces: Sequence[TensorEntry]) -> PickledObject:
    tensor = pieces[0]
    layout = PickledCall(Name("torch.serialization", "_get_layout"), ("torch.strided",))
    order = PickledCall(Name(_METADATA, "_MEM_FORMAT_ENCODING"), (0,))
    properties = PickledObject(
        Name(_METADATA, "TensorProperties"), (Name("torch", tensor.dtype), layout, False, order, False)
    )
    boxes = [{"offsets": _size(piece.slice.offsets), "sizes": _size(piece.shape)} for piece in pieces]
    chunks = [PickledObject(Name(_METADATA, "ChunkStorageMetadata"), box) for box in boxes]
    state = {"properties": properties, "size": _size(tensor.slice.global_shape), "chunks": chunks}
    return PickledObject(Name(_METADATA, "TensorStorageMetadata"), state)


def _index(key: str, tensor: TensorEntry) -> PickledObject:
    offset = _size(tensor.slice.offsets)
    return PickledObject(Name(_METADATA, "MetadataIndex"), {"fqn": key, "index": None, "offset": offset})


def _stored(part: CheckpointPart, tensor: TensorEntry) -> PickledObject:
    state = {"relative_path": part.file, "offset": tensor.archive_at, "length": tensor.archive_bytes}
    return PickledObject(Name(_FILES, "_StorageInfo"), state)


# Reading


@dataclass(frozen=True, slots=True)
class ForeignTensor:
    """A tensor in another program's checkpoint directory, kept as one chunk."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    at: int
    nbytes: int
    """Of its archive."""


def read_metadata(directory: Path) -> list[ForeignTensor]:
    """The tensors that ``directory/.metadata`` lists, without executing any of it.

    Raises:
        CheckpointError: missing, damaged, names what is not admitted, or splits a tensor in chunks.
    """
    path = directory / ".metadata"
    try:
        if path.stat().st_size > _MAX_METADATA:
            raise CheckpointError(f"{path} is longer than {_MAX_METADATA} bytes")
        root = decode(path.read_bytes(), ADMITTED)
        state = _state(root, "Metadata")
        described = state["state_dict_metadata"].text()
        places = state["storage_data"].items
        return [_foreign(described, index, place) for index, place in places if _is_tensor(described, index)]
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error
    except OpcodesError as error:
        raise CheckpointError(f"{path}: {error}") from error
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise CheckpointError(f"{path} is no metadata of torch.distributed.checkpoint: {error!r}") from error


def _state(term: Any, kind: str) -> dict[str, Any]:
    if not isinstance(term, PickledObject) or term.kind.name != kind or not isinstance(term.state, PickledDict):
        raise OpcodesError(f"no {kind} where one is needed")
    return term.state.text()


def _is_tensor(described: dict[str, Any], index: Any) -> bool:
    entry = described[_state(index, "MetadataIndex")["fqn"]]
    return isinstance(entry, PickledObject) and entry.kind.name == "TensorStorageMetadata"


def _foreign(described: dict[str, Any], index: Any, place: Any) -> ForeignTensor:
    key = _state(index, "MetadataIndex")["fqn"]
    tensor = _state(described[key], "TensorStorageMetadata")
    if len(tensor["chunks"]) != 1:
        raise OpcodesError(f"tensor {key!r} is split in {len(tensor['chunks'])} chunks; only whole ones are read")
    dtype = tensor["properties"].state[0]
    stored = _state(place, "_StorageInfo")
    if stored.get("transform_descriptors"):
        raise OpcodesError(f"tensor {key!r} is stored in a transformed form ({stored['transform_descriptors']})")
    shape, file = tuple(int(n) for n in tensor["size"].arguments[0]), str(stored["relative_path"])
    if Path(file).name != file:
        raise OpcodesError(f"tensor {key!r} lies outside of the directory: {file!r}")
    return ForeignTensor(key, dtype.name, shape, file, int(stored["offset"]), int(stored["length"]))
