"""Up to which distance in time, and from how many nodes on, findings are one incident."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mainstay.detectors.correlation.correlation import OpenIncident, correlate
from mainstay.detectors.correlation.places import FleetTopology, SharedPlace
from mainstay.detectors.correlation.root_causes import finding_order, rank_causes
from mainstay.detectors.finding import Cause, Entity, Evidence, Finding, FindingKind
from mainstay.probes.core_types import Severity

K = FindingKind
RACKS = FleetTopology(
    node_rack={f"n{i}": f"r{i // 4}" for i in range(64)},
    node_cohort={f"n{i}": "pod" if i < 40 else "small" for i in range(44)},
    cohort_nodes={"pod": 40, "small": 4},
)


def finding(kind: K, time: float = 100.0, *, severity: Severity = Severity.WARNING, **entity: Any) -> Finding:
    return Finding(
        kind=kind, entity=Entity(**entity), time=time, severity=severity, detector="test", confidence=0.9,
        evidence=Evidence(summary=f"{kind} happened."),
    )  # fmt: skip


def on(node: int, time: float = 100.0, kind: K = K.POWER_BRAKE) -> Finding:
    return finding(kind, time, node=f"n{node}")


def sizes_of_incidents(*findings: Finding, topology: FleetTopology = RACKS) -> list[int]:
    """How many findings each incident has."""
    return sorted(len(decision.findings) for decision in correlate(findings, (), topology))


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ((100.0, 220.0, 340.0), [3]),  # two minutes from one to the next
        ((100.0, 220.0, 340.1), [1, 1, 1]),
        ((100.0, 100.0, 100.0, 220.1), [1, 3]),
        ((100.0, 220.1, 221.0, 222.0), [1, 3]),
    ],
)
def test_nodes_of_a_rack_within_two_minutes_of_each_other(times: tuple[float, ...], expected: list[int]) -> None:
    assert sizes_of_incidents(*(on(node, time) for node, time in enumerate(times))) == expected


@pytest.mark.parametrize(
    ("nodes", "together"),
    [
        (range(0, 40, 4), False),  # ten of forty, each in a rack of its own
        ([*range(0, 40, 4), *range(1, 20, 4)], False),  # fifteen
        ([*range(0, 40, 4), *range(1, 24, 4)], True),  # sixteen share a cause anywhere
        ((40, 41), False),  # half of a cohort of four, which are too few
        ((40, 41, 42), True),
        ((0, 1, 4, 5), False),
    ],
)
def test_how_many_nodes_share_a_cause(nodes: range | list[int], together: bool) -> None:
    bare = replace(RACKS, node_rack={}) if max(nodes) >= 40 else RACKS
    found = sizes_of_incidents(*(on(node) for node in nodes), topology=bare)
    assert found == ([len(nodes)] if together else [1] * len(nodes))


@pytest.mark.parametrize(("size", "struck", "together"), [(30, 15, True), (31, 15, False), (8, 4, True), (8, 3, False)])
def test_half_of_a_cohort_rounded_up(size: int, struck: int, together: bool) -> None:
    topology = FleetTopology(node_cohort={f"n{i}": "pod" for i in range(size)}, cohort_nodes={"pod": size})
    assert (len(sizes_of_incidents(*(on(node) for node in range(struck)), topology=topology)) == 1) is together


@pytest.mark.parametrize(
    ("struck", "fleet", "silent"), [(16, 32, True), (16, 33, False), (16, 16, True), (16, 0, False), (17, 33, True)]
)
def test_half_of_the_fleet_and_sixteen_nodes_are_the_network(struck: int, fleet: int, silent: bool) -> None:
    lost = [on(node, kind=K.NODE_LOST) for node in range(struck)]
    (decision,) = correlate(lost, (), FleetTopology(fleet_nodes=fleet))
    assert decision.title.startswith(f"{struck} of {fleet} nodes are silent") is silent
    (other,) = correlate([on(node) for node in range(struck)], (), FleetTopology(fleet_nodes=fleet))
    assert other.title == f"{struck} nodes: power_brake happened.", "they still report"


@pytest.mark.parametrize(
    ("nodes", "place"),
    [((0, 1, 2), " of rack r0"), ((0, 1, 4), " under switch s"), ((0, 1, 9), "")],
)
def test_what_the_nodes_share_is_named(nodes: tuple[int, ...], place: str) -> None:
    topology = FleetTopology(
        node_rack={f"n{i}": f"r{i // 4}" for i in range(9)}, node_switch={f"n{i}": "s" for i in range(9)},
        node_cohort={f"n{i}": "pod" for i in range(10)}, cohort_nodes={"pod": 6},
    )  # fmt: skip
    (decision,) = correlate([on(node) for node in nodes], (), topology)
    assert decision.title == f"3 nodes{place}: power_brake happened."


PDU = FleetTopology(
    node_rack={f"n{i}": f"r{i}" for i in range(20)}, node_switch={f"n{i}": f"s{i}" for i in range(20)},
    node_power_domain={f"n{i}": "pdu-1" if i < 8 else "pdu-2" for i in range(16)},
)  # fmt: skip


def test_nodes_of_one_power_domain_in_different_racks_and_under_different_switches() -> None:
    lost = [on(node, kind=K.NODE_LOST) for node in range(5)]
    (decision,) = correlate(lost, (), PDU)
    assert (decision.title, decision.node) == ("5 nodes of power domain pdu-1: node_lost happened.", None)
    held = OpenIncident(id="i", opened_at=100.0, findings=tuple(lost))
    of_domain, of_other = correlate([on(5, 9000.0, K.NODE_LOST), on(9, 9000.0, K.NODE_LOST)], (held,), PDU)
    assert (of_domain.incident, of_other.incident) == ("i", None)


@pytest.mark.parametrize("nodes", [(0, 1), (6, 7, 8, 9), (16, 17, 18, 19)], ids=["two", "two domains", "unknown"])
def test_what_one_power_domain_does_not_explain(nodes: tuple[int, ...]) -> None:
    assert sizes_of_incidents(*(on(node) for node in nodes), topology=PDU) == [1] * len(nodes)


@pytest.mark.parametrize(("size", "struck", "together"), [(8, 3, True), (15, 3, True), (16, 3, False), (16, 4, True)])
def test_a_fifth_of_a_power_domain_and_three_nodes(size: int, struck: int, together: bool) -> None:
    topology = replace(PDU, place_nodes={(SharedPlace.POWER_DOMAIN, "pdu-1"): size})
    assert (len(sizes_of_incidents(*(on(node) for node in range(struck)), topology=topology)) == 1) is together


@pytest.mark.parametrize(
    ("rack", "switch", "domain", "place"),
    [
        (8, 64, 4, "of power domain p"),  # a PDU feeds half of the rack
        (8, 64, 160, "of rack r"),  # a busway feeds ten racks
        (8, 64, 8, "of rack r"),
        (0, 16, 160, "under switch s"),
        (0, 160, 16, "of power domain p"),
        (0, 16, 16, "under switch s"),
    ],
)
def test_the_smallest_place_that_all_share_is_named(rack: int, switch: int, domain: int, place: str) -> None:
    """Rack 0: each node has its own."""
    names = [f"n{i}" for i in range(4)]
    sizes = zip(SharedPlace, "rsp", (rack, switch, domain), strict=True)
    topology = FleetTopology(
        node_rack={name: "r" if rack else f"r{name}" for name in names}, node_switch=dict.fromkeys(names, "s"),
        node_power_domain=dict.fromkeys(names, "p"), place_nodes={(what, name): size for what, name, size in sizes},
    )  # fmt: skip
    (decision,) = correlate([on(node) for node in range(4)], (), topology)
    assert decision.title == f"4 nodes {place}: power_brake happened."


def test_two_nodes_of_an_open_incident_do_not_make_it_wide() -> None:
    held = OpenIncident(id="i", opened_at=100.0, findings=(on(0), on(1)))
    (late,) = correlate([on(2, 9000.0)], (held,), RACKS)
    assert late.incident is None
    wide = replace(held, findings=(on(0), on(1), on(2)))
    (joins,) = correlate([on(3, 9000.0)], (wide,), RACKS)
    assert joins.incident == "i"


JOBS = FleetTopology(
    rank_node={("j", 0): "a", ("j", 1): "b", ("k", 0): "b"},
    rank_device={("j", 0): "gpu0", ("j", 1): "gpu0", ("k", 0): "gpu1"},
)


def job_of(found: Finding) -> tuple[str | None, str | None, str | None]:
    (decision,) = correlate([found], (), JOBS)
    return decision.job, decision.node, decision.device


@pytest.mark.parametrize(
    ("entity", "expected"),
    [
        ({"node": "b", "device": "gpu0"}, ("j", "b", "gpu0")),  # each node has its own gpu0
        ({"node": "b", "device": "gpu1"}, ("k", "b", "gpu1")),
        ({"node": "b"}, ("j", "b", None)),
        ({"node": "a", "device": "gpu0"}, ("j", "a", "gpu0")),
        ({"node": "b", "device": "host"}, ("j", "b", None)),
        ({"job": "k", "rank": 0}, ("k", "b", "gpu1")),
        ({"job": "k", "rank": 9}, ("k", None, None)),
        ({"node": "z", "device": "gpu0"}, (None, "z", "gpu0")),
    ],
)
def test_where_a_finding_belongs(entity: dict[str, Any], expected: tuple[str | None, ...]) -> None:
    assert job_of(finding(K.XID, **entity)) == expected


@pytest.mark.parametrize(("distance", "together"), [(30.0, True), (30.1, False), (-30.0, True), (-30.1, False)])
def test_a_slowdown_is_the_hub_of_what_lies_within_half_a_minute(distance: float, together: bool) -> None:
    slow = finding(K.JOB_SLOWDOWN, 100.0, job="j")
    cause = finding(K.STRAGGLER, 100.0 + distance, job="j", rank=1)
    assert sizes_of_incidents(slow, cause, topology=JOBS) == ([2] if together else [1, 1])


@pytest.mark.parametrize(
    ("cause", "before", "together"),
    [
        (K.XID, 600.0, True),
        (K.XID, 600.1, False),
        (K.XID, 0.0, True),
        (K.THERMAL_THROTTLE, 100.0, False),  # explains a slow rank, not a hung one
    ],
)
def test_what_struck_a_rank_explains_its_hang_for_ten_minutes(cause: K, before: float, together: bool) -> None:
    hang = finding(K.NONCOMM_HANG, 5000.0, job="j", rank=1)
    assert (sizes_of_incidents(hang, finding(cause, 5000.0 - before, node="b"), topology=JOBS) == [2]) is together
    slow = finding(K.STRAGGLER, 5000.0, job="j", rank=1)
    throttled = finding(K.THERMAL_THROTTLE, 5000.0 - before - 1000.0, node="b", device="gpu0")
    assert sizes_of_incidents(slow, throttled, topology=JOBS) == [2], "as long as it holds"


def test_a_bad_value_spreads_and_severities_are_those_of_the_worst() -> None:
    spike, nan = (finding(kind, 100.0 + n, job="j") for n, kind in enumerate((K.LOSS_SPIKE, K.NAN)))
    (decision,) = correlate([spike, replace(nan, severity=Severity.CRITICAL)], (), JOBS)
    assert (decision.severity, decision.kinds) == (Severity.CRITICAL, (K.NAN, K.LOSS_SPIKE))
    (mild,) = correlate([spike, replace(nan, severity=Severity.INFO)], (), JOBS)
    assert mild.severity is Severity.INFO, "that of the likeliest cause"


def test_an_exit_for_a_missing_peer_ranks_behind_every_hang_and_beside_the_slowdown() -> None:
    late = replace(finding(K.PROCESS_EXIT, 100.0, job="j", rank=0), cause=Cause.COLLECTIVE_TIMEOUT)
    hang = finding(K.COMM_HANG, 101.0, job="j")
    early, later = (finding(K.JOB_SLOWDOWN, time, job="j") for time in (99.0, 101.0))
    assert rank_causes([early, later, late, hang]) == (hang, early, late, later)
    crash = replace(late, cause=None)
    assert rank_causes([hang, crash]) == (crash, hang)
    other = replace(finding(K.NAN, 100.0, job="j"), cause=Cause.COLLECTIVE_TIMEOUT)
    assert rank_causes([hang, other]) == (other, hang), "only an exit reports a missing peer"


def test_findings_of_one_depth_are_ordered_by_severity_time_and_confidence() -> None:
    plain = finding(K.STRAGGLER, 100.0, job="j", rank=1)
    grave = replace(plain, severity=Severity.CRITICAL, time=200.0)
    early, sure = replace(plain, time=99.0), replace(plain, confidence=1.0)
    mild = replace(plain, severity=Severity.INFO)
    assert rank_causes([plain, sure, early, grave]) == (grave, early, sure, plain)
    assert rank_causes([mild, replace(early, severity=Severity.WARNING)])[0].time == 99.0
    assert finding_order(plain) < finding_order(replace(plain, active=False))


def test_a_power_brake_of_a_rack_and_the_nodes_that_it_slows_are_one_incident() -> None:
    brakes = [on(node, 100.0 + node) for node in range(3)]
    slow = [finding(K.STRAGGLER, 130.0 + node, node=f"n{node}", job="j") for node in range(3)]
    (decision,) = correlate([*brakes, *slow], (), RACKS)
    assert decision.title == "3 nodes of rack r0: power_brake happened."
    (alone,) = correlate(slow, (), RACKS)
    assert (alone.title, alone.node) == ("3 nodes of rack r0: straggler happened.", None)
    assert sizes_of_incidents(*slow[:2]) == [1, 1], "two may be chance"


def job_on(nodes: int, per_rack: int = 4, **more: Any) -> FleetTopology:
    """A job with a rank on each node of racks of equal size."""
    names = [f"n{i}" for i in range(nodes)]
    racks = {name: f"r{i // per_rack}" for i, name in enumerate(names)}
    return FleetTopology(rank_node={("demo", i): name for i, name in enumerate(names)}, node_rack=racks, **more)


def slow(*nodes: int) -> list[Finding]:
    return [on(node, kind=K.STRAGGLER) for node in nodes]


@pytest.mark.parametrize(
    ("nodes", "per_rack", "struck", "together"),
    [
        (256, 4, (0, 1), True),  # by chance in one of a hundred
        (16, 4, (0, 1), False),  # in one of five
        (16, 2, (0, 1), True),  # all of the rack
        (4, 2, (0, 1), True),
        (4, 2, (0, 2), False),
        (2, 2, (0, 1), False),  # the rack is the whole job
        (256, 4, (0, 1, *range(20, 60, 4)), False),  # two of twelve meet by chance in three of four
        (256, 300, (0, 1), False),
    ],
)
def test_two_nodes_of_a_rack_that_met_by_no_chance_are_one_incident(
    nodes: int, per_rack: int, struck: tuple[int, ...], together: bool
) -> None:
    found = sizes_of_incidents(*slow(*struck), topology=job_on(nodes, per_rack))
    assert found == ([2] if together else [1] * len(struck))


def test_the_rack_of_two_is_named_and_a_third_node_joins() -> None:
    topology = job_on(256)
    (decision,) = correlate(slow(0, 1), (), topology)
    assert (decision.title, decision.node) == ("2 nodes of rack r0: straggler happened.", None)
    held = OpenIncident(id="i", opened_at=100.0, findings=tuple(slow(0, 1)))
    (later,) = correlate([on(2, 9000.0, K.STRAGGLER)], (held,), topology)
    assert later.incident == "i"


def test_two_nodes_of_different_jobs_or_without_a_known_rack_say_nothing_of_it() -> None:
    apart = replace(job_on(256), rank_node={(f"job-{i % 2}", 0): f"n{i}" for i in range(256)})
    assert sizes_of_incidents(*slow(0, 1), topology=apart) == [1, 1]
    unknown = replace(job_on(256), node_rack={"n0": "r0", "n1": "r0"})
    assert sizes_of_incidents(*slow(0, 1), topology=unknown) == [1, 1]
