"""Which nodes a list shows, in which order, and how many there are of each kind: answered from the fleet in memory."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from mainstay.probes.core_types import HealthState
from mainstay.service.common.pagination import PageParams, decode_cursor, encode_cursor
from mainstay.service.fleet.directory import FleetNode
from mainstay.service.fleet.schemas import FacetRead, NodeFacetsRead

_URGENCY: Final = {
    state.value: place
    for place, state in enumerate(
        (
            HealthState.QUARANTINED, HealthState.SUSPECT, HealthState.UNKNOWN, HealthState.DRAINING,
            HealthState.VALIDATING, HealthState.HEALTHY,
        )
    )
}  # fmt: skip


class NodeSort(StrEnum):
    """What a list is ordered by, and by name among equals; ``-`` turns the order around."""

    NAME = "name"
    NAME_DESC = "-name"
    STATE = "state"
    STATE_DESC = "-state"
    RACK = "rack"
    RACK_DESC = "-rack"
    COHORT = "cohort"
    COHORT_DESC = "-cohort"
    LAST_SEEN = "last_seen"
    LAST_SEEN_DESC = "-last_seen"
    INCIDENTS = "incidents"
    INCIDENTS_DESC = "-incidents"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFilter:
    """Conditions that a node meets all of; None: any."""

    state: str | None = None
    rack: str | None = None
    cohort: str | None = None
    job: str | None = None
    text: str | None = None
    """Part of its name, host name, rack or cohort."""


@dataclass(frozen=True, slots=True)
class NodeList:
    """Nodes of a fleet that meet a filter.

    Args:
        nodes: all of the fleet.
        wanted: the filter.
        jobs: ids of the running jobs, by node.
    """

    nodes: Iterable[FleetNode]
    wanted: NodeFilter
    jobs: Mapping[str, Sequence[str]]

    def matching(self, *, leave_out: str = "") -> list[FleetNode]:
        """Those that meet the filter, or all of it but the condition ``leave_out``."""
        tests = [test for name, test in self._tests() if name != leave_out]
        return [node for node in self.nodes if all(test(node) for test in tests)]

    def _tests(self) -> Iterable[tuple[str, Callable[[FleetNode], bool]]]:
        wanted, jobs = self.wanted, self.jobs
        if wanted.state is not None:
            yield "state", lambda node: node.state == wanted.state
        if wanted.rack is not None:
            yield "rack", lambda node: node.rack == wanted.rack
        if wanted.cohort is not None:
            yield "cohort", lambda node: node.cohort == wanted.cohort
        if wanted.job is not None:
            yield "job", lambda node: wanted.job in jobs.get(node.name, ())
        if wanted.text:
            text = wanted.text.lower()
            yield "text", lambda node: text in node.text

    def facets(self) -> NodeFacetsRead:
        """How many nodes each value of a condition would show, the others as they are."""
        return NodeFacetsRead(
            state=_counted(Counter(node.state for node in self.matching(leave_out="state"))),
            rack=_counted(Counter(node.rack for node in self.matching(leave_out="rack"))),
            cohort=_counted(Counter(node.cohort for node in self.matching(leave_out="cohort"))),
            job=_counted(
                Counter(job for node in self.matching(leave_out="job") for job in self.jobs.get(node.name, ()))
            ),
        )


def _counted(counts: Counter[str]) -> list[FacetRead]:
    return [FacetRead(value=value, count=count) for value, count in sorted(counts.items()) if value]


def page_of(
    nodes: Sequence[FleetNode], sort: NodeSort, page: PageParams, *, seen: Callable[[FleetNode], float],
    incidents: Mapping[str, int],
) -> tuple[list[str], str | None]:  # fmt: skip
    """Names of one page in order, and the cursor of the next.

    Args:
        nodes: what the list shows.
        sort: the order.
        page: from ``Paging``.
        seen: when a node last reported, Unix seconds.
        incidents: open ones by node; asked for in that order only.
    """
    keys: dict[str, tuple[type, Callable[[FleetNode], Any]]] = {
        "name": (str, lambda node: node.name),
        "state": (int, lambda node: _URGENCY[node.state]),
        "rack": (str, lambda node: node.rack),
        "cohort": (str, lambda node: node.cohort),
        "last_seen": (float, seen),
        "incidents": (int, lambda node: incidents.get(node.name, 0)),
    }
    descending = sort.startswith("-")
    kind, key = keys[sort.removeprefix("-")]
    rows = [(key(node), node.name) for node in nodes]
    if page.cursor is not None:
        after = tuple(decode_cursor(page.cursor, [kind, str]))
        rows = [row for row in rows if (row < after if descending else row > after)]
    pick = heapq.nlargest if descending else heapq.nsmallest
    found = pick(page.limit + 1, rows)
    cursor = encode_cursor(found[page.limit - 1]) if len(found) > page.limit else None
    return [name for _, name in found[: page.limit]], cursor
