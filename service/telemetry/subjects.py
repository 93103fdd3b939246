"""Whose data may arrive: nodes that enrolled or reported, jobs that were announced. Looked up once, then remembered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from typing import Final

from sqlalchemy import select

from mainstay.service.common.db import AnySession, Database
from mainstay.service.common.problem import NotFoundError
from mainstay.service.fleet.models import NodeRow


class UnknownSubjectError(NotFoundError):
    slug, title = "unknown-subject", "Unknown node or job"


_KNOWN_GROUPS: Final = 1024
WorldSize = Callable[[AnySession, str], int | None]
"""The number of ranks of a job, or None when no coordinator announced it. Features pass in their own."""


@dataclass
class Subjects:
    """Nodes and jobs that exist. ``world_size`` comes from the jobs feature."""

    database: Database
    world_size: WorldSize
    _nodes: dict[str, str | None] = field(default_factory=dict, init=False, repr=False)
    """Node → rack."""
    _version: int = field(default=0, init=False, repr=False)
    """Another number after each look-up of a node."""
    _versions: Iterator[int] = field(default_factory=lambda: count(1), init=False, repr=False)
    _racks_of: Callable[[tuple[str, ...], int], set[str | None] | None] = field(init=False, repr=False)
    _ranks: dict[str, int] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self._racks_of = lru_cache(_KNOWN_GROUPS)(self._find_racks)

    def has_node(self, name: str) -> bool:
        """From memory only."""
        return name in self._nodes

    def rack(self, name: str) -> str | None:
        """The rack of a node that was looked up, from memory only."""
        return self._nodes.get(name)

    def racks(self, names: tuple[str, ...]) -> set[str | None] | None:
        """The racks of nodes, from memory only; None when one was not looked up.

        A relay asks for the same nodes again and again: their racks are gathered once.
        """
        return self._racks_of(names, self._version)

    def _find_racks(self, names: tuple[str, ...], _version: int) -> set[str | None] | None:
        try:
            return {self._nodes[name] for name in names}
        except KeyError:
            return None

    def ranks(self, job: str) -> int:
        """From memory only; 0 for a job not looked up."""
        return self._ranks.get(job, 0)

    def find_node(self, name: str) -> None:
        """Ask the database.

        Raises:
            UnknownSubjectError: no such node.
        """
        if not self.find_nodes((name,)):
            raise UnknownSubjectError(f"no node is called {name!r}: enroll it, or send its report first")

    def find_nodes(self, names: Sequence[str] | None = None) -> bool:
        """Ask the database for these nodes at once, or for all; whether it knows any of them."""
        statement = select(NodeRow.name, NodeRow.rack)
        with self.database.reading() as session:
            rows = session.execute(statement if names is None else statement.where(NodeRow.name.in_(names))).all()
        self._nodes.update({row.name: row.rack for row in rows})
        self._version = next(self._versions)  # not += 1: look-ups run in several threads, and no number may come twice
        return bool(rows)

    def find_job(self, job: str) -> None:
        """Ask the database.

        Raises:
            UnknownSubjectError: no such job.
        """
        with self.database.reading() as session:
            size = self.world_size(session, job)
        if size is None:
            raise UnknownSubjectError(f"no job is called {job!r}: announce it before sending its steps")
        self._ranks[job] = size
