"""The kernel-log reader against every line type that it knows, and against invented lines.

The patterns and their examples are data (``probes/kernel_log/patterns.toml``); damaged lines are made from the examples
by a seeded generator: bytes changed, cut out, doubled, numbers made huge.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Final

from bench.report import Row
from mainstay.probes.kernel_log.parse import details, parse, patterns

_DAMAGED: Final = 200_000
_SEED: Final = 5
_LONG: Final = 4096


def damaged(count: int) -> Iterator[bytes]:
    """Examples with something broken, and some that are noise only."""
    chance = random.Random(_SEED)
    examples = [pattern.example.encode() for pattern in patterns()] + [d.example.encode() for d in details()]
    for _ in range(count):
        line = bytearray(chance.choice(examples))
        for _again in range(chance.randint(1, 6)):
            at = chance.randrange(len(line) + 1)
            match chance.randrange(5):
                case 0:
                    line[at:at] = chance.randbytes(chance.randint(1, 8))
                case 1:
                    del line[at : at + chance.randint(1, 20)]
                case 2:
                    line[at:at] = b"9" * chance.randint(1, 40)
                case 3:
                    line += line[:at] * chance.randint(1, 3)
                case _:
                    line = bytearray(chance.randbytes(chance.randint(0, 200))) if chance.random() < 0.05 else line
        yield bytes(line[:_LONG])


def rows() -> list[Row]:
    known = patterns()
    right = [pattern.id for pattern in known if (fact := parse(pattern.example)) and fact.pattern == pattern.id]
    raised, slowest = 0, 0.0
    for line in damaged(_DAMAGED):
        began = time.perf_counter()
        try:
            parse(line)
        except Exception:  # noqa: BLE001 - named boundary: what it raises is what is counted
            raised += 1
        slowest = max(slowest, time.perf_counter() - began)
    return [
        Row(
            claim="Kernel-log line types parsed, each by its own pattern", figure=len(right), unit=f"of {len(known)}",
            target="all", holds=len(right) == len(known), kind="replayed", n=len(known),
        ),
        Row(
            claim="Damaged lines that made the parser raise", figure=raised, unit="lines", target="0",
            holds=raised == 0, kind="replayed", n=_DAMAGED, note=f"slowest line {slowest * 1e3:.1f} ms",
        ),
    ]  # fmt: skip
