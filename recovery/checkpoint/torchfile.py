"""One tensor as ``torch.save`` keeps it: a zip archive of four stored members, the last of which is the tensor's bytes.

Those begin at a multiple of 64 in the file, so that we read them at a known offset, without torch and without a copy,
while ``torch.load`` (and with it every ``torch.distributed.checkpoint`` reader) finds an archive like its own. The
CRC-32 of the tensor's bytes is 0, as after ``torch.serialization.set_crc32_options(False)``: torch does not check it,
xxh3 protects the bytes, and a file can be written from front to back in one pass.
"""

from __future__ import annotations

import math
import struct
import zlib
from dataclasses import dataclass
from typing import Final

import numpy as np

from mainstay.recovery.checkpoint.pickle_codec import Name, Persistent, PickledCall, encode
from mainstay.recovery.memory.layout import ALIGNMENT, DTYPES, TensorSpec, align

STORAGE_CLASSES: Final = {
    "float32": "FloatStorage",
    "float64": "DoubleStorage",
    "float16": "HalfStorage",
    "bfloat16": "BFloat16Storage",
    "uint8": "ByteStorage",
    "int8": "CharStorage",
    "int16": "ShortStorage",
    "int32": "IntStorage",
    "int64": "LongStorage",
    "bool": "BoolStorage",
    "complex64": "ComplexFloatStorage",
    "complex128": "ComplexDoubleStorage",
}
"""Types that have a storage class of their own; torch saves the others as untyped bytes and names the dtype beside."""

_LOCAL: Final = struct.Struct("<4sHHHHHIIIHH")
_CENTRAL: Final = struct.Struct("<4sHHHHHHIIIHHHHHII")
_END: Final = struct.Struct("<4sHHHHIIH")
_END64: Final = struct.Struct("<4sQHHIIQQQQ")
_LOCATOR: Final = struct.Struct("<4sIQI")
_FULL: Final = 0xFFFFFFFF
_PADDING_ID: Final = 0x4246
"""torch's own id ("FB") for the bytes that align a member."""
_STEM: Final = "tensor"


@dataclass(slots=True)
class _Member:
    name: bytes
    nbytes: int
    crc: int
    at: int
    """Of its header, from the archive's first byte."""
    extra: bytes = b""

    @property
    def wide(self) -> bool:
        return self.nbytes >= _FULL

    def local(self) -> bytes:
        size = _FULL if self.wide else self.nbytes
        head = _LOCAL.pack(
            b"PK\3\4", 45 if self.wide else 20, 0x0800, 0, 0, 0x21, self.crc, size, size, len(self.name),
            len(self.extra),
        )  # fmt: skip
        return head + self.name + self.extra

    def central(self) -> bytes:
        size, at = _FULL if self.wide else self.nbytes, min(self.at, _FULL)
        extra = struct.pack("<HHQQ", 1, 16, self.nbytes, self.nbytes) if self.wide else b""
        version = 45 if self.wide else 20
        head = _CENTRAL.pack(
            b"PK\1\2", version, version, 0x0800, 0, 0, 0x21, self.crc, size, size, len(self.name), len(extra), 0, 0, 0,
            0, at,
        )  # fmt: skip
        return head + self.name + extra


class Archive:
    """The archive of one tensor that begins at byte ``at`` of a file.

    ``head``, the tensor's bytes, and ``tail`` follow each other.
    """

    def __init__(self, spec: TensorSpec, at: int) -> None:
        self._small: list[tuple[_Member, bytes]] = []
        where, pickled = 0, encode(tensor_term(spec.dtype, spec.shape, "0"))
        for name, body in (("data.pkl", pickled), ("byteorder", b"little"), ("version", b"3\n")):
            member = _Member(f"{_STEM}/{name}".encode(), len(body), zlib.crc32(body), where)
            self._small.append((member, body))
            where += len(member.local()) + len(body)
        self._data = _Member(f"{_STEM}/data/0".encode(), spec.nbytes, 0, where)
        wide = struct.pack("<HHQQ", 1, 16, spec.nbytes, spec.nbytes) if self._data.wide else b""
        bare = at + where + len(self._data.local()) + len(wide) + 4
        gap = align(bare, ALIGNMENT) - bare
        self._data.extra = wide + struct.pack("<HH", _PADDING_ID, gap) + bytes(gap)
        self.head_bytes = where + len(self._data.local())
        self.data_at = at + self.head_bytes

    def head(self) -> bytes:
        """Everything before the data."""
        return b"".join(member.local() + body for member, body in self._small) + self._data.local()

    def tail(self) -> bytes:
        """Everything after the data."""
        members = [*(member for member, _ in self._small), self._data]
        start = self.head_bytes + self._data.nbytes
        directory = b"".join(member.central() for member in members)
        end = b""
        if start >= _FULL:
            end = _END64.pack(b"PK\6\6", 44, 45, 45, 0, 0, len(members), len(members), len(directory), start)
            end += _LOCATOR.pack(b"PK\6\7", 0, start + len(directory), 1)
        count = len(members)
        return directory + end + _END.pack(b"PK\5\6", 0, 0, count, count, len(directory), min(start, _FULL), 0)


def tensor_term(dtype: str, shape: tuple[int, ...], key: str) -> PickledCall:
    """What the pickle of ``torch.save`` says of a contiguous tensor whose bytes are the storage ``key``."""
    kind, count = STORAGE_CLASSES.get(dtype), math.prod(shape)
    storage = Name("torch", kind) if kind else Name("torch.storage", "UntypedStorage")
    place = Persistent(("storage", storage, key, "cpu", count if kind else count * np.dtype(DTYPES[dtype]).itemsize))
    strides = tuple(math.prod(max(1, length) for length in shape[axis + 1 :]) for axis in range(len(shape)))
    common = (place, 0, shape, strides, False, PickledCall(Name("collections", "OrderedDict"), ()))
    if kind:
        return PickledCall(Name("torch._utils", "_rebuild_tensor_v2"), common)
    return PickledCall(Name("torch._utils", "_rebuild_tensor_v3"), (*common, Name("torch", dtype)))
