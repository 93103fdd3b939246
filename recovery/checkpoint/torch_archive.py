"""Files of ``torch.save`` as data: read without executing anything, a tensor at a time, and written as a stream.

Such a file is a zip archive of stored members: a pickle that describes the objects, and the bytes of each storage. The
pickle is decoded to terms (``pickle_codec``); names outside of ``ADMITTED`` are refused. Tensors become
``LogicalTensor``s that read their bytes where they lie.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import IO, Any, Final, cast

import numpy as np

from mainstay.recovery.checkpoint.file_errors import file_errors
from mainstay.recovery.checkpoint.logical import LogicalTensor, file_tensor
from mainstay.recovery.checkpoint.manifest import CheckpointError
from mainstay.recovery.checkpoint.pickle_codec import Name, PickledCall, PickledDict, PickledObject, decode, encode
from mainstay.recovery.checkpoint.torchfile import STORAGE_CLASSES, tensor_term
from mainstay.recovery.memory.layout import ALIGNMENT, DTYPES

STORAGES: Final = {name: dtype for dtype, name in STORAGE_CLASSES.items()} | {"UntypedStorage": "uint8"}
_REBUILD: Final = {"_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3"}
ADMITTED: Final = (
    *(f"torch.{name}" for name in (*STORAGES, *DTYPES, "Size", "Tensor", "device")), "torch.storage.UntypedStorage",
    *(f"torch._utils.{name}" for name in (*_REBUILD, "_rebuild_parameter", "_rebuild_parameter_with_state")),
    "torch._tensor._rebuild_from_type_v2", "torch.nn.parameter.Parameter", "collections.OrderedDict",
    "collections.defaultdict", "collections.Counter", "__builtin__.set", "builtins.set",
    "argparse.Namespace", "_codecs.encode", "numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct",
    "numpy.ndarray", "numpy.dtype", "numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar",
    *(f"deepspeed.runtime.fp16.loss_scaler.{name}" for name in ("LossScaler", "DynamicLossScaler")),
    "deepspeed.runtime.zero.config.ZeroStageEnum", "deepspeed.utils.tensor_fragment.fragment_address",
    *(f"megatron.core.{name}" for name in (
        "transformer.enums.AttnBackend", "transformer.enums.AttnMaskType", "transformer.enums.LayerType",
        "enums.ModelType", "optimizer.optimizer_config.OptimizerConfig", "rerun_state_machine.RerunMode",
        "rerun_state_machine.RerunState", "rerun_state_machine.RerunDiagnostic",
    )),
)  # fmt: skip
"""Names that state dicts and DeepSpeed's and Megatron's files have. None of them is imported or called."""


_Member = tuple[int, zipfile.ZipInfo]
"""Where its bytes begin in the file, and what the archive says of it."""


class FileWindow(io.RawIOBase):
    """A part of a file as a file."""

    def __init__(self, file: IO[bytes], at: int, length: int = 0) -> None:
        self._file, self._at, self._length, self._where = file, at, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._where = max(0, offset + (0, self._where, self._length)[whence])
        return self._where

    def readinto(self, buffer: Any) -> int:
        self._file.seek(self._at + self._where)
        raw = self._file.read(max(0, min(len(buffer), self._length - self._where)))
        buffer[: len(raw)] = raw
        self._where += len(raw)
        return len(raw)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._file.seek(self._at + self._where)
        self._where += self._file.write(data)
        return memoryview(data).nbytes


def read_archive(path: Path, at: int = 0, length: int | None = None) -> Any:
    """The object in a file of ``torch.save``, or in the archive in ``length`` bytes from byte ``at``.

    Returns:
        Nested dicts, lists, tuples, numbers and text; tensors as ``LogicalTensor``; terms for all other objects. Shared
        between callers: not to be changed.

    Raises:
        CheckpointError: missing, damaged, no such archive, or it names what is not admitted.
    """
    with file_errors(path, "is damaged, cut off, or no archive of torch.save (1.6 or later)"):
        found = path.stat()
        return _read_once(path, found.st_mtime_ns, at, found.st_size - at if length is None else length)


@lru_cache(maxsize=4096)
def _read_once(path: Path, _changed: int, at: int, length: int) -> Any:
    with path.open("rb") as file, zipfile.ZipFile(io.BufferedReader(FileWindow(file, at, length))) as archive:
        infos = {info.filename.partition("/")[2]: info for info in archive.infolist()}
        if "data.pkl" not in infos:
            raise CheckpointError(f"{path} is no archive of torch.save: it has no data.pkl")
        if "byteorder" in infos and archive.read(infos["byteorder"]) != b"little":
            raise CheckpointError(f"{path} was written on a big-endian machine")
        members = {
            name.removeprefix("data/"): _member(path, file, at, info)
            for name, info in infos.items()
            if name.startswith("data/")
        }
        term = decode(archive.read(infos["data.pkl"]), ADMITTED)
    return _Objects(path, members).build(term)


def _member(path: Path, file: IO[bytes], at: int, info: zipfile.ZipInfo) -> _Member:
    if info.compress_type != zipfile.ZIP_STORED:
        raise CheckpointError(f"{path}: {info.filename} is compressed, as torch.save never does")
    file.seek(at + info.header_offset)
    names, extra = struct.unpack("<HH", file.read(30)[26:])
    return at + info.header_offset + 30 + names + extra, info


class _Objects:
    """Terms -> plain data and tensors."""

    def __init__(self, path: Path, members: Mapping[str, _Member]) -> None:
        self._path = path
        self._members = members
        self._verified: set[str] = set()

    def build(self, term: Any) -> Any:
        match term:
            case PickledDict():
                return {_key(key): self.build(value) for key, value in term.items}
            case list():
                return [self.build(part) for part in term]
            case tuple():
                return tuple(self.build(part) for part in term)
            case PickledCall():
                return self._call(term)
        return term

    def _call(self, term: PickledCall) -> Any:
        match term:
            case PickledCall(Name("torch._tensor", "_rebuild_from_type_v2"), (function, _, arguments, *_)):
                return self.build(PickledCall(function, arguments))
            case PickledCall(Name("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state"), (data, *_)):
                return self.build(data)
            case PickledCall(Name("torch._utils", name), arguments) if name in _REBUILD:
                return self._tensor(*arguments)
            case PickledCall(Name("torch", "Size"), (sizes,)):
                return tuple(sizes)
        return term

    def _tensor(self, storage: Any, offset: int, sizes: Any, strides: Any, *more: Any) -> LogicalTensor:
        _, kind, key, _, _ = storage.key
        named = next((part.name for part in more if isinstance(part, Name) and part.name in DTYPES), "")
        dtype = named or STORAGES[kind.name]
        shape, width = tuple(int(n) for n in sizes), np.dtype(DTYPES[dtype]).itemsize
        start, member = self._members[key]
        span = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) + 1 if all(shape) else 0
        if min((0, offset, *shape, *strides)) < 0 or (offset + span) * width > member.file_size:
            raise CheckpointError(f"{self._path}: a tensor {list(shape)} is larger than its storage {key}")
        # torch can be told to leave checksums out
        at, verify = start + offset * width, partial(self._verify, key) if member.CRC else None
        return file_tensor("", dtype, shape, self._path, at=at, strides=tuple(strides), verify=verify)

    def _verify(self, key: str) -> None:
        if key in self._verified:  # tensors may share a storage
            return
        (at, member), crc = self._members[key], 0
        for piece in file_tensor("", "uint8", (member.file_size,), self._path, at=at).pieces():
            crc = zlib.crc32(piece.data, crc)
        if crc != member.CRC:
            raise CheckpointError(f"{self._path}: storage {key} has CRC-32 {crc:08x}, not {member.CRC:08x}")
        self._verified.add(key)


def _key(key: Any) -> Any:
    return key if isinstance(key, (str, int, float, bool, tuple)) or key is None else str(key)


def is_plain(item: Any) -> bool:
    """Whether it is data that every format can hold: numbers, text, and lists and dicts of these."""
    if isinstance(item, dict):
        return all(isinstance(key, (str, int)) and is_plain(part) for key, part in item.items())
    if isinstance(item, list | tuple):
        return all(is_plain(part) for part in item)
    return item is None or isinstance(item, bool | int | float | str)


# Writing


def write_archive(out: IO[bytes] | FileWindow, item: Any) -> None:
    """Write a file that ``torch.load(weights_only=True)`` reads, if ``item`` has no terms of other programs.

    Args:
        out: a file at its first byte, which can be positioned.
        item: nested dicts, lists and tuples of plain data, ``LogicalTensor``s and terms.

    Raises:
        CheckpointError: a tensor cannot be read, or there is something else in ``item``.
        OSError: the disk refused.
    """
    tensors: list[LogicalTensor] = []
    try:
        text = encode(_term(item, tensors))
    except TypeError as error:
        raise CheckpointError(f"torch.save format: {error}") from error
    with zipfile.ZipFile(cast(IO[bytes], out), "w", zipfile.ZIP_STORED) as archive:
        for name, body in (("data.pkl", text), ("byteorder", b"little"), ("version", b"3\n")):
            archive.writestr(zipfile.ZipInfo(f"archive/{name}"), body)
        for number, tensor in enumerate(tensors):
            info = zipfile.ZipInfo(f"archive/data/{number}")
            # The member's header is 30 bytes, its name, 20 bytes of sizes, and what fills up to the alignment.
            gap = -(out.tell() + 30 + len(info.filename) + 20 + 4) % ALIGNMENT
            info.extra = struct.pack("<HH", 0x4246, gap) + bytes(gap)
            with archive.open(info, "w", force_zip64=True) as member:
                for piece in tensor.pieces():
                    member.write(np.ascontiguousarray(piece).view(np.uint8).data)


def _term(item: Any, tensors: list[LogicalTensor]) -> Any:
    match item:
        case LogicalTensor():
            tensors.append(item)
            return tensor_term(item.dtype, item.shape, str(len(tensors) - 1))
        case dict():
            return PickledDict([(key, _term(part, tensors)) for key, part in item.items()])
        case list():
            return [_term(part, tensors) for part in item]
        case tuple():
            return tuple(_term(part, tensors) for part in item)
        case PickledObject():
            return PickledObject(item.kind, _term(item.state, tensors))
    return item


def save_file(path: Path, item: Any) -> None:
    """``write_archive`` into a new file."""
    with path.open("wb") as out:
        write_archive(out, item)
