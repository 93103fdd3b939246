"""Prometheus text, written in columns: one family at a time, a line a device, the labels made once for all families.

A client library makes objects for every sample, and a loop a string for each: at four million of them that is seconds,
in which Python does little else. Arrow writes and joins whole columns of text without Python's lock. The first scrape
imports it: it starts threads, which a process that forks must not have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from mainstay.probes.signals import WIDE_MISSING

if TYPE_CHECKING:
    import pyarrow as pa

UNITS: Final = ("seconds", "bytes", "ratio", "celsius", "watts", "joules", "hertz")
"""Base units that OpenMetrics states, where a name ends in one."""
stamp: Final = 0
"""Lines have no time of their own; messages do (``protobuf``)."""
_ESCAPES: Final[dict[str, str | int | None]] = {"\\": r"\\", '"': r"\"", "\n": r"\n"}
"""The backslash first: the others add some."""


def labels(pairs: Mapping[str, Sequence[str]]) -> pa.StringArray:
    """[series] ``{name="value",…}`` with values escaped, from a column of values for each name."""
    import pyarrow as pa  # noqa: PLC0415 - see above
    import pyarrow.compute as pc  # noqa: PLC0415

    parts: list[Any] = []
    before = "{"
    for name, values in pairs.items():
        column = pa.array(values, pa.string())
        for character, escaped in _ESCAPES.items():
            column = pc.replace_substring(column, character, escaped)
        parts += [f'{before}{name}="', column]
        before = '",'
    return pc.binary_join_element_wise(*parts, '"}', "")


def family(
    name: str,
    kind: str,
    about: str,
    where: pa.StringArray,
    values: NDArray[Any],
    *,
    same: Sequence[NDArray[np.intp]] = (),
) -> bytes:
    """A family with a line for every series whose value is known; empty when there are none.

    Args:
        name: of the metric.
        kind: gauge or counter.
        about: its help text.
        where: [series] labels.
        values: [series] floats, not finite where unknown, or int64, ``WIDE_MISSING`` where unknown. A float32 is
            written with the digits that tell it from its neighbors.
        same: places that are one series: the first of them whose value is known is written.
    """
    import pyarrow as pa  # noqa: PLC0415 - see above
    import pyarrow.compute as pc  # noqa: PLC0415

    known = known_places(values, same)
    if not known.any():
        return b""
    told = pa.array(values[known]).cast(pa.string())
    lines = pc.binary_join_element_wise(name, where.filter(pa.array(known)), " ", told, "\n", "")
    head = f"# HELP {name} {about.translate(str.maketrans(_ESCAPES))}\n# TYPE {name} {kind}\n"
    return b"".join((head.encode(), lines.buffers()[2]))


def known_places(values: NDArray[Any], same: Sequence[NDArray[np.intp]]) -> NDArray[np.bool_]:
    """[series] which of ``values`` are written (see ``family``)."""
    known: NDArray[np.bool_] = values != WIDE_MISSING if values.dtype == np.int64 else np.isfinite(values)
    for places in same:
        known[places[known[places]][1:]] = False
    return known


def unit_of(name: str) -> str:
    """The unit that a name (without ``_total``) ends in; empty if it is none of ``UNITS``."""
    unit = name.rpartition("_")[2]
    return unit if unit in UNITS else ""


def as_openmetrics(page: bytes) -> Iterator[bytes]:
    """A family of ``family`` in OpenMetrics: its counters are named without ``_total``, and it has a unit."""
    end = page.find(b"\n", page.find(b"\n") + 1) + 1
    if not end:
        return
    about, kind = page[:end].decode().splitlines()
    name, kind = kind.split(" ")[2:]
    about = about.removeprefix(f"# HELP {name} ")
    name = name.removesuffix("_total")
    unit = f"# UNIT {name} {unit_of(name)}\n" if unit_of(name) else ""
    yield f"# HELP {name} {about}\n# TYPE {name} {kind}\n{unit}".encode()
    yield page[end:]
