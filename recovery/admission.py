"""What the service's admission check means for the nodes of a job: which take no rank, and which are only remarked on.

Evidence against a node refuses it. Missing evidence does not: the service names such a node, but a job on a site that
validates nothing, or whose node daemons are down, starts all the same (decision 52).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import msgspec

from mainstay.probes.core_types import HealthState

NO_EVIDENCE: Final = frozenset({"unknown_node", "silent", "never_validated", "validation_unknown"})
"""Reasons of the service that say what it does not know. The node's launcher runs, so a silent node is not down."""
VALIDATING: Final = "being_validated"
SUSPECT: Final = "suspect"
_DENY: Final = "deny"


class AdmissionPolicy(StrEnum):
    """What a job does with the service's answer, or with what its preflight finds."""

    ENFORCE = "enforce"
    WARN = "warn"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Admission:
    """Node -> reason, each node in one group at most. Nodes without an objection are in none."""

    refused: dict[str, str] = field(default_factory=dict)
    validating: dict[str, str] = field(default_factory=dict)
    """Refused only until a validation on the node ends."""
    suspect: dict[str, str] = field(default_factory=dict)
    """They take a rank as a last resort (decision 51)."""
    remarks: dict[str, str] = field(default_factory=dict)
    """Unknown, or admitted with a reservation."""


class _Reason(msgspec.Struct, frozen=True):
    code: str
    decision: str
    text: str


class _Node(msgspec.Struct, frozen=True):
    node: str
    reasons: tuple[_Reason, ...]
    state: str | None = None

    def lacks_evidence(self, reason: _Reason) -> bool:
        return reason.code in NO_EVIDENCE or (reason.code == "state" and self.state == HealthState.UNKNOWN)


class _Response(msgspec.Struct, frozen=True):
    nodes: tuple[_Node, ...]


def read(answer: Any) -> Admission:
    """Sort the nodes of a decoded response of ``POST /v1/admission``. A reason of a newer service that denies refuses.

    Raises:
        msgspec.ValidationError: it is no such response.
    """
    found = Admission()
    for node in msgspec.convert(answer, _Response).nodes:
        against = [reason for reason in node.reasons if reason.decision == _DENY and not node.lacks_evidence(reason)]
        codes = {reason.code for reason in node.reasons}
        if against:
            group = found.validating if {reason.code for reason in against} == {VALIDATING} else found.refused
            group[node.node] = _text(against)
        elif node.reasons:
            group = found.suspect if SUSPECT in codes else found.remarks
            group[node.node] = _text(node.reasons)
    return found


def _text(reasons: Iterable[_Reason]) -> str:
    return "; ".join(reason.text for reason in reasons)[:500]
