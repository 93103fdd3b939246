"""The ``.metadata`` of a step: what ``torch.distributed.checkpoint`` wants to know, written without torch.

Names are those that a torch state dict would have: ``model.W`` for parameters and buffers, ``optimizer.state.W.KEY``
for optimizer tensors. They stand behind ``ppP.tpT.`` where the job has several stages whose names are their own, behind
``tpT.`` where it has tensor slices and does not say how they are cut. Where it does (``memory.global_slices``), the
slices of all ranks are chunks of one tensor, and so are the shares that replicas divide among themselves to write.
What data-parallel replicas hold alike stands there once, and so does what stages hold alike under one name of the
model. What is a rank's own (random numbers, scalars, and tensors that differ) stands behind ``rankR.``. Reading foreign
metadata goes through ``pickle_codec``: only torch's metadata classes are admitted, and even those are never built.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mainstay.recovery.checkpoint.file_errors import file_errors
from mainstay.recovery.checkpoint.manifest import CheckpointError, CheckpointPart
from mainstay.recovery.checkpoint.pickle_codec import (
    Name,
    OpcodesError,
    PickledCall,
    PickledDict,
    PickledObject,
    decode,
    encode,
)
from mainstay.recovery.memory.global_slices import GlobalSlice
from mainstay.recovery.memory.layout import DTYPES
from mainstay.recovery.memory.model_names import MODEL
from mainstay.recovery.mesh_shape import MeshShape

_METADATA: Final = "torch.distributed.checkpoint.metadata"
_FILES: Final = "torch.distributed.checkpoint.filesystem"
DCP_VERSION: Final = "1.0.0"
ADMITTED: Final = (
    *(f"{_METADATA}.{name}" for name in (
        "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "TensorProperties", "ChunkStorageMetadata",
        "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING",
    )),
    *(f"torch.distributed.checkpoint.planner.{name}" for name in (
        "SavePlan", "WriteItem", "WriteItemType", "TensorWriteData", "BytesIOWriteData",
    )),
    f"{_FILES}._StorageInfo", "torch.Size", "torch.serialization._get_layout", "pathlib.PosixPath",
    "pathlib._local.PosixPath", *(f"torch.{dtype}" for dtype in DTYPES),
)  # fmt: skip
"""Every name that the writers of torch and Megatron put there. None of them is imported here."""
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


def keys(parts: Sequence[CheckpointPart]) -> dict[tuple[int, str], str]:
    """(rank, name in its slot) -> name in the state dict, for every tensor that is listed.

    Of equal tensors of data-parallel replicas the lowest rank's is listed, and the first stage's where several have one
    under the same name of the model.
    """
    found: dict[tuple[int, str], str] = {}
    taken: dict[tuple[str, GlobalSlice], int] = {}
    """Key and place -> digest of what stands there."""
    for members in roles(parts):
        first = members[0]
        role = prefix(first.shape, first.rank, model_names=first.has_model_names, sliced=first.is_sliced)
        digests: dict[tuple[str, GlobalSlice], set[int]] = {}
        for tensor in (tensor for part in members for tensor in part.listed):
            digests.setdefault((tensor.name, tensor.slice), set()).add(tensor.digest)
        for part in members:
            for tensor in part.listed:
                alike = len(digests[tensor.name, tensor.slice]) == 1
                key = f"{role}{public_name(tensor.name)}"
                if own(tensor.name) or not alike or taken.get((key, tensor.slice), tensor.digest) != tensor.digest:
                    found[part.rank, tensor.name] = f"rank{part.rank}.{public_name(tensor.name)}"
                elif (key, tensor.slice) not in taken:
                    found[part.rank, tensor.name] = key
                    taken[key, tensor.slice] = tensor.digest
    return found


def roles(parts: Sequence[CheckpointPart]) -> list[list[CheckpointPart]]:
    """Parts of the data-parallel replicas of one stage and tensor slice, by rank; the first stage first."""
    result: dict[tuple[int, ...], list[CheckpointPart]] = {}
    for part in sorted(parts, key=lambda p: p.rank):
        depth, *place = part.shape.cut(part.rank)
        result.setdefault((-depth, *place), []).append(part)  # with pipelines of unlike depth, the deepest first
    return [result[place] for place in sorted(result)]


def prefix(shape: MeshShape, rank: int, *, model_names: bool, sliced: bool) -> str:
    """What stands before the names of a rank's stage and slice."""
    _, pp, tp = shape.place(rank)
    if model_names:
        return "" if sliced or shape.tp == 1 else f"tp{tp}."
    return f"pp{pp}.tp{tp}."


