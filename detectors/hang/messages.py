"""Messages of the hang detector: the entity, the text, and the confidence of a hang localization."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mainstay.detectors.base import Bools, Samples
from mainstay.detectors.finding import Cause, FindingKind, join_names
from mainstay.detectors.hang.wait_graph import GroupProgress, HangCulprit, HangLocalization, StallKind
from mainstay.probes.core_types import StepPhase

_SHOWN = 8
"""Ranks or nodes named in a sentence; the rest is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HangVerdict:
    """Rows to blame with sentence and numbers; or the job."""

    rows: dict[int, tuple[str, dict[str, float]]] = field(default_factory=dict)
    """Row to blame -> sentence and numbers."""
    kind: FindingKind | None = None
    """Kind of the job's own finding, or None."""
    summary: str = ""
    numbers: dict[str, float] = field(default_factory=dict)
    confidence: float
    cause: Cause | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    place: HangLocalization
    progress: GroupProgress
    samples: Samples
    how_long: str
    numbers: dict[str, float]
    phase: StepPhase
    kept: Bools


def verdict(
    place: HangLocalization,
    progress: GroupProgress,
    samples: Samples,
    *,
    quiet: float,
    limit: float,
    phase: StepPhase,
    kept: Bools,
    most: int,
) -> HangVerdict:
    """Describe a hang localization; up to ``most`` culprits are blamed one by one.

    ``kept`` [E] are the ranks that are still in ``phase`` while others have returned to training.
    """
    where = "" if phase is StepPhase.TRAIN else f" in phase {phase.name.lower()}"
    case = _Case(
        place=place,
        progress=progress,
        samples=samples,
        how_long=f"nothing was completed{where} for {quiet:.1f} s (limit {limit:.1f} s)",
        numbers={"quiet_seconds": quiet, "limit_seconds": limit, "phase": float(phase)},
        phase=phase,
        kept=kept,
    )
    if 0 < len(place.culprits) <= most:
        return _blame(case)
    if place.culprits:
        return _many(case)
    if place.stall is StallKind.TRANSPORT:
        return _transport(case)
    return _nobody(case)


def _blame(case: _Case) -> HangVerdict:
    row_of = {entity.rank: row for row, entity in enumerate(case.samples.entities)}
    rows = {row_of[c.rank]: _of_rank(case, c, row_of[c.rank]) for c in case.place.culprits if c.rank in row_of}
    sure = all(c.sure for c in case.place.culprits)
    many = len(rows) > 0.5 * len(case.samples.entities)  # most of a job at fault is likelier a fault of its reports
    # 0.95: the graph of waiting is a proof but for lost or stuck reports; 0.6: the lag rule is a likelihood.
    confidence = 0.6 if not sure else 0.7 if many else 0.95
    return HangVerdict(rows=rows, confidence=confidence)


def _of_rank(case: _Case, c: HangCulprit, row: int) -> tuple[str, dict[str, float]]:
    entity = case.samples.entities[row]
    where = f" on {entity.node}" if entity.node else ""
    kind = "" if c.group is None else case.progress.kinds[c.group]
    waits = f"{c.waiting} rank{'s' if c.waiting != 1 else ''} wait{'s' if c.waiting == 1 else ''} for it in {kind}"
    tail = f"{waits}; {case.how_long}" if c.waiting and kind else case.how_long
    numbers = {"waiting_ranks": float(c.waiting), **case.numbers}
    behind = {"behind_entered": c.behind_entered, "behind_completed": c.behind_completed}
    numbers |= {name: value for name, value in behind.items() if np.isfinite(value)}
    why = _why(c, kind)
    if case.kept[row] and c.stall is not StallKind.SILENT:
        why = f"has not returned from phase {case.phase.name.lower()}, which others have left"
    return f"Rank {c.rank}{where} {why}; {tail}.", numbers


def _why(c: HangCulprit, kind: str) -> str:
    if c.stall is StallKind.SILENT:
        return (
            "stopped reporting while others report"
            if c.sure
            else "does not report, and no other rank explains the hang"
        )
    if c.waiting and np.isfinite(c.behind_entered):
        calls = f"{c.behind_entered:.0f} collective{'s' if c.behind_entered != 1 else ''}"
        return f"holds up the job, {calls} behind its {kind} group"
    return "holds up the job: it is in no collective while others are"


def _many(case: _Case) -> HangVerdict:
    count = len(case.place.culprits)
    first = ", ".join(str(c.rank) for c in case.place.culprits[:_SHOWN])
    silent = sum(c.stall is StallKind.SILENT for c in case.place.culprits)
    return HangVerdict(
        kind=FindingKind.NONCOMM_HANG,
        summary=f"{count} ranks hold up the job ({first}, …), {silent} of them silent; {case.how_long}.",
        numbers={"culprits": float(count), "silent": float(silent), **case.numbers},
        confidence=0.6,
    )


def _transport(case: _Case) -> HangVerdict:
    groups = case.place.groups
    members = sorted(int(rank) for rank in case.progress.rank[case.progress.group == groups[0]])
    node_of = {entity.rank: entity.node for entity in case.samples.entities}
    nodes = sorted({node for rank in members if (node := node_of.get(rank)) is not None})
    kind = case.progress.kinds[groups[0]]
    places = f" on {join_names(nodes, _SHOWN)}" if nodes else ""
    suspect = "a link or NIC between them" if len(nodes) > 1 else "the links within it"
    return HangVerdict(
        kind=FindingKind.COMM_HANG,
        summary=f"All {len(members)} ranks of a {kind} group ({join_names(members, _SHOWN)}){places} are inside "
        f"the same call and none leaves it: look at {suspect}; {case.how_long}.",
        numbers={"members": float(len(members)), "nodes": float(len(nodes)), "groups": float(len(groups))}
        | case.numbers,
        # 0.7 where one group explains it all; several stuck alike may have a cause that the counters do not show
        confidence=0.7 if len(groups) == 1 else 0.5,
        cause=Cause.NETWORK if len(nodes) > 1 else Cause.GPU_LINK if nodes else None,
    )


def _nobody(case: _Case) -> HangVerdict:
    if case.place.stall is StallKind.CIRCLE:
        text = "Ranks wait for one another in a circle, which an order of collectives that differs does"
        return HangVerdict(
            kind=FindingKind.COMM_HANG,
            summary=f"{text} (flight-recorder dumps prove it); {case.how_long}.",
            numbers=case.numbers,
            confidence=0.6,
            cause=Cause.SOFTWARE,
        )
    return HangVerdict(
        kind=FindingKind.NONCOMM_HANG,
        summary=f"The job stands still and no rank stands out; {case.how_long}.",
        numbers=case.numbers,
        confidence=0.5,
    )
