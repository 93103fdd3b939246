"""Where findings belong, and what nodes share that fail alike."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from mainstay.detectors.finding import Finding
from mainstay.probes.core_types import HOST_DEVICE


class SharedPlace(StrEnum):
    """What nodes may fail with, as titles name it."""

    RACK = "of rack"
    SWITCH = "under switch"
    POWER_DOMAIN = "of power domain"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetTopology:
    """Who runs where: what lets a rank's finding and its node's meet."""

    rank_node: Mapping[tuple[str, int], str] = field(default_factory=dict)
    """(job, rank) -> node."""
    rank_device: Mapping[tuple[str, int], str] = field(default_factory=dict)
    """(job, rank) -> device id."""
    node_rack: Mapping[str, str] = field(default_factory=dict)
    """Node, of a finding or of its job -> what shares power and a switch with it; absent where it is unknown."""
    node_switch: Mapping[str, str] = field(default_factory=dict)
    """node -> the nearest network switch above it; absent where it is unknown."""
    node_power_domain: Mapping[str, str] = field(default_factory=dict)
    """node -> the PDU, busway, or UPS that feeds it: part of a rack, or many racks; absent where it is unknown."""
    place_nodes: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(``SharedPlace``, name) -> how many nodes it has; absent where that is not known."""
    node_cohort: Mapping[str, str] = field(default_factory=dict)
    cohort_nodes: Mapping[str, int] = field(default_factory=dict)
    """cohort -> how many nodes it has."""
    fleet_nodes: int = 0
    """How many nodes there are; 0 where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelationConfig:
    window_seconds: float = 30.0
    """How far apart related findings may lie: nodes fail in 1.5-10 s, a peer's communication time-out and a straggler's
    confirmation take 5-30 s; two unrelated faults of one node within 30 s are rarer than one fault seen twice."""
    wide_seconds: float = 120.0
    """The same for one kind on several nodes: signals of the 10 s tier need three readings, and a rack takes minutes to
    heat up."""
    rack_nodes: int = 3
    """Nodes of a rack that make it the rack's trouble: two may be chance in a large fleet, three of sixteen are not."""
    pair_chance: float = 0.02
    """Fewer nodes of a job make it too, if so many of the struck nodes would meet in a place of the job by chance..."""
    whole_chance: float = 0.5
    """...and this many if they are all that the job has in the place: a cause that they share strikes all of them."""
    power_share: float = 0.2
    """Of a power domain's nodes, and at least ``rack_nodes``: one lost phase takes a third, any three may be chance."""
    cohort_share: float = 0.5
    """Of a cohort's nodes, and at least ``rack_nodes``: then it is what they share."""
    many_nodes: int = 16
    """So many nodes at once share a cause even in a cohort of thousands."""
    fleet_share: float = 0.5
    """Of all nodes, and at least ``many_nodes``: so many share a network, or the service receives nothing."""


class Places:
    """Where a finding belongs: its node, its device, and the jobs that it concerns."""

    def __init__(self, topology: FleetTopology, config: CorrelationConfig) -> None:
        self.topology, self.config = topology, config
        names = (topology.node_rack, topology.node_switch, topology.node_power_domain)
        self.shared = tuple(zip(SharedPlace, names, strict=True))
        self._jobs: dict[str, set[str]] = {}
        self._nodes: dict[str, set[str]] = {}
        for rank, node in topology.rank_node.items():
            self._jobs.setdefault(node, set()).add(rank[0])
            self._nodes.setdefault(rank[0], set()).add(node)
        for rank, device in topology.rank_device.items():  # each node has its own gpu0
            self._jobs.setdefault(f"{topology.rank_node.get(rank)}/{device}", set()).add(rank[0])

    def most(self, nodes: Collection[str]) -> bool:
        """Whether these are most of the fleet, and many."""
        fleet = self.topology.fleet_nodes
        return len(nodes) >= max(self.config.many_nodes, self.config.fleet_share * fleet) and fleet > 0

    def device(self, finding: Finding) -> str | None:
        entity = finding.entity
        if entity.device is not None:
            return None if entity.device == HOST_DEVICE else entity.device
        if entity.job is None or entity.rank is None:
            return None
        return self.topology.rank_device.get((entity.job, entity.rank))

    def node(self, finding: Finding) -> str | None:
        entity = finding.entity
        if entity.node is not None or entity.job is None or entity.rank is None:
            return entity.node
        return self.topology.rank_node.get((entity.job, entity.rank))

    def jobs(self, finding: Finding) -> set[str]:
        """The job it names, else those with a rank on the device, else (a whole node's trouble) on the node."""
        if finding.entity.job is not None:
            return {finding.entity.job}
        device, node = self.device(finding), self.node(finding)
        on_device = self._jobs.get(f"{node}/{device}", set()) if device else set()
        return on_device or (self._jobs.get(node, set()) if node else set())

    def have_one_cause(self, key: tuple[str, ...], nodes: Collection[str], struck: int) -> bool:
        """Whether nodes with one kind of finding, of ``struck`` nodes that have it, are enough for what they share.

        ``key`` is (what, kind, name): a ``SharedPlace`` or a cohort; or ("many", kind): nothing but the time.
        """
        config, known = self.config, self.topology
        if key[0] == "many":
            return len(nodes) >= config.many_nodes
        least = config.rack_nodes
        if key[0] == SharedPlace.POWER_DOMAIN:
            least = max(least, math.ceil(config.power_share * known.place_nodes.get((key[0], key[2]), 0)))
        if key[0] == "cohort":
            least = max(least, math.ceil(config.cohort_share * known.cohort_nodes[key[2]]))
        return len(nodes) >= least or self._meet_by_no_chance(key, nodes, struck)

    def _meet_by_no_chance(self, key: tuple[str, ...], nodes: Collection[str], struck: int) -> bool:
        """Whether two nodes or more of a job have a place in common that few, or no other, of its nodes have.

        The expected number of pairs in one place, of ``struck`` nodes that are drawn from the job's (hypergeometric).
        """
        of = next((of for place, of in self.shared if place == key[0]), None)
        if of is None or len(nodes) < 2:
            return False
        for job in set.intersection(*(self._jobs.get(node, set()) for node in nodes)):
            if math.comb(struck, 2) > self.config.whole_chance * len(self._nodes[job]):
                continue  # so many must have met: no need to count
            known = [of[node] for node in self._nodes[job] if node in of]
            here = known.count(key[2])
            most = self.config.whole_chance if here == len(nodes) else self.config.pair_chance
            if here < len(known) and math.comb(struck, 2) * (here - 1) <= most * (len(known) - 1):
                return True
        return False

    def name_common(self, nodes: Collection[str], kind: str) -> str:
        """What nodes that fail alike share, in words; empty where it is unknown or may be chance.

        The smallest place says most of where to look: the PDU of half a rack before the rack, a rack before the busway
        of ten. Of equal or unknown size, what is mostly smaller: rack, switch, power domain.
        """
        found = []
        for place, of in self.shared:
            names = {of.get(node, "") for node in nodes}
            if len(names) == 1 and (name := names.pop()):
                many = len(nodes) >= self.config.rack_nodes
                if many or self.have_one_cause((place, kind, name), nodes, len(nodes)):
                    found.append((self.topology.place_nodes.get((place, name), math.inf), f" {place} {name}"))
        return min(found, key=lambda sized: sized[0], default=(0, ""))[1]
