"""What correlation looks at: the incidents that are not closed, and where the nodes of findings stand.

Invariant: a look costs about the same whether an incident holds ten findings or ten thousand.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace
from typing import Final

from sqlalchemy import func, select, text

from mainstay.detectors.correlation import correlation as pure
from mainstay.detectors.correlation.places import FleetTopology, SharedPlace
from mainstay.service.common.db import AnySession
from mainstay.service.fleet.models import NodeRow
from mainstay.service.incidents import repository
from mainstay.service.incidents.lifecycle import IncidentState
from mainstay.service.jobs import repository as jobs

_ACCEPTS: Final = frozenset({IncidentState.OPEN.value, IncidentState.RECOVERING.value})
PLACED: Final = 2000
"""Nodes of one incident or job whose places are read, 20 µs each: of more nodes, no common place is named."""
WIDE: Final = 500
"""Findings of one incident that are looked at, and all that are about the nodes of the batch: so many on so many
nodes have a common cause already, and of the others only the nodes are counted."""


def open_incidents(session: AnySession, nodes: Collection[str]) -> list[pure.OpenIncident]:
    """Incidents that are not closed, oldest first, with what holds of them.

    Args:
        session: to read from.
        nodes: nodes of the batch; all findings about them are given.
    """
    wide = repository.wide_incidents(session, WIDE)
    held = repository.held_findings(session, without=wide)
    for incident in wide:
        held[incident] = repository.held_of(session, incident, newest=WIDE, nodes=nodes)
    return [
        pure.OpenIncident(
            id=row.id,
            opened_at=row.opened_at,
            findings=tuple(held.get(row.id, ())),
            accepts=row.state in _ACCEPTS,
            nodes=repository.nodes_by_kind(session, row.id) if row.id in wide else {},
        )
        for row in repository.live(session)
    ]


def topology(session: AnySession, named: set[str]) -> FleetTopology:
    """Where ranks run; of two named nodes and more also what they share, and how many nodes there are."""
    nodes: dict[tuple[str, int], str] = {}
    devices: dict[tuple[str, int], str] = {}
    for job in jobs.current(session, limit=500):
        for place in job.topology["ranks"]:
            nodes[job.id, place["rank"]] = place["node"]
            if place["device"] is not None:
                devices[job.id, place["rank"]] = place["device"]
    found = FleetTopology(rank_node=nodes, rank_device=devices)
    return found if len(named) < 2 else _with_neighbors(session, found, named)


def _with_neighbors(session: AnySession, found: FleetTopology, named: set[str]) -> FleetTopology:
    columns = (NodeRow.name, NodeRow.rack, NodeRow.cohort, NodeRow.switches, NodeRow.power_domain)
    asked = named | _others_of_jobs(found, named)
    mine = session.execute(select(*columns).where(NodeRow.name.in_(asked))).all()
    power = {name: domain for name, _, _, _, domain in mine if domain}
    cohorts = session.execute(select(NodeRow.cohort, func.count()).group_by(NodeRow.cohort)).all()
    return replace(
        found,
        node_rack={name: rack for name, rack, _, _, _ in mine if rack},
        node_switch={name: switches[0] for name, _, _, switches, _ in mine if switches},
        node_power_domain=power,
        place_nodes=_sizes(session) if named & power.keys() else {},  # nothing else asks how large places are
        node_cohort={name: cohort for name, _, cohort, _, _ in mine},
        cohort_nodes={cohort: count for cohort, count in cohorts},  # noqa: C416 - rows are no tuples to mypy
        fleet_nodes=sum(count for _, count in cohorts),
    )


def _others_of_jobs(found: FleetTopology, named: set[str]) -> set[str]:
    """Nodes of jobs that run on two named nodes or more, of which a place in common may be no chance."""
    of_job: dict[str, set[str]] = defaultdict(set)
    for (job, _), node in found.rank_node.items():
        of_job[job].add(node)
    sizes = (nodes for nodes in of_job.values() if len(nodes & named) > 1 and len(nodes) <= PLACED)
    return set[str]().union(*sizes)


def _sizes(session: AnySession) -> dict[tuple[str, str], int]:
    """How many nodes each rack, leaf switch, and power domain has."""
    columns = (NodeRow.rack, NodeRow.switches[0].as_string(), NodeRow.power_domain)
    # Grouped by position: an expression with a parameter, given twice, is two expressions to some servers.
    return {
        (place, name): count
        for place, column in zip(SharedPlace, columns, strict=True)
        for name, count in session.execute(select(column.label("name"), func.count()).group_by(text("1")))
        if name
    }
