"""Which running jobs occupy which nodes, kept in memory between questions."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import select

from mainstay.service.common.db import AnySession
from mainstay.service.common.problem import ConflictError
from mainstay.service.jobs.models import JobRow
from mainstay.service.jobs.repository import current_keys


class NodeOccupiedError(ConflictError):
    slug, title = "node-occupied", "A job runs on the node"


def occupied_reason(jobs: Mapping[str, Sequence[str]], node: str) -> str | None:
    """Why what would disturb a job waits, by ``Occupancy.by_node``; None: no job runs on the node."""
    return f"job {', '.join(jobs[node][:3])} runs on this node" if node in jobs else None


def require_idle(jobs: Mapping[str, Sequence[str]], nodes: Iterable[str]) -> None:
    """Check that no job runs on these nodes.

    Raises:
        NodeOccupiedError: one does; the message names it and the node.
    """
    for node in nodes:
        if why := occupied_reason(jobs, node):
            raise NodeOccupiedError(f"node {node}: {why}. Wait until it has ended, or set allow_occupied to disturb it")


@dataclass
class Occupancy:
    """Which running jobs have ranks on a node: kept until a job's generation or start is another."""

    _keys: tuple[tuple[str, int, float], ...] = ()
    _places: dict[tuple[str, int, float], frozenset[str]] = field(default_factory=dict)
    _by_node: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def by_node(self, session: AnySession) -> Mapping[str, tuple[str, ...]]:
        """Node -> ids of running jobs. Not to be changed."""
        keys = current_keys(session)
        with self._lock:
            if keys == self._keys:
                return self._by_node
            known = dict(self._places)
        places = {key: known.get(key) or _places(session, key[0]) for key in keys}
        found: dict[str, list[str]] = defaultdict(list)
        for (job, _, _), nodes in places.items():
            for node in nodes:
                found[node].append(job)
        with self._lock:
            self._keys, self._places = keys, places
            self._by_node = {node: tuple(jobs) for node, jobs in found.items()}
            return self._by_node


def _places(session: AnySession, job: str) -> frozenset[str]:
    topology = session.scalar(select(JobRow.topology).where(JobRow.id == job)) or {"ranks": []}
    return frozenset(place["node"] for place in topology["ranks"])
