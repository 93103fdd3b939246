"""safetensors files, one or several with an index, as Hugging Face names them.

The model is in ``model.safetensors`` under the model's own names. What else a checkpoint has is in
``training_state.safetensors`` under full names, which Hugging Face's loaders leave alone.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from mainstay.recovery.checkpoint.file_errors import file_errors
from mainstay.recovery.checkpoint.formats.base import Format, WriteOptions
from mainstay.recovery.checkpoint.logical import LogicalCheckpoint, LogicalTensor, file_tensor
from mainstay.recovery.checkpoint.manifest import CheckpointError

_DTYPES: Final = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "C64": "complex64",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip
_NAMES: Final = {dtype: name for name, dtype in _DTYPES.items()}
_MODEL: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_STATE: Final = "training_state.safetensors"
_VALUES: Final = "mainstay.values"
MAX_SHARD_BYTES: Final = 5 << 30
"""Of a file; Hugging Face's own limit is 5 GB."""
_MAX_HEADER: Final = 100_000_000
"""The limit of the safetensors library."""


def detect(path: Path) -> bool:
    return path.suffix == ".safetensors" or (path / _MODEL).is_file() or (path / _INDEX).is_file()


def read(path: Path) -> LogicalCheckpoint:
    """Read the headers.

    Raises:
        CheckpointError: damaged, or a file of the index is missing.
    """
    checkpoint = LogicalCheckpoint(path, "safetensors", {})
    if path.is_file():
        _add(checkpoint, path, "" if path.name == _STATE else "model.")
        return checkpoint
    files = sorted(set(_weight_map(path / _INDEX).values())) if (path / _INDEX).is_file() else [_MODEL]
    for file in files:
        _add(checkpoint, path / file, "model.")
    if (path / _STATE).is_file():
        _add(checkpoint, path / _STATE, "")
    return checkpoint


def _weight_map(path: Path) -> dict[str, str]:
    with file_errors(path):
        index = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        found = msgspec.convert(index.get("weight_map"), dict[str, str])
    outside = next((file for file in found.values() if Path(file).name != file), None)
    if outside is not None:
        raise CheckpointError(f"{path} names a file outside of the directory: {outside!r}")
    return found


def _add(checkpoint: LogicalCheckpoint, path: Path, prefix: str) -> None:
    header, start = _header(path)
    size = path.stat().st_size - start
    for key, entry in header.items():
        if key == "__metadata__":
            if isinstance(entry, dict) and _VALUES in entry:
                checkpoint.values |= msgspec.json.decode(entry[_VALUES], type=dict[str, Any])
            continue
        with file_errors(path, f"says no place or no known dtype of tensor {key!r}"):
            dtype, shape = _DTYPES[entry["dtype"]], tuple(int(n) for n in entry["shape"])
            first, last = (int(n) for n in entry["data_offsets"])
        tensor = file_tensor(prefix + key, dtype, shape, path, at=start + first)
        if min((*shape, first), default=0) < 0 or last - first != tensor.nbytes or last > size:
            raise CheckpointError(f"{path}: tensor {key!r} {list(shape)} does not fit its place {first}-{last}")
        checkpoint.tensors[tensor.name] = tensor


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """The header, and where the data begins."""
    with file_errors(path), path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= _MAX_HEADER:
            raise CheckpointError(f"{path} is no safetensors file: its header has {length} bytes")
        return msgspec.json.decode(file.read(length), type=dict[str, Any]), 8 + length


# Writing


def write(checkpoint: LogicalCheckpoint, out: Path, _options: WriteOptions) -> None:
    """Write a directory.

    Raises:
        CheckpointError: a tensor's dtype has no name in this format.
    """
    out.mkdir(parents=True)
    model = checkpoint.model()
    if not model:
        raise CheckpointError(f"{checkpoint.path} has no model tensors (model.*), which safetensors files are for")
    shards = _shards(model, MAX_SHARD_BYTES)
    names = [_MODEL] if len(shards) == 1 else [
        f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))
    ]  # fmt: skip
    for file, shard in zip(names, shards, strict=True):
        _write(out / file, shard, {"format": "pt"})
    if len(shards) > 1:
        where = {name: file for file, shard in zip(names, shards, strict=True) for name in shard}
        total = sum(tensor.nbytes for tensor in model.values())
        (out / _INDEX).write_bytes(msgspec.json.encode({"metadata": {"total_size": total}, "weight_map": where}))
    rest = {name: tensor for name, tensor in checkpoint.tensors.items() if not name.startswith("model.")}
    if rest or checkpoint.values:
        _write(out / _STATE, rest, {_VALUES: msgspec.json.encode(checkpoint.values).decode()})


def _shards(model: dict[str, LogicalTensor], limit: int) -> list[dict[str, LogicalTensor]]:
    ends = itertools.accumulate(tensor.nbytes for tensor in model.values())
    shards: dict[int, dict[str, LogicalTensor]] = {}
    for (name, tensor), end in zip(model.items(), ends, strict=True):
        shards.setdefault(max(0, end - 1) // limit, {})[name] = tensor
    return list(shards.values())


def _write(path: Path, tensors: dict[str, LogicalTensor], metadata: dict[str, str]) -> None:
    header: dict[str, Any] = {"__metadata__": metadata}
    # Wide types come first, so that each tensor is aligned to its type.
    ordered = sorted(tensors.items(), key=lambda pair: (-pair[1].numpy_dtype.itemsize, pair[0]))
    at = 0
    for name, tensor in ordered:
        if tensor.dtype not in _NAMES:
            raise CheckpointError(f"tensor {name!r} has dtype {tensor.dtype}, which safetensors files cannot hold")
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": tensor.shape, "data_offsets": (at, at + tensor.nbytes)}
        at += tensor.nbytes
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in ordered:
            for piece in tensor.pieces():
                file.write(np.ascontiguousarray(piece).view(np.uint8).data)


FORMAT = Format("safetensors", detect, read, write)
