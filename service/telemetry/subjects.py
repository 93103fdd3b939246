"""Whose data may arrive: nodes that enrolled or reported, jobs that were announced. Looked up once, then remembered."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from mainstay.service.common.db import AnySession, Database
from mainstay.service.common.problem import NotFoundError
from mainstay.service.fleet.models import NodeRow


class UnknownSubjectError(NotFoundError):
    slug, title = "unknown-subject", "Unknown node or job"


WorldSize = Callable[[AnySession, str], int | None]
"""The number of ranks of a job, or None when no coordinator announced it. Features pass in their own."""


@dataclass
class Subjects:
    """Nodes and jobs that exist. ``world_size`` comes from the jobs feature."""

    database: Database
    world_size: WorldSize
    _nodes: dict[str, str | None] = field(default_factory=dict, init=False, repr=False)
    """Node → rack."""
    _ranks: dict[str, int] = field(default_factory=dict, init=False, repr=False)

    def has_node(self, name: str) -> bool:
        """From memory only."""
        return name in self._nodes

    def rack(self, name: str) -> str | None:
        """The rack of a node that was looked up, from memory only."""
        return self._nodes.get(name)

    def racks(self, names: Iterable[str]) -> set[str | None] | None:
        """The racks of nodes, from memory only; None when one was not looked up."""
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
        with self.database.reading() as session:
            row = session.get(NodeRow, name)
            if row is None:
                raise UnknownSubjectError(f"no node is called {name!r}: enroll it, or send its report first")
            rack = row.rack
        self._nodes[name] = rack

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
