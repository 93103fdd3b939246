"""Requests that move many nodes, and their answers."""

from __future__ import annotations

from typing import Annotated, Final, Self

from pydantic import Field, Strict, model_validator

from mainstay.probes.core_types import HealthState
from mainstay.service.common.schemas import Count, Input, Name, Output, ShortText, Text
from mainstay.service.fleet.schemas import DrainOptions, ValidateOptions
from mainstay.service.jobs.schemas import JobRequestRead

MAX_NODES: Final = 1024
"""Nodes that one request moves."""
_CRITERIA: Final = ("nodes", "racks", "cohorts", "states")
_Names = Annotated[tuple[ShortText, ...], Field(max_length=MAX_NODES)]


class NodeSelector(Input):
    """Which nodes. All criteria that are given must hold; each holds if one of its values does."""

    racks: _Names = ()
    cohorts: _Names = ()
    states: Annotated[tuple[HealthState, ...], Field(max_length=len(HealthState))] = ()


class NodesMove(NodeSelector):
    """Which nodes to move, and why."""

    nodes: Annotated[tuple[Name, ...], Field(max_length=MAX_NODES)] = ()
    reason: Text = ""
    """Required unless ``preview``."""
    preview: Annotated[bool, Strict()] = False
    """Answer what would happen, and change nothing."""
    confirm_count: Count | None = None
    """``matched`` of the preview; the request is rejected if another number of nodes matches now."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not any(getattr(self, name) for name in _CRITERIA):
            raise ValueError(f"give at least one of {', '.join(_CRITERIA)}")
        if not self.preview and not self.reason.strip():
            raise ValueError("give a reason")
        return self


class NodesDrain(DrainOptions, NodesMove):
    """The drain of many nodes."""


class NodesValidate(ValidateOptions, NodesMove):
    """The validation of many nodes."""


class NodeMoveRead(Output):
    """What happened to one node, or would happen."""

    node: str
    accepted: bool
    state: HealthState | None
    """Now; null if no node has this name."""
    detail: str
    """Why it was refused; empty if it was not."""
    jobs: list[str]
    """Jobs with ranks on it."""
    requests: list[JobRequestRead]
    """With ``mode: migrate``, one for each job."""


class NodesMoveRead(Output):
    """What happened to each node, by name, or would happen."""

    preview: bool
    matched: int
    """Nodes that match."""
    fleet: int
    """Nodes in the fleet."""
    confirmation_required: bool
    """So many match that the request needs ``confirm_count``."""
    changed: list[str]
    """Accepted nodes. The same list undoes a drain."""
    items: list[NodeMoveRead]
