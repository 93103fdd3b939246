"""``torch.distributed.checkpoint`` directories, with tensors in one chunk or several (FSDP2, tensor parallelism).

Objects that are not tensors are entries of their own: ``optimizer.param_groups.0.lr``.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from mainstay.recovery.checkpoint.dcp import StoredChunk, encode_metadata, read_metadata
from mainstay.recovery.checkpoint.formats.base import Format, WriteOptions
from mainstay.recovery.checkpoint.formats.torch_save import MODEL, OPTIMIZER
from mainstay.recovery.checkpoint.logical import Box, LogicalCheckpoint, LogicalTensor
from mainstay.recovery.checkpoint.manifest import MANIFEST, METADATA, CheckpointError
from mainstay.recovery.checkpoint.torch_archive import FileWindow, is_plain, read_archive, write_archive
from mainstay.recovery.memory.layout import align

_FILE = "__0_0.distcp"
_GROUPS = "optimizer.param_groups"
Rename = Callable[[str], str]


def detect(path: Path) -> bool:
    return (path / METADATA).is_file() and not (path / MANIFEST).exists() and not (path / "metadata.json").exists()


def read(path: Path, kind: str = "dcp", rename: Rename | None = None) -> LogicalCheckpoint:
    """The checkpoint in ``path``, whose tensors are called ``rename(key)`` here; see ``_names``.

    Raises:
        CheckpointError: see ``read_metadata``.
    """
    stored: dict[str, list[StoredChunk]] = {}
    for chunk in read_metadata(path):
        stored.setdefault(chunk.key, []).append(chunk)
    tensors, values = {}, {}
    names = _names(stored) if rename is None else {key: rename(key) for key in stored}
    for key, chunks in stored.items():
        first, name = chunks[0], names[key]
        if first.dtype:
            boxes = tuple(_box(path, chunk) for chunk in chunks)
            tensors[name] = LogicalTensor(name, first.dtype, first.shape, boxes)
        elif is_plain(value := read_archive(path / first.file, first.at, first.nbytes)):
            values[name if rename is None else key] = value
    return LogicalCheckpoint(path, kind, tensors, gathered(values))


def _names(stored: dict[str, list[StoredChunk]]) -> dict[str, str]:
    """Key -> name. Scripts have words of their own for model and optimizer, wrap the two, or save a model alone."""
    paths = {key: chunks[0].path or (key,) for key, chunks in stored.items()}
    if len({path[0] for path in paths.values()}) == 1 and {path[1] for path in paths.values() if path[2:]} & {*MODEL}:
        paths = {key: path[1:] for key, path in paths.items()}
    tops = {path[0] for path in paths.values() if path[1:]}
    ours = {word: words[0] for words in (MODEL, OPTIMIZER) for word in [w for w in words if w in tops][:1]}
    full = "model" in ours.values() or any(path[0].startswith(("rank0.", "optimizer.")) for path in paths.values())
    for key, path in paths.items():
        alone = not full and not path[1:] and stored[key][0].dtype
        paths[key] = ("model", key) if alone else (ours.get(path[0], path[0]) if path[1:] else path[0], *path[1:])
    return {key: ".".join(path) for key, path in paths.items()}


def _box(path: Path, chunk: StoredChunk) -> Box:
    """Its archive is opened when it is first needed."""

    def stored() -> LogicalTensor:
        found = read_archive(path / chunk.file, chunk.at, chunk.nbytes)
        if not isinstance(found, LogicalTensor) or (found.dtype, found.shape) != (chunk.dtype, chunk.sizes):
            raise CheckpointError(f"{path / chunk.file}: {chunk.key!r} is not the tensor that the metadata describes")
        return found

    return Box(chunk.offsets, chunk.sizes, lambda region: stored().read(region), chunk.file, lambda: stored().verify())


def gathered(flat: dict[str, Any]) -> dict[str, Any]:
    """``optimizer.param_groups.I.KEY`` entries as one list of groups."""
    values: dict[str, Any] = {}
    groups: dict[int, dict[str, Any]] = {}
    for key, value in flat.items():
        index, _, name = key.removeprefix(f"{_GROUPS}.").partition(".")
        if key.startswith(_GROUPS) and index.isdigit():
            groups.setdefault(int(index), {})[name] = value
        else:
            values[key] = value
    if groups:
        values[_GROUPS] = [groups[index] for index in sorted(groups)]
    return values


# Writing


def write(checkpoint: LogicalCheckpoint, out: Path, _options: WriteOptions, rename: Rename = str) -> None:
    """Write one data file and the metadata; an entry NAME is called ``rename(NAME)`` there."""
    out.mkdir(parents=True)
    chunks: list[StoredChunk] = []
    paths: dict[str, tuple[str | int, ...]] = {}
    with (out / _FILE).open("wb") as file:
        for tensor in checkpoint.tensors.values():
            key = rename(tensor.name)
            chunks.append(_write_entry(file, key, tensor))
            paths[key] = _path(tensor.name) if key == tensor.name else (key,)
        for path, value in _objects(checkpoint):
            key = ".".join(map(str, path))
            chunks.append(_write_entry(file, key, value))
            paths[key] = path
    (out / METADATA).write_bytes(encode_metadata(chunks, paths))


def _write_entry(file: IO[bytes], key: str, item: Any) -> StoredChunk:
    at = align(file.seek(0, io.SEEK_END))
    write_archive(FileWindow(file, at), item)
    nbytes = file.seek(0, io.SEEK_END) - at
    if not isinstance(item, LogicalTensor):
        return StoredChunk(key, "", (), _FILE, at, nbytes, (), ())
    return StoredChunk(key, item.dtype, item.shape, _FILE, at, nbytes, tuple(0 for _ in item.shape), item.shape)


def _objects(checkpoint: LogicalCheckpoint) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    for name, value in checkpoint.values.items():
        if name != _GROUPS:
            yield (name,), value
    groups = checkpoint.values.get(_GROUPS) or []
    groups = groups if all("params" in group for group in groups) else checkpoint.param_groups()
    for index, group in enumerate(groups):
        for key, value in group.items():
            yield ("optimizer", "param_groups", index, key), value


def _path(name: str) -> tuple[str, ...]:
    """Where torch has the entry in a state dict of model and optimizer."""
    if name.startswith("optimizer.state."):
        return ("optimizer", "state", *name.removeprefix("optimizer.state.").rpartition(".")[::2])
    return ("model", name.removeprefix("model.")) if name.startswith("model.") else (name,)


FORMAT = Format("dcp", detect, read, write)
