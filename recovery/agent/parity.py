"""Rotated parity over the g members of a group with t rows a codeword, as pure index arithmetic.

Each slot is cut into g-t stripes, one for each codeword that it has data in. Codeword j has its parity on the members j
to j+t-1 (modulo g) and its data on all others, so every member keeps t rows and sends t·S, no row covers data of the
node that holds it, and any t members can be lost. With t = 1 this is RAIM5 (REFT, Wang et al. 2023, arXiv 2310.12670).
A slot shorter than the longest of the group counts as padded with zeros.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass

from mainstay.recovery.coding import Code, code
from mainstay.recovery.memory.layout import align


@dataclass(frozen=True, slots=True)
class Geometry:
    """Where everything of a group of ``members`` with ``parity`` rows a codeword lies.

    Raises:
        ValueError: no data would be left, or no parity.
    """

    members: int
    parity: int

    def __post_init__(self) -> None:
        if not 1 <= self.parity < self.members:
            raise ValueError(f"a group of {self.members} members cannot have {self.parity} rows of parity")

    @property
    def data(self) -> int:
        """Data stripes of a codeword, and stripes of a slot."""
        return self.members - self.parity

    @property
    def code(self) -> Code:
        return _code(self.data, self.parity)

    def parity_places(self, word: int) -> tuple[int, ...]:
        """Members that hold parity 0 to t-1 of codeword ``word``."""
        return tuple((word + row) % self.members for row in range(self.parity))

    def data_places(self, word: int) -> tuple[int, ...]:
        """Members whose slots codeword ``word`` covers, in the order of its data blocks."""
        kept = self.parity_places(word)
        return tuple(place for place in range(self.members) if place not in kept)

    def words_of(self, place: int) -> tuple[int, ...]:
        """Codewords that member ``place`` has data in, one for each stripe of its slot."""
        return tuple(word for word in range(self.members) if place not in self.parity_places(word))

    def rows_of(self, place: int) -> tuple[int, ...]:
        """The codewords of member ``place``'s rows: row p is parity p of the p-th of them."""
        return tuple((place - row) % self.members for row in range(self.parity))

    def covers(self, lost: int, held: Collection[int], rows: Collection[int]) -> bool:
        """Whether the slot of place ``lost`` comes back from those of places ``held`` and the rows of ``rows``."""
        if len({*held}.intersection(rows) - {lost}) >= self.data:
            return True  # the usual case, of thousands of ranks
        return all(
            sum(place == lost or place not in held for place in self.data_places(word))
            <= sum(place in rows for place in self.parity_places(word))
            for word in self.words_of(lost)
        )

    def block(self, word: int, place: int) -> int:
        """The number that the code gives to member ``place`` in ``word``: data first, then parity."""
        kept = self.parity_places(word)
        return self.data + kept.index(place) if place in kept else self.data_places(word).index(place)

    def stripe_bytes(self, longest: int) -> int:
        """Bytes of a stripe and of a row, for slots of at most ``longest`` bytes; a multiple of 64."""
        return align(-(-longest // self.data))

    def span(self, word: int, place: int, size: int, nbytes: int) -> tuple[int, int]:
        """(offset, length) of member ``place``'s stripe in ``word``, in a slot of ``nbytes``: cut where that ends."""
        offset = min(self.words_of(place).index(word) * size, nbytes)
        return offset, min(size, nbytes - offset)


@functools.cache
def _code(data: int, parity: int) -> Code:
    return code("xor" if parity == 1 else "rs", data, parity)
