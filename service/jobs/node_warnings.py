"""Warnings about the nodes of a job from active findings; the response to a report of its coordinator contains them.

Nodes only make outgoing calls, and a coordinator knows no hardware: this is how a degrading node's ranks get an extra
copy before it dies, and how corruption that another component found marks steps as corrupt.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from sqlalchemy import select

from mainstay.detectors.finding import Cause, FindingKind
from mainstay.probes.core_types import HealthState, RecommendedAction, Severity
from mainstay.service.common.db import AnySession
from mainstay.service.fleet.directory import FleetNode
from mainstay.service.fleet.lifecycle import OUT_OF_SERVICE
from mainstay.service.incidents.models import FindingRow
from mainstay.service.jobs.schemas import NodeWarningRead
from mainstay.service.validation.last_known_good import last_sound

FACTORS: Final = {Severity.WARNING.value: 10.0, Severity.CRITICAL.value: 100.0}
"""How many times as often such a node fails. Assumptions of the right order: nodes with corrected errors fail some ten
times as often (Meza et al., DSN 2015, of DRAM), and one with a fault that stops work is about to be lost."""
_K: Final = FindingKind
KINDS: Final = frozenset(
    kind.value
    for kind in (
        _K.GPU_LOST, _K.XID, _K.SXID, _K.ECC_UNCORRECTABLE, _K.ECC_CORRECTED, _K.ROW_REMAP, _K.THERMAL_THROTTLE,
        _K.POWER_BRAKE, _K.STRAGGLER, _K.PCIE_DEGRADED, _K.NVLINK_ERRORS, _K.NIC_DEGRADED, _K.FABRIC_DOWN,
        _K.KERNEL_FAULT, _K.LEMON_NODE, _K.HEALTH_REPORT, _K.VALIDATION_FAILED, _K.FAULT_LOCALIZED, _K.SDC_SUSPECT,
        _K.MEMORY_BIT_FLIPS, _K.DEVICE_SLOW,
    )
)  # fmt: skip
"""Findings about hardware: what a script does says nothing of how long its node lives."""


def of_nodes(
    session: AnySession, job: str, fleet: Mapping[str, FleetNode], nodes: Collection[str]
) -> dict[str, NodeWarningRead]:
    """Node -> the worst of what is found there, or its state. Nodes that may take work are not named.

    Args:
        session: to read findings with.
        job: that asks. What its own replays found it has acted upon: for it that is a hazard, no new corruption.
        fleet: all nodes.
        nodes: of the job.
    """
    wanted = select(FindingRow).where(
        FindingRow.active,
        FindingRow.node.in_(nodes),
        FindingRow.kind.in_(KINDS),
        FindingRow.severity.in_(FACTORS),
    )
    found: dict[str, NodeWarningRead] = {}
    for row in session.scalars(wanted.order_by(FindingRow.time, FindingRow.id)):
        assert row.node is not None
        found[row.node] = _worse(found.get(row.node), _hazard(session, row, job))
    for node in (fleet[name] for name in nodes if name in fleet):
        if node.state == HealthState.SUSPECT or node.state in OUT_OF_SERVICE:
            found[node.name] = _worse(found.get(node.name), _of_state(node))
    return found


def _of_state(node: FleetNode) -> NodeWarningRead:
    return NodeWarningRead(
        reason=f"it is {node.state}: {node.state_reason}"[:500],
        factor=1.0,
        since=node.state_since or 0.0,
        corrupt=False,
        cordoned=node.state in OUT_OF_SERVICE,
    )


def _hazard(session: AnySession, row: FindingRow, job: str) -> NodeWarningRead:
    wrong = row.kind == FindingKind.SDC_SUSPECT.value or row.cause == Cause.SILENT_CORRUPTION.value
    corrupt = wrong and row.job != job and row.severity == Severity.CRITICAL.value
    return NodeWarningRead(
        reason=str(row.evidence.get("summary", row.kind))[:500],
        factor=FACTORS[row.severity],
        since=_since(session, row, corrupt=corrupt),
        corrupt=corrupt,
        cordoned=RecommendedAction(row.recommended_action).evicts,
    )


def _since(session: AnySession, row: FindingRow, *, corrupt: bool) -> float:
    """Of a corruption that was noticed late the last proof of the contrary counts, unless the finding knows better."""
    since = row.evidence.get("numbers", {}).get("since")
    if since is None and corrupt and row.node is not None:
        sound = last_sound(session, row.node, before=row.time)
        since = None if sound is None else sound.at
    return row.time if since is None else min(float(since), row.time)


def _worse(one: NodeWarningRead | None, other: NodeWarningRead) -> NodeWarningRead:
    """A corruption counts most, then the larger factor, then what was found first."""
    if one is None:
        return other
    worst = max(one, other, key=lambda hazard: (hazard.corrupt, hazard.factor, -hazard.since))
    return worst.model_copy(update={"cordoned": one.cordoned or other.cordoned})
