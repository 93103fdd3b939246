"""Findings that tell of one thing become one incident; its root cause is ranked first. Data in, decisions out.

Two findings are related when they lie close in time and either happened in the same place (device, node, or a rank that
runs there) or in the same job where one kind can bring about the other elsewhere: a dead process hangs its peers, a
slow one does not kill them. Related findings form one group however many there are, so the outcome does not depend
on the order in which a batch came. The service owns storage; nothing is remembered here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from detectors.finding import ADVICE, Finding, FindingKind
from probes.words import HOST_DEVICE, Severity

_K = FindingKind

_DEPTH: tuple[frozenset[FindingKind], ...] = (
    # From cause to symptom, as in the fault catalogue: what stands earlier explains what stands later.
    frozenset({_K.NODE_LOST}),
    frozenset({_K.GPU_LOST, _K.ECC_UNCORRECTABLE}),
    frozenset({_K.XID, _K.ROW_REMAP, _K.NVLINK_ERRORS, _K.NIC_DEGRADED, _K.PCIE_DEGRADED}),
    frozenset({_K.THERMAL_THROTTLE, _K.POWER_BRAKE, _K.CPU_CONTENTION, _K.MEMORY_LEAK, _K.CONGESTION}),
    frozenset({_K.SIGNAL_OUTLIER, _K.LEMON_NODE}),
    frozenset({_K.PROCESS_EXIT, _K.COLLECTIVE_MISMATCH, _K.SDC_SUSPECT}),
    frozenset({_K.NAN, _K.DATA_STALL, _K.COMPUTE_SLOW}),
    frozenset({_K.NONCOMM_HANG, _K.COMM_HANG, _K.LOSS_SPIKE}),
    frozenset({_K.PROBE_SILENT, _K.JOB_SLOWDOWN}),
)
_RANK = {kind: depth for depth, kinds in enumerate(_DEPTH) for kind in kinds}

_STOPS = frozenset(
    {_K.NODE_LOST, _K.GPU_LOST, _K.ECC_UNCORRECTABLE, _K.XID, _K.NIC_DEGRADED, _K.NVLINK_ERRORS}
    | {_K.PROCESS_EXIT, _K.COLLECTIVE_MISMATCH, _K.COMM_HANG, _K.NONCOMM_HANG}
)
"""What stops a rank stops its whole job within a time-out, so any two of these in one job are one story."""
_SICKENS = frozenset({_K.NAN, _K.SDC_SUSPECT, _K.LOSS_SPIKE})
"""A bad value spreads with the next all-reduce."""
_SLOWS = frozenset(
    {_K.COMPUTE_SLOW, _K.CONGESTION, _K.NIC_DEGRADED, _K.NVLINK_ERRORS, _K.DATA_STALL, _K.CPU_CONTENTION}
    | {_K.THERMAL_THROTTLE, _K.POWER_BRAKE, _K.PCIE_DEGRADED}
)
"""Each explains a slowdown of its job; two slow ranks on different nodes explain nothing of one another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Who runs where: what lets a rank's finding and its node's meet."""

    rank_node: Mapping[tuple[str, int], str] = field(default_factory=dict)
    """(job, rank) -> node."""
    rank_device: Mapping[tuple[str, int], str] = field(default_factory=dict)
    """(job, rank) -> device id."""
    device_node: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenIncident:
    """What correlation has to know of a stored incident that is not closed."""

    id: str
    opened_at: float
    findings: tuple[Finding, ...]
    """The latest finding of each key attached so far."""
    accepts: bool = True
    """Whether new trouble may join (open, acting). A recovered one only learns that its findings cleared."""


class Verb(StrEnum):
    OPEN = "open"
    ATTACH = "attach"
    CLEAR = "clear"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do with some of the findings of a batch. Every field that the incident shows is given."""

    verb: Verb
    incident: str | None
    """The incident to change; None to open one."""
    findings: tuple[Finding, ...]
    """New findings to attach, in order of time."""
    also: tuple[str, ...] = ()
    """Other open incidents that turn out to be the same thing, younger than ``incident``."""
    causes: tuple[Finding, ...] = ()
    """All active findings of the incident, likeliest root cause first."""
    severity: Severity = Severity.WARNING
    title: str = ""
    job: str | None = None
    node: str | None = None
    device: str | None = None
    ranks: tuple[int, ...] = ()
    kinds: tuple[FindingKind, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    window_seconds: float = 30.0
    """How far apart related findings may lie: nodes fail in 1.5-10 s, a peer's communication time-out and a straggler's
    confirmation take 5-30 s; two unrelated faults of one node within 30 s are rarer than one fault seen twice."""


def correlate(
    findings: Iterable[Finding],
    incidents: Sequence[OpenIncident],
    topology: Topology,
    config: Config | None = None,
) -> tuple[Decision, ...]:
    """Sort a batch of findings into incidents.

    Args:
        findings: new ones in any order; advice is left aside, repeats are attached as new evidence.
        incidents: the ones not closed.
        topology: who runs where at this time.
        config: thresholds.

    Returns:
        Decisions in order of their first finding; clears last. Applied in order they touch disjoint findings.
    """
    places = _Places(topology)
    batch = sorted((f for f in findings if f.kind not in ADVICE), key=_order)
    groups = _Groups(places, (config or Config()).window_seconds)
    for incident in (i for i in incidents if i.accepts):
        groups.add_incident(incident)
    for finding in batch:
        if finding.active:
            groups.add(finding)
    decisions = [_decide(new, joined, places) for new, joined in groups.result()]
    return (*(d for d in decisions if d is not None), *_clears(batch, incidents))


def rank_causes(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Active findings, likeliest root cause first: by depth of kind, then severity, time, confidence and key."""
    return tuple(
        sorted(
            (f for f in findings if f.active),
            key=lambda f: (_depth(f), f.severity is not Severity.CRITICAL, f.time, -f.confidence, f.key),
        )
    )


def _depth(finding: Finding) -> int:
    return _RANK.get(finding.kind, len(_DEPTH))


def _order(finding: Finding) -> tuple[float, str, bool, str]:
    return (finding.time, finding.key, not finding.active, finding.detector)


class _Places:
    """Where a finding belongs: its node, its device, and the jobs that it concerns."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._jobs: dict[str, set[str]] = {}
        for table in (topology.rank_node, topology.rank_device):
            for (job, _rank), place in table.items():
                self._jobs.setdefault(place, set()).add(job)

    def device(self, finding: Finding) -> str | None:
        entity = finding.entity
        if entity.device is not None:
            return None if entity.device == HOST_DEVICE else entity.device
        if entity.job is None or entity.rank is None:
            return None
        return self._topology.rank_device.get((entity.job, entity.rank))

    def node(self, finding: Finding) -> str | None:
        entity = finding.entity
        if entity.node is not None:
            return entity.node
        if entity.job is not None and entity.rank is not None:
            return self._topology.rank_node.get((entity.job, entity.rank))
        return None if entity.device is None else self._topology.device_node.get(entity.device)

    def jobs(self, finding: Finding) -> set[str]:
        """The job it names, else those with a rank on the device, else (a whole node's trouble) on the node."""
        if finding.entity.job is not None:
            return {finding.entity.job}
        device, node = self.device(finding), self.node(finding)
        on_device = self._jobs.get(device, set()) if device else set()
        return on_device or (self._jobs.get(node, set()) if node else set())


class _Groups:
    """Connected components of findings and open incidents."""

    def __init__(self, places: _Places, window: float) -> None:
        self._places, self._window = places, window
        self._parent: list[int] = []
        self._item: list[Finding | OpenIncident] = []
        self._same: dict[tuple[str, ...], int] = {}
        self._near: dict[tuple[str, ...], list[tuple[float, int]]] = {}

    def add_incident(self, incident: OpenIncident) -> None:
        root = self._new(incident)
        for finding in incident.findings:
            if finding.active:
                self._enter(finding, root)

    def add(self, finding: Finding) -> None:
        self._enter(finding, self._new(finding))

    def _new(self, item: Finding | OpenIncident) -> int:
        self._parent.append(len(self._parent))
        self._item.append(item)
        return len(self._parent) - 1

    def _enter(self, finding: Finding, item: int) -> None:
        """Link by identity at once; note place and job, which link by time in the end."""
        self._join(item, self._same.setdefault((finding.key,), item))
        device, node = self._places.device(finding), self._places.node(finding)
        keys = [("device", device)] if device else []
        keys += [("node", node)] if node else []
        for job in self._places.jobs(finding):
            keys += [("stops", job)] if finding.kind in _STOPS else []
            keys += [("sickens", job)] if finding.kind in _SICKENS else []
            keys += [("slowed", job)] if finding.kind is _K.JOB_SLOWDOWN else []
            keys += [("slows", job)] if finding.kind in _SLOWS else []
        for key in keys:
            self._near.setdefault(key, []).append((finding.time, item))

    def _find(self, item: int) -> int:
        while self._parent[item] != item:
            self._parent[item] = item = self._parent[self._parent[item]]
        return item

    def _join(self, a: int, b: int) -> None:
        low, high = sorted((self._find(a), self._find(b)))
        self._parent[high] = low

    def result(self) -> list[tuple[list[Finding], list[OpenIncident]]]:
        """Groups with at least one new finding, in order of the first; incidents oldest first."""
        self._link_by_time()
        members: dict[int, tuple[list[Finding], list[OpenIncident]]] = {}
        for index, item in enumerate(self._item):
            new, joined = members.setdefault(self._find(index), ([], []))
            if isinstance(item, Finding):
                new.append(item)
            else:
                joined.append(item)
        groups = [(new, sorted(joined, key=lambda i: (i.opened_at, i.id))) for new, joined in members.values() if new]
        return sorted(groups, key=lambda group: _order(group[0][0]))

    def _link_by_time(self) -> None:
        for (what, job), entries in self._near.items():
            if what == "slows":
                continue  # possible causes of a slowdown do not link one another; the slowdown is their hub
            if what == "slowed":
                self._link_hubs(entries, self._near.get(("slows", job), []))
            for (t0, one), (t1, two) in pairwise(sorted(entries)):
                if t1 - t0 <= self._window:
                    self._join(one, two)

    def _link_hubs(self, hubs: list[tuple[float, int]], around: list[tuple[float, int]]) -> None:
        for time, hub in hubs:
            for other_time, other in around:
                if abs(other_time - time) <= self._window:
                    self._join(hub, other)


def _decide(new: list[Finding], joined: list[OpenIncident], places: _Places) -> Decision | None:
    """Open, or attach to the oldest; mere information opens nothing."""
    if not joined and all(finding.severity is Severity.INFO for finding in new):
        return None
    causes = rank_causes([f for incident in joined for f in incident.findings] + new)
    root = causes[0]
    jobs = [sorted(places.jobs(f)) for f in causes]
    ranks = {f.entity.rank for f in causes if f.entity.rank is not None}
    return Decision(
        verb=Verb.ATTACH if joined else Verb.OPEN,
        incident=joined[0].id if joined else None,
        also=tuple(incident.id for incident in joined[1:]),
        findings=tuple(new),
        causes=causes,
        severity=Severity.CRITICAL if any(f.severity is Severity.CRITICAL for f in causes) else root.severity,
        title=root.evidence.summary,
        job=next((job for names in jobs for job in names), None),
        node=places.node(root),
        device=places.device(root),
        ranks=tuple(sorted(ranks)),
        kinds=tuple(dict.fromkeys(f.kind for f in causes)),
    )


def _clears(batch: list[Finding], incidents: Sequence[OpenIncident]) -> list[Decision]:
    """What no longer holds, told to every incident that holds it, recovered ones too."""
    decisions = []
    for incident in sorted(incidents, key=lambda i: (i.opened_at, i.id)):
        held = {finding.key for finding in incident.findings if finding.active}
        ended = tuple(finding for finding in batch if not finding.active and finding.key in held)
        if ended:
            decisions.append(Decision(verb=Verb.CLEAR, incident=incident.id, findings=ended))
    return decisions
