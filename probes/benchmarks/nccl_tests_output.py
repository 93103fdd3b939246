"""What nccl-tests print, as figures."""

from __future__ import annotations

import re
from dataclasses import dataclass

_COLUMNS = 8
"""At the end of a row: time, algbw, busbw and errors, out of place and then in place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One message size, out of place."""

    seconds: float
    bus: float
    """Bus bandwidth, B/s."""


def read(text: str) -> dict[int, Row]:
    """Bytes → what the program measured; of a size that it measured twice, the last.

    Raises:
        ValueError: it found wrong results, or did not come to its end.
    """
    verdict = re.search(r"^#\s*Out of bounds values\s*:\s*(\d+)\s*(\S+)", text, re.MULTILINE)
    if verdict is None:
        raise ValueError("nccl-tests did not come to its end")
    if verdict.group(2) != "OK":
        raise ValueError(f"nccl-tests found {verdict.group(1)} wrong values")
    rows: dict[int, Row] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) < _COLUMNS + 4 or not (words[0].isdecimal() and words[1].isdecimal()):
            continue
        seconds, _, bus = (float(word) for word in words[-_COLUMNS : -_COLUMNS + 3])
        rows[int(words[0])] = Row(seconds=seconds * 1e-6, bus=bus * 1e9)
    if not rows:
        raise ValueError("nccl-tests printed no row")
    return rows
