"""Which nodes of a job are not trusted, and why: reported by the service, or found by the job's own coordinator.

No rank is placed on such a node while another has room (decision 51). Ranks that run there stay.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

log = logging.getLogger("mainstay.coordinator")

OWN_SECONDS: Final = 3600.0
"""So long what the coordinator found itself counts: no validation will tell it that the node is repaired."""


class NodeWarning(msgspec.Struct, frozen=True, kw_only=True):
    """Why a node is not trusted."""

    reason: str
    factor: float
    """It fails so many times as often as others."""
    since: float
    corrupt: bool = False
    """It computes wrongly, since then."""
    cordoned: bool = False
    """It takes no rank at all: out of service, or a finding wants work off it. Others take one as a last resort."""


def cordon(reason: str) -> NodeWarning:
    """A warning from now on that keeps every rank off the node."""
    return NodeWarning(reason=reason, factor=1.0, since=time.time(), cordoned=True)


def read(answer: Any, nodes: Collection[str]) -> dict[str, NodeWarning] | None:
    """The warnings about ``nodes`` in the decoded answer of a job report; None where it has none that can be read."""
    given = answer.get("node_warnings") if isinstance(answer, dict) else None
    if not isinstance(given, dict):
        return None
    try:
        found = msgspec.convert(given, dict[str, NodeWarning])
    except msgspec.ValidationError as error:
        log.warning("node warnings of the service are not understood: %s", error)
        return None
    return {node: warning for node, warning in found.items() if node in nodes}


class NodeWarnings(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """All warnings that a coordinator knows; the next one takes them over."""

    reported: dict[str, NodeWarning] | None = None
    """By the service; None: no service has reported any yet, not even that there are none."""
    own: dict[str, NodeWarning] = {}
    refused: dict[str, NodeWarning] = {}
    """By the service's admission check, which is asked again until it admits them; all are cordoned (decision 52)."""

    def current(self, now: float | None = None) -> Mapping[str, NodeWarning]:
        """Node -> warning that holds: a refusal, else a failed preflight, else what the service reports.

        Args:
            now: Unix seconds; None: by the clock.
        """
        since = (time.time() if now is None else now) - OWN_SECONDS
        own = {n: w for n, w in self.own.items() if w.cordoned or w.since > since}
        failed = {n: w for n, w in own.items() if w.cordoned}
        return own | (self.reported or {}) | failed | self.refused

    def note(self, node: str, warning: NodeWarning) -> NodeWarnings:
        """With what the coordinator found about a node."""
        return msgspec.structs.replace(self, own={**self.own, node: warning})

    def suspect(self, node: str, reason: str) -> NodeWarnings:
        """With what only the coordinator can know where there is no service; a service knows more, and when it ends."""
        if self.reported is not None:
            return self
        log.warning("no rank is placed on node %s while another has room: %s", node, reason)
        return self.note(node, NodeWarning(reason=reason, factor=1.0, since=time.time()))

    def trust(self, node: str) -> NodeWarnings:
        """Without the coordinator's own warning: an operator names the node as a target."""
        return msgspec.structs.replace(self, own={name: own for name, own in self.own.items() if name != node})
