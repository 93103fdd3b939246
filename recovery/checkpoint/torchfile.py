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
from collections.abc import Sequence
from typing import Final

import numpy as np

from mainstay.recovery.checkpoint.pickle_codec import Name, Persistent, PickledCall, encode
from mainstay.recovery.memory.layout import ALIGNMENT, DTYPES, TensorSpec

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


def _headers(name: str, nbytes: int, crc: int, at: int, extra: bytes = b"") -> tuple[bytes, bytes]:
    """What stands before a member, and its entry in the directory; ``at`` counts from the archive's first byte."""
    wide, raw = nbytes >= _FULL, f"tensor/{name}".encode()
    size, version = (_FULL, 45) if wide else (nbytes, 20)
    sizes = struct.pack("<HHQQ", 1, 16, nbytes, nbytes) if wide else b""
    common = (version, 0x0800, 0, 0, 0x21, crc, size, size, len(raw))
    local = _LOCAL.pack(b"PK\3\4", *common, len(sizes + extra)) + raw + sizes + extra
    entry = _CENTRAL.pack(b"PK\1\2", version, *common, len(sizes), 0, 0, 0, 0, min(at, _FULL)) + raw + sizes
    return local, entry


class Archive:
    """The archive of one tensor that begins at byte ``at`` of a file.

    ``head``, the tensor's bytes, and ``tail`` follow each other.
    """

    def __init__(self, spec: TensorSpec, at: int) -> None:
        head, entries = b"", []
        pickled = encode(tensor_term(spec.dtype, spec.shape, "0"))
        for name, body in (("data.pkl", pickled), ("byteorder", b"little"), ("version", b"3\n")):
            local, entry = _headers(name, len(body), zlib.crc32(body), len(head))
            head += local + body
            entries.append(entry)
        member = ("data/0", spec.nbytes, 0, len(head))
        gap = -(at + len(head) + len(_headers(*member)[0]) + 4) % ALIGNMENT
        local, entry = _headers(*member, struct.pack("<HH", _PADDING_ID, gap) + bytes(gap))
        self.head = head + local
        """Everything before the data."""
        self.data_at = at + len(self.head)
        self.tail = _directory([*entries, entry], len(self.head) + spec.nbytes)
        """Everything after the data."""


def _directory(entries: Sequence[bytes], start: int) -> bytes:
    """The end of an archive, which begins at byte ``start`` of it."""
    listed, count, end = b"".join(entries), len(entries), b""
    if start >= _FULL:
        end = _END64.pack(b"PK\6\6", 44, 45, 45, 0, 0, count, count, len(listed), start)
        end += _LOCATOR.pack(b"PK\6\7", 0, start + len(listed), 1)
    return listed + end + _END.pack(b"PK\5\6", 0, 0, count, count, len(listed), min(start, _FULL), 0)


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
