"""Which nodes meet the criteria of a selector."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol, TypeVar

from mainstay.service.fleet.directory import FleetNode
from mainstay.service.fleet.models import NodeRow

_Node = TypeVar("_Node", FleetNode, NodeRow)


class Criteria(Protocol):
    """Names of racks, cohorts, and states; empty: any."""

    @property
    def racks(self) -> Collection[str]: ...
    @property
    def cohorts(self) -> Collection[str]: ...
    @property
    def states(self) -> Collection[str]: ...


def select_nodes(nodes: Iterable[_Node], wanted: Criteria, *, names: Collection[str] | None) -> list[_Node]:
    """Those that meet all criteria, in their order. ``names``: of the nodes; None: any."""
    tests = [
        (criterion, frozenset(values))
        for criterion, values in (
            ("name", names), ("rack", wanted.racks or None), ("cohort", wanted.cohorts or None),
            ("state", wanted.states or None),
        )
        if values is not None
    ]  # fmt: skip
    return [node for node in nodes if all(getattr(node, criterion) in values for criterion, values in tests)]
