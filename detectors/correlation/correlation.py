"""Correlation of findings: related findings become one incident, with its likeliest root cause first.

Two findings are related when they lie close in time and either happened in the same place (device, node, or a rank that
runs there) or in the same job where one kind can bring about the other on another node: a dead process hangs its peers,
a slow one does not kill them. What strikes several nodes of a rack, switch, or power domain alike, or most nodes of a
cohort, has one cause too (``places.py``). Related findings form one group however many there are, so the outcome does
not depend on the order in which a batch came. The service owns storage; nothing is remembered here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise, product

from mainstay.detectors.correlation import finding_relations
from mainstay.detectors.correlation.places import CorrelationConfig, FleetTopology, Places
from mainstay.detectors.correlation.root_causes import finding_order, rank_causes
from mainstay.detectors.finding import ADVICE, Finding, FindingKind
from mainstay.probes.core_types import Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenIncident:
    """What correlation has to know of a stored incident that is not closed."""

    id: str
    opened_at: float
    findings: tuple[Finding, ...]
    """The latest finding of each key attached so far; of a wide incident only some of them."""
    accepts: bool = True
    """Whether new trouble may join (open, acting). A recovered one only learns that its findings cleared."""
    nodes: Mapping[FindingKind, frozenset[str]] = field(default_factory=dict)
    """Kind -> all nodes with an active finding of it, where ``findings`` holds only some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelationDecision:
    """What to do with some of the findings of a batch. Every field that the incident shows is given."""

    incident: str | None
    """The incident that they join; None to open one."""
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


def correlate(
    findings: Iterable[Finding],
    incidents: Sequence[OpenIncident],
    topology: FleetTopology,
    config: CorrelationConfig | None = None,
) -> tuple[CorrelationDecision, ...]:
    """Sort a batch of findings into incidents.

    Args:
        findings: new ones that hold, in any order; advice is left aside, repeats are attached as new evidence.
        incidents: the ones not closed.
        topology: who runs where at this time.
        config: thresholds.

    Returns:
        Decisions in order of their first finding. Applied in order they touch disjoint findings.
    """
    config = config or CorrelationConfig()
    places = Places(topology, config)
    batch = sorted((f for f in findings if f.active and f.kind not in ADVICE), key=finding_order)
    groups = _Groups(places)
    for incident in (i for i in incidents if i.accepts):
        groups.add_incident(incident)
    for finding in batch:
        groups.add_finding(finding)
    decisions = [_decide(new, joined, places) for new, joined in groups.result()]
    return tuple(decision for decision in decisions if decision is not None)


