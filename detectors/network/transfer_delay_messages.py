"""Words for what the delay matrix shows: who is named, what kind of finding it is, and how sure it is."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mainstay.detectors.finding import Cause, Entity, Evidence, Finding, FindingKind
from mainstay.detectors.network.fabric import ComponentKind, Fabric, FaultHypothesis
from mainstay.detectors.series import draw_series
from mainstay.probes.core_types import RecommendedAction, Severity

_SIDES = ("sends", "receives", "sends and receives")
_PORTS = (ComponentKind.SENDER, ComponentKind.RECEIVER, ComponentKind.PORT)
_NODES = (ComponentKind.NODE_SENDER, ComponentKind.NODE_RECEIVER, ComponentKind.NODE)
_LOCALS = (ComponentKind.LOCAL_SENDER, ComponentKind.LOCAL_RECEIVER, ComponentKind.LOCAL)
_SIDE = {part: verb for of in (_PORTS, _NODES, _LOCALS) for part, verb in zip(of, _SIDES, strict=True)}
_LINKS = (ComponentKind.LINK, ComponentKind.CABLE)
_SWITCH = {
    ComponentKind.UPLINK: "leave upwards through",
    ComponentKind.DOWNLINK: "come down through",
    ComponentKind.CROSSING: "cross the uplinks of",
    ComponentKind.SWITCH: "pass",
}

Drawn = tuple[npt.NDArray[np.floating], npt.NDArray[np.floating], npt.NDArray[np.floating]]
"""Steps, seconds and what they should be, of the cell that shows it most."""


def about(story: FaultHypothesis, fabric: Fabric) -> str:
    """Key of whom the story names: the same words are said once."""
    kind, entity = named(story, fabric, "")
    return f"{kind}:{entity.key}"


def named(story: FaultHypothesis, fabric: Fabric, job: str | None) -> tuple[FindingKind, Entity]:
    """Kind and entity of the finding."""
    job = job or None
    cell = int(story.cells[0])
    if story.part in _LINKS or story.part in _LOCALS:
        ranks = story.name
        assert isinstance(ranks, tuple)
        if story.part in _LOCALS:
            node = fabric.nodes[cell][0]
            return FindingKind.CONGESTION, Entity(job=job, rank=ranks[0], node=node)
        return FindingKind.CONGESTION, Entity(job=job, rank=ranks[0], peer=ranks[1])
    if story.part in _PORTS:
        assert isinstance(story.name, tuple)
        return FindingKind.NIC_DEGRADED, Entity(
            job=job, rank=story.name[0], node=_node_of(story.name[0], story, fabric)
        )
    name = str(story.name)
    if story.part in _NODES:
        return FindingKind.NIC_DEGRADED, Entity(job=job, node=name)
    if story.part is ComponentKind.WITHIN:
        return FindingKind.CONGESTION, Entity(job=job, node=name)
    return FindingKind.CONGESTION, Entity(job=job, device=name)


def _node_of(rank: int, story: FaultHypothesis, fabric: Fabric) -> str | None:
    """Where a rank of the story runs."""
    cells: list[int] = story.cells.tolist()
    ends = ((end, node) for cell in cells for end, node in zip(fabric.pairs[cell], fabric.nodes[cell], strict=True))
    return next((node for end, node in ends if int(end) == rank), None)


def finding_of(story: FaultHypothesis, fabric: Fabric, worst: Entity, time: float, drawn: Drawn) -> Finding:
    """The finding, with its evidence. ``worst``: the pair that shows it most."""
    kind, entity = named(story, fabric, worst.job)
    ratio = float(np.exp(story.effect))
    steps, seconds, usual = drawn
    series = draw_series("transfer_seconds", "s", steps, seconds, x_is="step", peers=usual)
    numbers = {"ratio": ratio, "pairs": float(len(story.cells)), "evidence_nats": story.score}
    if story.part in _LINKS and ComponentKind.SENDER in story.rivals:
        numbers["sender_possible"] = 1.0
    if story.part in _LINKS and ComponentKind.RECEIVER in story.rivals:
        numbers["receiver_possible"] = 1.0
    sure = 0.6 if story.also or (story.part in _LINKS and story.rivals) else 0.9
    return Finding(
        kind=kind,
        entity=entity,
        time=time,
        severity=Severity.WARNING,
        detector="transfer_delays",
        confidence=sure,
        evidence=Evidence(summary=_summary(story, fabric, ratio), numbers=numbers, series=series),
        recommended_action=RecommendedAction.MONITOR,
        cause=_cause(story),
    )


def _cause(story: FaultHypothesis) -> Cause:
    if story.part in _LOCALS or story.part is ComponentKind.WITHIN:
        return Cause.GPU_LINK
    return Cause.NIC if story.part in _PORTS or story.part in _NODES else Cause.NETWORK


def _summary(story: FaultHypothesis, fabric: Fabric, ratio: float) -> str:
    slower = f"{ratio:.2g} times as long as they should"
    count = len(story.cells)
    pairs = f"{count} pair{'s' if count > 1 else ''} of ranks"
    if story.part in _LINKS:
        return _link_summary(story, fabric, slower)
    if isinstance(story.name, tuple):
        rank = story.name[0]
        place = _node_of(rank, story, fabric)
        where = f" on {place}" if place else ""
        local = story.part in _LOCALS
        inside = " within its node" if local else ""
        kind = "device or its links" if local else "network port"
        whose = f"rank {rank}{where} {_SIDE[story.part]}{inside}"
        return f"Every transfer that {whose} takes {slower} ({pairs}): its {kind}."
    if story.part in _NODES:
        return f"Every transfer that {story.name} {_SIDE[story.part]} takes {slower} ({pairs}): its network port."
    if story.part is ComponentKind.WITHIN:
        return f"Transfers within {story.name} take {slower} ({pairs})."
    others = f" It may as well be {' or '.join(story.also)}: the same pairs." if story.also else ""
    return f"Transfers that {_SWITCH[story.part]} {story.name} take {slower} ({pairs}), others do not.{others}"


def _link_summary(story: FaultHypothesis, fabric: Fabric, slower: str) -> str:
    assert isinstance(story.name, tuple)
    source, target = story.name
    cell = int(story.cells[0])
    local = bool(fabric.local[cell])
    both = "between ranks" if story.part is ComponentKind.CABLE else "from rank"
    word = "and" if story.part is ComponentKind.CABLE else "to rank"
    text = f"Transfers {both} {source} {word} {target} take {slower}"
    ends = {ComponentKind.SENDER: f"the port of rank {source}", ComponentKind.RECEIVER: f"the port of rank {target}"}
    also = [words for part, words in ends.items() if part in story.rivals]
    if local:
        return f"{text}: the way between them within their node."
    if also:
        return f"{text}: the link between them, or {' or '.join(also)}, which nothing else shows."
    return f"{text}, and both do well with their other peers: the link between them."


def recovered(finding: Finding, time: float) -> Finding:
    """The finding's end."""
    return finding.ended(time, "Transfers take as long as they should again, or another finding explains them.")