def replicated(parts: Sequence[CheckpointPart]) -> bool:
    """Whether replicas hold the same, but for what is a rank's own by its nature."""
    for members in roles(parts):
        kept = [{(t.name, t.slice): t.digest for t in part.tensors if not own(t.name)} for part in members]
        shares = any(part.is_share for part in members)  # divided among replicas that are known to be equal
        if any(other != kept[0] for other in kept[1:] if not shares):
            return False
    return not any(part.shape.depths for part in parts) or one_model(parts)


def one_model(parts: Sequence[CheckpointPart], kinds: tuple[str, ...] = MODEL) -> bool:
    """Whether a name and a place say which tensor of the model it is: no two parts hold other bits or sizes there.

    True of pipelines that are cut otherwise, and of experts that each rank calls by the model's names. False of pieces
    that a script cuts among ranks and does not declare.
    """
    digests: dict[tuple[str, tuple[int, ...], tuple[int, ...]], int] = {}
    wholes: dict[str, tuple[int, ...]] = {}
    return all(
        wholes.setdefault(t.name, t.slice.global_shape) == t.slice.global_shape
        and digests.setdefault((t.name, t.slice.offsets, t.shape), t.digest) == t.digest
        for part in parts
        for t in part.tensors
        if t.name.startswith(kinds)
    )


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A block of a tensor in a checkpoint directory, or an object; each is an archive of ``torch.save``."""

    key: str
    dtype: str
    """Of the tensor; empty for an object, which has no shape."""
    shape: tuple[int, ...]
    """Of the whole tensor."""
    file: str
    at: int
    nbytes: int
    """Of its archive."""
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    path: tuple[str, ...] = ()
    """Of the entry in the state dict that was saved; empty if that is not said."""


# Writing


def metadata(parts: Sequence[CheckpointPart]) -> bytes:
    """The content of ``.metadata`` for a directory with ``parts``; see ``keys``."""
    names = keys(parts)
    return encode_metadata([
        StoredChunk(
            names[part.rank, t.name], t.dtype, t.slice.global_shape, part.file, t.archive_at, t.archive_bytes,
            t.slice.offsets, t.shape,
        )
        for part in sorted(parts, key=lambda p: p.rank)
        for t in part.listed
        if (part.rank, t.name) in names
    ])  # fmt: skip


def encode_metadata(chunks: Sequence[StoredChunk], paths: Mapping[str, tuple[str | int, ...]] | None = None) -> bytes:
    """The content of ``.metadata`` for a directory with ``chunks``.

    Args:
        chunks: each tensor's stand together.
        paths: where an entry belongs in a nested state dict; as a whole under its name where that is not said.
    """
    described: dict[str, list[StoredChunk]] = {}
    for chunk in chunks:
        described.setdefault(chunk.key, []).append(chunk)
    state = {
        "state_dict_metadata": {key: _described(found) for key, found in described.items()},
        "planner_data": {key: (paths or {}).get(key, (key,)) for key in described},
        "storage_data": PickledDict(
            [_stored(chunk, number) for found in described.values() for number, chunk in enumerate(found)]
        ),
        "storage_meta": None,
        "version": DCP_VERSION,
    }
    return encode(_object("Metadata", state))


def _object(kind: str, state: Any = None) -> PickledObject:
    return PickledObject(Name(_METADATA, kind), state)


def _size(numbers: Iterable[int]) -> PickledCall:
    return PickledCall(Name("torch", "Size"), (tuple(numbers),))


def _described(chunks: Sequence[StoredChunk]) -> PickledObject:
    first = chunks[0]
    if not first.dtype:
        return _object("BytesStorageMetadata")
    layout = PickledCall(Name("torch.serialization", "_get_layout"), ("torch.strided",))
    order = PickledCall(Name(_METADATA, "_MEM_FORMAT_ENCODING"), (0,))
    properties = _object("TensorProperties", (Name("torch", first.dtype), layout, False, order, False))
    listed = [_object("ChunkStorageMetadata", {"offsets": _size(c.offsets), "sizes": _size(c.sizes)}) for c in chunks]
    state = {"properties": properties, "size": _size(first.shape), "chunks": listed}
    return _object("TensorStorageMetadata", state)


def _stored(chunk: StoredChunk, number: int) -> tuple[PickledObject, PickledObject]:
    """The key that torch finds a chunk by, and where its bytes are."""
    place = {"index": number, "offset": _size(chunk.offsets)} if chunk.dtype else {"index": None, "offset": None}
    state = {"relative_path": chunk.file, "offset": chunk.at, "length": chunk.nbytes}
    return _object("MetadataIndex", {"fqn": chunk.key} | place), PickledObject(Name(_FILES, "_StorageInfo"), state)


# Reading


def read_metadata(directory: Path) -> list[StoredChunk]:
    """What ``directory/.metadata`` lists, without executing any of it.

    Raises:
        CheckpointError: missing, damaged, or names what is not admitted.
    """
    path = directory / ".metadata"
    with file_errors(path, "is no metadata of torch.distributed.checkpoint"):
        if path.stat().st_size > _MAX_METADATA:
            raise CheckpointError(f"{path} is longer than {_MAX_METADATA} bytes")
        root = decode(path.read_bytes(), ADMITTED)
        state = _state(root, "Metadata")
        described, places = state["state_dict_metadata"].text(), state["storage_data"].items
        tensors = {key: _tensor_state(key, entry) for key, entry in described.items()}
        paths = planned.text() if isinstance(planned := state.get("planner_data"), PickledDict) else {}
        return [_chunk(tensors, paths, _state(index, "MetadataIndex"), place) for index, place in places]


def _state(term: Any, kind: str) -> dict[str, Any]:
    if not isinstance(term, PickledObject) or term.kind.name != kind or not isinstance(term.state, PickledDict):
        raise OpcodesError(f"no {kind} where one is needed")
    return term.state.text()


_Tensor = tuple[str, tuple[int, ...], dict[tuple[int, ...], tuple[int, ...]]]
"""dtype, shape, and the sizes of its chunks by their offsets."""


def _tensor_state(key: str, entry: Any) -> _Tensor | None:
    """None: an object."""
    if isinstance(entry, PickledObject) and entry.kind.name == "BytesStorageMetadata":
        return None
    tensor = _state(entry, "TensorStorageMetadata")
    chunks = [_state(chunk, "ChunkStorageMetadata") for chunk in tensor["chunks"]]
    sizes = {_numbers(chunk["offsets"]): _numbers(chunk["sizes"]) for chunk in chunks}
    if len(sizes) != len(chunks):
        raise OpcodesError(f"tensor {key!r} has two chunks in one place")
    dtype = tensor["properties"].state[0].name
    if dtype not in DTYPES:
        raise OpcodesError(f"tensor {key!r} has the unknown dtype {dtype!r}")
    return dtype, _numbers(tensor["size"]), sizes


def _numbers(size: Any) -> tuple[int, ...]:
    return tuple(int(n) for n in size.arguments[0])


def _chunk(tensors: Mapping[str, _Tensor | None], paths: Any, index: dict[str, Any], place: Any) -> StoredChunk:
    key, stored = str(index["fqn"]), _state(place, "_StorageInfo")
    if stored.get("transform_descriptors"):
        raise OpcodesError(f"{key!r} is stored in a transformed form ({stored['transform_descriptors']})")
    file = str(stored["relative_path"])
    if Path(file).name != file:
        raise OpcodesError(f"{key!r} lies outside of the directory: {file!r}")
    dtype, shape, chunks = tensors[key] or ("", (), {})
    offsets = _numbers(index["offset"]) if dtype else ()
    sizes = chunks[offsets] if dtype else ()
    path = tuple(map(str, paths.get(key, ())))
    return StoredChunk(key, dtype, shape, file, int(stored["offset"]), int(stored["length"]), offsets, sizes, path)
