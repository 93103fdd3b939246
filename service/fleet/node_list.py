"""Which nodes a list shows, in which order, and how many there are of each kind: answered from the fleet in memory."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from mainstay.probes.core_types import HealthState
from mainstay.service.common.pagination import PageParams, decode_cursor, encode_cursor
from mainstay.service.fleet.directory import FleetNode
from mainstay.service.fleet.schemas import FacetRead, NodeFacetsRead

_Test = Callable[[FleetNode], bool]
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


class NodeList:
    """Nodes of a fleet that meet a filter.

    Args:
        nodes: all of the fleet.
        wanted: the filter.
        jobs: ids of the running jobs, by node.
    """

    def __init__(self, nodes: Collection[FleetNode], wanted: NodeFilter, jobs: Mapping[str, Sequence[str]]) -> None:
        self._nodes, self._jobs = nodes, jobs
        self._tests = dict(_tests(wanted, jobs))
        self.matching = self._meeting(self._tests.values())

    def _meeting(self, tests: Collection[_Test]) -> Sequence[FleetNode]:
        return [node for node in self._nodes if all(test(node) for test in tests)] if tests else list(self._nodes)

    def facets(self) -> NodeFacetsRead:
        """How many nodes each value of a condition would show, the others as they are."""
        return NodeFacetsRead(
            state=_counted(node.state for node in self._without("state")),
            rack=_counted(node.rack for node in self._without("rack")),
            cohort=_counted(node.cohort for node in self._without("cohort")),
            job=_counted(job for node in self._without("job") for job in self._jobs.get(node.name, ())),
        )

    def _without(self, condition: str) -> Sequence[FleetNode]:
        if condition not in self._tests:
            return self.matching
        return self._meeting([test for name, test in self._tests.items() if name != condition])


def _tests(wanted: NodeFilter, jobs: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, _Test]]:
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


def _counted(values: Iterable[str]) -> list[FacetRead]:
    return [FacetRead(value=value, count=count) for value, count in sorted(Counter(values).items()) if value]


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
