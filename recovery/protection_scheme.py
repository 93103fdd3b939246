"""How a job's snapshots are protected against the loss of nodes: nothing, an erasure code, or whole copies.

``none``       snapshots live on their own node only
``xor``        RAIM5 (REFT, arXiv 2310.12670): rotated XOR parity, any one member of a group may be lost
``rs:T``       Reed-Solomon, rotated likewise: any T members of a group
``copies:M``   GEMINI (SOSP 2023): M copies with the own one, any M - 1 members
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

DEFAULT_GROUP: Final = 8
"""Members of a parity group: two of eight cost a third of the state and always outlive two losses."""
MAX_GROUP: Final = 64
"""A row describes every member in one page of 16 KiB, and a decode opens a connection to each."""
MAX_PARITY: Final = 16
MAX_COPIES: Final = 8


class SchemeKind(StrEnum):
    NONE = "none"
    XOR = "xor"
    RS = "rs"
    COPIES = "copies"


@dataclass(frozen=True, slots=True)
class ProtectionScheme:
    """What is kept for a group, and how large groups should be.

    Raises:
        ValueError: numbers that make no scheme; the message names them.
    """

    kind: SchemeKind = SchemeKind.XOR
    parity: int = 1
    """Rows a stripe (xor: 1, rs: T, else 0)."""
    copies: int = 1
    """Copies of a slot, the rank's own included (1 but for copies:M)."""
    group_size: int = DEFAULT_GROUP

    def __post_init__(self) -> None:
        if self.kind is SchemeKind.RS and not 1 <= self.parity <= MAX_PARITY:
            raise ValueError(f"rs:{self.parity} is not rs:1 to rs:{MAX_PARITY}")
        if self.kind is SchemeKind.COPIES and not 2 <= self.copies <= MAX_COPIES:
            raise ValueError(f"copies:{self.copies} is not copies:2 (the own and one more) to copies:{MAX_COPIES}")
        if not 2 <= self.group_size <= MAX_GROUP:
            raise ValueError(f"a group of {self.group_size} nodes is not between 2 and {MAX_GROUP}")
        if self.kind is not SchemeKind.NONE and self.group_size < self.least:
            raise ValueError(f"a group of {self.group_size} nodes is too small for {self}: at least {self.least}")

    def __str__(self) -> str:
        if self.kind is SchemeKind.RS:
            return f"rs:{self.parity}"
        return f"copies:{self.copies}" if self.kind is SchemeKind.COPIES else self.kind.value

    @property
    def tolerance(self) -> int:
        """Members of a whole group that may be lost at once."""
        return {SchemeKind.NONE: 0, SchemeKind.COPIES: self.copies - 1}.get(self.kind, self.parity)

    @property
    def least(self) -> int:
        """Members that a group needs to keep the promise."""
        return self.tolerance + 1

    def fitted(self, members: int) -> ProtectionScheme:
        """The same for a group that has become small: it tolerates all but one of its members.

        A group of one is protected by nothing.
        """
        size = max(2, min(members, MAX_GROUP))
        if members < 2 or self.kind is SchemeKind.NONE:
            return ProtectionScheme(SchemeKind.NONE, 0, 1, size)
        if self.kind is SchemeKind.COPIES:
            return ProtectionScheme(SchemeKind.COPIES, 0, min(self.copies, members), size)
        return ProtectionScheme(self.kind, min(self.parity, members - 1), 1, size)


def parse(text: str, group_size: int | None = None) -> ProtectionScheme:
    """Read ``none``, ``xor``, ``rs:T`` or ``copies:M``.

    Args:
        text: as typed.
        group_size: nodes of a group; by default 8, or what the scheme needs at least. Copies make groups of M.

    Raises:
        ValueError: names what is wrong.
    """
    name, colon, number = text.partition(":")
    if (
        name not in set(SchemeKind)
        or bool(colon) != (name in {SchemeKind.RS, SchemeKind.COPIES})
        or (colon and not number.isdecimal())
    ):
        raise ValueError(f"{text!r} is none of none, xor, rs:T, copies:M")
    kind, count = SchemeKind(name), int(number or 0)
    if kind is SchemeKind.COPIES:
        return ProtectionScheme(kind, 0, count, group_size or max(2, count))
    parity = {SchemeKind.NONE: 0, SchemeKind.XOR: 1}.get(kind, count)
    return ProtectionScheme(kind, parity, 1, group_size or max(DEFAULT_GROUP, min(2 * parity, MAX_GROUP)))
