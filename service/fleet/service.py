"""What may be done with nodes. Health changes only through ``set_state``: every change is told and has a reason."""

from __future__ import annotations

from probes.words import HealthState
from service.fleet.models import NodeRow
from service.kit.db import AnySession, WriteSession
from service.kit.problem import NotFoundError
from service.stream.changes import Topic, record_change


class UnknownNodeError(NotFoundError):
    slug, title = "unknown-node", "Unknown node"


def require_node(session: AnySession, name: str) -> NodeRow:
    """The node's row.

    Raises:
        UnknownNodeError: nobody enrolled or reported under this name.
    """
    row = session.get(NodeRow, name)
    if row is None:
        raise UnknownNodeError(f"no node is called {name!r}")
    return row


def set_state(session: WriteSession, name: str, state: HealthState, reason: str) -> NodeRow:
    """Move a node to ``state``; watchers are told when that changes anything."""
    row = require_node(session, name)
    if (row.state, row.state_reason) != (state.value, reason[:500]):
        row.state, row.state_reason = state.value, reason[:500]
        record_change(session, Topic.NODE, {"id": name, "state": state.value, "reason": reason[:500]})
    return row
