"""XOR and Reed-Solomon, encode and decode, by every library that is here: bytes in, as ratios to a memcpy of them.

Each figure stands beside a memcpy of the same bytes measured in the same round, in processor seconds of this process: a
shared machine's memory speed varies by a factor of two within minutes, the ratios less. What is decoded is compared
with what was encoded before anything is timed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from bench.lib_coding import Library, decode, encode, libraries
from bench.report import Row, publish, target_file
from mainstay.recovery.coding import code
from mainstay.recovery.coding.galois_field import Bytes

MIB: Final = 1024 * 1024
STATE: Final = 256 * MIB
"""Data of all blocks together: larger than any cache."""
ROUNDS: Final = 9
SMALL: Final = 32 * MIB
"""Bytes for what is known to be slow (Reed-Solomon without ISA-L), so that the bench ends in time."""


@dataclass(frozen=True)
class Claim:
    """What a code is asked for."""

    name: str
    data: int
    parity: int
    library: Library
    encode: float | None
    """Times memcpy; None: nothing was promised."""
    decode: float | None


def claims() -> list[Claim]:
    best, *others = libraries()
    asked = [("xor", 4, 1), ("xor", 8, 1), ("rs", 8, 2)]
    found = [Claim(*code_, best, 0.9, 0.5) for code_ in asked]
    return found + [Claim(*code_, library, None, None) for library in others for code_ in asked]


class Blocks:
    """Data, parity and a place for what is decoded, all touched before anything is timed."""

    def __init__(self, claim: Claim) -> None:
        self.code, self.library = code(claim.name, claim.data, claim.parity), claim.library
        self.total = SMALL if claim.library.name == "numpy" and claim.name == "rs" else STATE
        size = self.total // claim.data
        everything = np.random.default_rng(7).integers(0, 256, self.total, np.uint8)
        self.data = [everything[i * size : (i + 1) * size] for i in range(claim.data)]
        self.parity: list[Bytes] = [np.full(size, 1, np.uint8) for _ in range(claim.parity)]
        self.found: list[Bytes] = [np.full(size, 1, np.uint8) for _ in range(claim.parity)]
        self.everything, self.copy = everything, np.full(self.total, 1, np.uint8)
        self.lost = list(range(claim.parity))

    def memcpy(self) -> None:
        np.copyto(self.copy, self.everything)

    def encode(self) -> None:
        encode(self.code, self.library, self.data, self.parity)

    def decode(self) -> None:
        """As many blocks of data are lost as there are of parity."""
        blocks = {i: block for i, block in enumerate([*self.data, *self.parity]) if i not in self.lost}
        decode(self.code, self.library, blocks, self.lost, self.found)

    def check(self) -> None:
        self.encode()
        self.decode()
        for index, found in zip(self.lost, self.found, strict=True):
            assert np.array_equal(self.data[index], found), f"block {index} came back wrong"


def measure(claim: Claim) -> list[Row]:
    blocks = Blocks(claim)
    blocks.check()
    blocks.memcpy()
    base: list[float] = []
    taken: dict[str, list[float]] = {"encode": [], "decode": []}
    for _ in range(ROUNDS):
        for name, work in (("encode", blocks.encode), ("decode", blocks.decode)):
            base.append(_seconds(blocks.memcpy))
            taken[name].append(base[-1] / _seconds(work))
    against = f"memcpy {blocks.total / statistics.median(base) / 1e9:.1f} GB/s"
    return [_row(claim, name, taken[name], against) for name in taken]


def _seconds(work: Callable[[], None]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def _row(claim: Claim, name: str, ratios: Sequence[float], against: str) -> Row:
    wanted = claim.encode if name == "encode" else claim.decode
    limit = 2 * claim.data / (claim.data + claim.parity)
    figure = statistics.median(ratios)
    spread = f"quartiles {np.quantile(ratios, 0.25):.2f} to {np.quantile(ratios, 0.75):.2f}"
    return Row(
        claim=f"{claim.name}({claim.data}, {claim.parity}) {name}, {claim.library.name}, bytes in",
        figure=figure,
        unit="x memcpy",
        target="-" if wanted is None else f">= {wanted}",
        holds=None if wanted is None else figure >= wanted,
        kind="live",
        baseline=against,
        n=len(ratios),
        note=f"limit {limit:.1f}: reads {claim.data} and writes {claim.parity} where memcpy does both of all; {spread}",
    )


def main() -> None:
    file = target_file("coding")
    publish("coding", [row for claim in claims() for row in measure(claim)], file)


if __name__ == "__main__":
    main()
