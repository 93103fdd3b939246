"""Words for what the delay matrix shows: who is named, what kind of finding it is, and how sure it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from detectors.fabric import Fabric, Part, Story
from detectors.finding import Cause, Entity, Evidence, Finding, FindingKind, Series
from probes.words import Remedy, Severity

_PORTS = {Part.SENDER: "sends", Part.RECEIVER: "receives", Part.PORT: "sends and receives"}
_NODES = {Part.NODE_SENDER: "sends", Part.NODE_RECEIVER: "receives", Part.NODE: "sends and receives"}
_LOCALS = {Part.LOCAL_SENDER: "sends", Part.LOCAL_RECEIVER: "receives", Part.LOCAL: "sends and receives"}
_LINKS = (Part.LINK, Part.CABLE)
_SWITCH = {
    Part.UPLINK: "leave upwards through",
    Part.DOWNLINK: "come down through",
    Part.CROSSING: "cross the uplinks of",
    Part.SWITCH: "pass",
}

Drawn = tuple[npt.NDArray[np.floating], npt.NDArray[np.floating], npt.NDArray[np.floating]]
"""Steps, seconds and what they should be, of the cell that shows it most."""


def about(story: Story, fabric: Fabric) -> str:
    """Key of whom the story names: the same words are said once."""
    kind, entity = named(story, fabric, "")
    return f"{kind}:{entity.key}"


def named(story: Story, fabric: Fabric, job: str | None) -> tuple[FindingKind, Entity]:
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
    if story.part is Part.WITHIN:
        return FindingKind.CONGESTION, Entity(job=job, node=name)
    return FindingKind.CONGESTION, Entity(job=job, device=name)


def _node_of(rank: int, story: Story, fabric: Fabric) -> str | None:
    """Where a rank of the story runs."""
    cells: list[int] = story.cells.tolist()
    ends = ((end, node) for cell in cells for end, node in zip(fabric.pairs[cell], fabric.nodes[cell], strict=True))
    return next((node for end, node in ends if int(end) == rank), None)


def finding_of(story: Story, fabric: Fabric, worst: Entity, time: float, drawn: Drawn) -> Finding:
    """The finding, with its evidence. ``worst``: the pair that shows it most."""
    kind, entity = named(story, fabric, worst.job)
    ratio = float(np.exp(story.effect))
    steps, seconds, usual = drawn
    shown = np.isfinite(steps) & np.isfinite(seconds) & np.isfinite(usual)
    series = Series(
        name="transfer_seconds",
        unit="s",
        x=tuple(steps[shown].astype(float).tolist()),
        y=tuple(seconds[shown].astype(float).tolist()),
        x_is="step",
        peers=tuple(usual[shown].astype(float).tolist()),
    )
    numbers = {"ratio": ratio, "pairs": float(len(story.cells)), "evidence_nats": story.score}
    if story.part in _LINKS and Part.SENDER in story.rivals:
        numbers["sender_possible"] = 1.0
    if story.part in _LINKS and Part.RECEIVER in story.rivals:
        numbers["receiver_possible"] = 1.0
    sure = 0.6 if story.also or (story.part in _LINKS and story.rivals) else 0.9
    return Finding(
        kind=kind,
        entity=entity,
        time=time,
        severity=Severity.WARNING,
        detector="delays",
        confidence=sure,
        evidence=Evidence(
            summary=_summary(story, fabric, ratio), numbers=numbers, series=(series,) if shown.any() else ()
        ),
        remedy=Remedy.WATCH,
        cause=_cause(story),
    )


def _cause(story: Story) -> Cause:
    if story.part in _LOCALS or story.part is Part.WITHIN:
        return Cause.GPU_LINK
    return Cause.NIC if story.part in _PORTS or story.part in _NODES else Cause.NETWORK


def _summary(story: Story, fabric: Fabric, ratio: float) -> str:
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
        side = _LOCALS[story.part] if local else _PORTS[story.part]
        inside = " within its node" if local else ""
        kind = "device or its links" if local else "network port"
        return f"Whatever rank {rank}{where} {side}{inside} takes {slower} ({pairs}): its {kind}."
    if story.part in _NODES:
        return f"Whatever {story.name} {_NODES[story.part]} takes {slower} ({pairs}): its network port."
    if story.part is Part.WITHIN:
        return f"Transfers within {story.name} take {slower} ({pairs})."
    others = f" It may as well be {' or '.join(story.also)}: the same pairs." if story.also else ""
    return f"Transfers that {_SWITCH[story.part]} {story.name} take {slower} ({pairs}), others do not.{others}"


def _link_summary(story: Story, fabric: Fabric, slower: str) -> str:
    assert isinstance(story.name, tuple)
    source, target = story.name
    cell = int(story.cells[0])
    local = bool(fabric.local[cell])
    both = "between ranks" if story.part is Part.CABLE else "from rank"
    word = "and" if story.part is Part.CABLE else "to rank"
    text = f"Transfers {both} {source} {word} {target} take {slower}"
    ends = {Part.SENDER: f"the port of rank {source}", Part.RECEIVER: f"the port of rank {target}"}
    also = [words for part, words in ends.items() if part in story.rivals]
    if local:
        return f"{text}: the way between them within their node."
    if also:
        return f"{text}: the link between them, or {' or '.join(also)}, which nothing else shows."
    return f"{text}, and both do well with their other peers: the link between them."


def recovered(finding: Finding, time: float) -> Finding:
    """The finding's end."""
    evidence = Evidence(summary="Transfers take as long as they should again, or another finding explains them.")
    return replace(finding, time=time, active=False, evidence=evidence)