class _Groups:
    """Connected components of findings and open incidents."""

    def __init__(self, places: Places) -> None:
        self._places, self._config, self._window = places, places.config, places.config.window_seconds
        self._wide: dict[tuple[str, ...], list[tuple[float, int, str]]] = {}
        self._parent: list[int] = []
        self._item: list[Finding | OpenIncident] = []
        self._same: dict[tuple[str, ...], int] = {}
        self._near: dict[tuple[str, ...], list[tuple[float, int]]] = {}
        self._mute: dict[str, int] = {}
        self._of_device: dict[str, list[int]] = {}
        self._at: dict[str, list[tuple[Finding, int]]] = {}

    def add_incident(self, incident: OpenIncident) -> None:
        root = self._new(incident)
        for finding in incident.findings:
            if finding.active:
                self._enter(finding, root)

    def add_finding(self, finding: Finding) -> None:
        self._enter(finding, self._new(finding))

    def _new(self, item: Finding | OpenIncident) -> int:
        self._parent.append(len(self._parent))
        self._item.append(item)
        return len(self._parent) - 1

    def _enter(self, finding: Finding, item: int) -> None:
        """Link by identity at once; note place and job, which link by time in the end."""
        self._join(item, self._same.setdefault((finding.about,), item))
        device, node = self._places.device(finding), self._places.node(finding)
        if node is not None and finding.kind in finding_relations.SHARED:
            self._enter_wide(finding, node, item)
        if device is not None:
            self._enter_device(finding, f"{node}/{device}", item)
        if node is not None:
            self._at.setdefault(node, []).append((finding, item))
        keys = [("device", f"{node}/{device}")] if device else []
        keys += [("node", node)] if node else []
        for job in self._places.jobs(finding):
            keys += [("stops", job)] if finding.kind in finding_relations.STOPS else []
            keys += [("sickens", job)] if finding.kind in finding_relations.SICKENS else []
            keys += [("slowed", job)] if finding.kind is FindingKind.JOB_SLOWDOWN else []
            keys += [("slows", job)] if finding.kind in finding_relations.SLOWS else []
        for key in keys:
            self._near.setdefault(key, []).append((finding.time, item))

    def _enter_wide(self, finding: Finding, node: str, item: int) -> None:
        """Note what nodes of a rack, switch, power domain, or cohort, and any nodes at all may have in common."""
        known, shared = self._places.topology, self._places.shared
        keys: list[tuple[str, ...]] = [(place, finding.kind, name) for place, of in shared if (name := of.get(node))]
        cohort = known.node_cohort.get(node, "")
        keys += [("cohort", finding.kind, cohort)] if known.cohort_nodes.get(cohort) else []
        for key in (*keys, ("many", finding.kind)):
            self._wide.setdefault(key, []).append((finding.time, item, node))

    def _enter_device(self, finding: Finding, device: str, item: int) -> None:
        """Join a device that stopped reporting with its other findings, at any distance in time."""
        if finding.kind in finding_relations.MUTE:
            for other in self._of_device.get(device, ()):
                self._join(item, other)
            self._mute.setdefault(device, item)
        if device in self._mute:
            self._join(item, self._mute[device])
        self._of_device.setdefault(device, []).append(item)

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
        self._link_explained()
        for key, entries in self._wide.items():
            self._link_wide(key, sorted(entries))
        members: dict[int, tuple[list[Finding], list[OpenIncident]]] = {}
        for index, item in enumerate(self._item):
            new, joined = members.setdefault(self._find(index), ([], []))
            if isinstance(item, Finding):
                new.append(item)
            else:
                joined.append(item)
        groups = [(new, sorted(joined, key=lambda i: (i.opened_at, i.id))) for new, joined in members.values() if new]
        return sorted(groups, key=lambda group: finding_order(group[0][0]))

    def _link_by_time(self) -> None:
        for (what, job), entries in self._near.items():
            if what == "slows":
                continue  # possible causes of a slowdown do not link one another; the slowdown is their hub
            if what == "slowed":
                self._link_hubs(entries, self._near.get(("slows", job), []))
            for (t0, one), (t1, two) in pairwise(sorted(entries)):
                if t1 - t0 <= self._window:
                    self._join(one, two)

    def _link_explained(self) -> None:
        """Join what holds on a rank with what explains it there, though longer ago than related things usually lie.

        A cause that is reported a little after its effect is on the same node and linked by time.
        """
        for entries in self._at.values():
            for effect, item in (e for e in entries if e[0].kind in finding_relations.EXPLAINS):
                place, within = self._places.device(effect), finding_relations.EXPLAINS[effect.kind]
                for cause, other in entries:
                    where = self._places.device(cause)
                    near = 0.0 <= effect.time - cause.time <= within.get(cause.kind, -math.inf)
                    if near and (where is None or place is None or where == place):
                        self._join(item, other)

    def _link_wide(self, key: tuple[str, ...], entries: list[tuple[float, int, str]]) -> None:
        """Join what lies close in time if it strikes enough nodes, and what joins such a story later."""
        start, wide = 0, []
        struck = len({node for _, _, node in self._wide["many", key[1]]})
        for stop in range(1, len(entries) + 1):
            if stop < len(entries) and entries[stop][0] - entries[stop - 1][0] <= self._config.wide_seconds:
                continue
            if self._places.have_one_cause(key, {node for _, _, node in entries[start:stop]}, struck):
                wide.append(entries[start:stop])
            start = stop
        for cluster in wide:
            for _, item, _ in cluster:
                self._join(cluster[0][1], item)
        self._link_latecomers(key, entries)

    def _link_latecomers(self, key: tuple[str, ...], entries: list[tuple[float, int, str]]) -> None:
        """An open incident that is wide already takes in whoever follows while it holds."""
        nodes: dict[int, set[str]] = {}
        for _, item, node in entries:
            if isinstance(self._item[item], OpenIncident):
                nodes.setdefault(item, set()).add(node)
        hub = next((i for i in sorted(nodes) if self._places.have_one_cause(key, nodes[i], len(nodes[i]))), None)
        if hub is not None:
            for _, item, _ in entries:
                self._join(hub, item)

    def _link_hubs(self, hubs: list[tuple[float, int]], around: list[tuple[float, int]]) -> None:
        for (time, hub), (other_time, other) in product(hubs, around):
            if abs(other_time - time) <= self._window:
                self._join(hub, other)


def _decide(new: list[Finding], joined: list[OpenIncident], places: Places) -> CorrelationDecision | None:
    """Open, or attach to the oldest; mere information opens nothing."""
    if not joined and all(finding.severity is Severity.INFO for finding in new):
        return None
    causes = rank_causes([*chain.from_iterable(incident.findings for incident in joined), *new])
    root = causes[0]
    jobs = (job for finding in causes for job in sorted(places.jobs(finding)))
    struck = frozenset[str]().union(*(incident.nodes.get(root.kind, ()) for incident in joined))
    title, wide = _title(root, causes, struck, places)
    opened = [incident.id for incident in joined]
    node, device = (None, None) if wide else (places.node(root), places.device(root))
    return CorrelationDecision(
        incident=next(iter(opened), None),
        also=tuple(opened[1:]),
        findings=tuple(new),
        causes=causes,
        severity=Severity.CRITICAL if Severity.CRITICAL in {f.severity for f in causes} else root.severity,
        title=title,
        job=next(jobs, None),
        node=node,
        device=device,
        ranks=tuple(sorted({f.entity.rank for f in causes if f.entity.rank is not None})),
        kinds=tuple(dict.fromkeys(f.kind for f in causes)),
    )


def _title(root: Finding, causes: Sequence[Finding], struck: Collection[str], places: Places) -> tuple[str, bool]:
    """The likeliest cause in a sentence, and how many it struck alike; whether those are several nodes."""
    alike = [f for f in causes if f.kind is root.kind]
    nodes = {node for f in alike if (node := places.node(f)) is not None} | set(struck)
    devices = {device for f in alike if (device := places.device(f)) is not None}
    text = root.evidence.summary
    shared = places.name_common(nodes, root.kind) if root.kind in finding_relations.SHARED and len(nodes) > 1 else ""
    if shared or (root.kind in finding_relations.SHARED and len(nodes) >= places.config.rack_nodes):
        if root.kind in finding_relations.SILENCE and places.most(nodes):
            return (
                f"{len(nodes)} of {places.topology.fleet_nodes} nodes are silent at once: check the network between"
                " them and Mainstay, and the service itself, before the nodes."
            ), True
        return f"{len(nodes)} nodes{shared}: {text}", True
    if len(nodes) == 1 and len(devices) > 1:
        return f"{len(devices)} devices of {nodes.pop()}: {text}", False
    return text, False
