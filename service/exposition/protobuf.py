"""Series as messages of Prometheus remote write 1.0, in columns as ``text`` writes lines.

``WriteRequest { repeated TimeSeries = 1 }``, ``TimeSeries { repeated Label = 1; repeated Sample = 2 }``,
``Label { string name = 1; string value = 2 }``, ``Sample { double value = 1; int64 timestamp = 2 }``. A request is the
series one after another, so that parts of several families are joined as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mainstay.service.exposition import text

if TYPE_CHECKING:
    import pyarrow as pa


def varint(number: int) -> bytes:
    """A number that is not negative, seven bits a byte, the lowest first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


def field(number: int, body: bytes) -> bytes:
    """A field of a message that holds a text or another message."""
    return varint(number << 3 | 2) + varint(len(body)) + body


def label(name: str, value: str) -> bytes:
    """One label of a series."""
    return field(1, field(1, name.encode()) + field(2, value.encode()))


@dataclass
class Series:
    """Writes families as series with one sample each.

    ``stamp`` is the time of their samples, Unix milliseconds.
    """

    stamp: int = 0

    @property
    def end(self) -> bytes:
        """The last bytes of each series, and of nothing else: where a request may be split."""
        return b"\x10" + varint(self.stamp)

    def labels(self, pairs: Mapping[str, Sequence[str]]) -> pa.BinaryArray:
        """[series] labels in the order of their names, from a column of values for each name. Empty ones are none."""
        import pyarrow as pa  # noqa: PLC0415 - see ``text``

        names = sorted(pairs)
        rows = zip(*(pairs[name] for name in names), strict=True)
        made = (b"".join(label(name, value) for name, value in zip(names, row, strict=True) if value) for row in rows)
        return pa.array(made, pa.binary())

    def family(
        self,
        name: str,
        kind: str,
        about: str,
        where: pa.BinaryArray,
        values: NDArray[Any],
        *,
        same: Sequence[NDArray[np.intp]] = (),
    ) -> bytes:
        """The series of a family whose value is known, as ``text.family`` takes them."""
        import pyarrow as pa  # noqa: PLC0415 - see ``text``
        import pyarrow.compute as pc  # noqa: PLC0415

        del kind, about  # a sender of version 1.0 need not send them
        known = text.known_places(values, same)
        if not known.any():
            return b""
        first, places = label("__name__", name), where.filter(pa.array(known))
        numbers = pa.py_buffer(values[known].astype("<f8"))
        doubles = pa.FixedSizeBinaryArray.from_buffers(pa.binary(8), len(places), [None, numbers]).cast(pa.binary())
        sample = varint(2 << 3 | 2) + varint(9 + len(self.end)) + b"\x09"
        sizes = pc.binary_length(places).to_numpy() + len(first + sample + self.end) + 8
        distinct, at = np.unique(sizes, return_inverse=True)
        heads = pa.array([b"\x0a" + varint(int(size)) for size in distinct], pa.binary()).take(pa.array(at))
        series = pc.binary_join_element_wise(heads, first, places, sample, doubles, self.end, b"")
        body: bytes = series.buffers()[2].to_pybytes()
        return body
