"""One story, one incident: who belongs together, who caused it, and that the order of arrival does not matter."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstay.detectors.correlation.correlation import CorrelationDecision, OpenIncident, correlate
from mainstay.detectors.correlation.places import CorrelationConfig, FleetTopology
from mainstay.detectors.correlation.root_causes import rank_causes
from mainstay.detectors.finding import ADVICE, Cause, Entity, Evidence, Finding, FindingKind
from mainstay.probes.core_types import Severity

K = FindingKind
TOPOLOGY = FleetTopology(
    rank_node={("demo", 0): "a", ("demo", 1): "a", ("demo", 2): "b", ("demo", 3): "b", ("other", 0): "c"},
    rank_device={("demo", r): f"GPU-{r}" for r in range(4)},
)


def finding(
    kind: K, time: float = 100.0, *, severity: Severity = Severity.CRITICAL, active: bool = True, **entity: Any
) -> Finding:
    return Finding(
        kind=kind,
        entity=Entity(**entity),
        time=time,
        severity=severity,
        detector="test",
        confidence=0.9,
        evidence=Evidence(summary=f"{kind} happened."),
        active=active,
    )


def rank(number: int, kind: K = K.PROCESS_EXIT, time: float = 100.0, job: str = "demo", **over: Any) -> Finding:
    return finding(kind, time, job=job, rank=number, **over)


def decide(*findings: Finding, incidents: Iterable[OpenIncident] = ()) -> tuple[CorrelationDecision, ...]:
    return correlate(findings, tuple(incidents), TOPOLOGY)


def test_one_finding_opens_one_incident_that_says_everything() -> None:
    (decision,) = decide(rank(3))
    assert decision.incident is None
    assert (decision.job, decision.node, decision.device, decision.ranks) == ("demo", "b", "GPU-3", (3,))
    assert (decision.severity, decision.kinds, decision.title) == (
        Severity.CRITICAL,
        (K.PROCESS_EXIT,),
        "process_exit happened.",
    )


def test_a_lost_node_explains_the_exits_of_its_ranks_and_of_their_peers() -> None:
    (decision,) = decide(
        rank(2, time=100.0), rank(3, time=100.1), rank(0, time=104.0), finding(K.NODE_LOST, 103.0, node="b")
    )
    assert decision.causes[0].kind is K.NODE_LOST
    assert (decision.node, decision.job, decision.ranks) == ("b", "demo", (0, 2, 3))
    assert decision.title == "node_lost happened."


def test_a_throttling_gpu_explains_its_slow_rank_and_the_slow_job() -> None:
    warning = Severity.WARNING
    (decision,) = decide(
        rank(1, K.STRAGGLER, 110.0, severity=warning),
        finding(K.JOB_SLOWDOWN, 120.0, job="demo", severity=warning),
        finding(K.THERMAL_THROTTLE, 105.0, node="a", device="GPU-1", severity=warning),
    )
    assert [f.kind for f in decision.causes] == [K.THERMAL_THROTTLE, K.STRAGGLER, K.JOB_SLOWDOWN]
    assert (decision.device, decision.severity) == ("GPU-1", warning)


def test_two_slow_ranks_on_different_nodes_are_two_incidents() -> None:
    assert len(decide(rank(0, K.STRAGGLER), rank(3, K.STRAGGLER))) == 2
    assert len(decide(rank(0, K.STRAGGLER), rank(1, K.STRAGGLER))) == 1, "one host-wide cause is one incident"


def test_other_jobs_other_nodes_and_other_times_stay_apart() -> None:
    assert len(decide(rank(3), rank(0, job="other"))) == 2
    assert len(decide(rank(3, time=100.0), rank(0, time=131.0))) == 2
    assert len(decide(rank(3, time=100.0), rank(0, time=130.0))) == 1


def test_a_chain_of_close_findings_is_one_incident_however_long() -> None:
    assert len(decide(*(rank(3, time=t) for t in (100.0,)), *(rank(r % 4, time=100.0 + 25 * r) for r in range(8)))) == 1


def test_advice_opens_nothing_and_neither_does_mere_information() -> None:
    assert decide(*(rank(1, kind) for kind in ADVICE)) == ()
    assert decide(rank(1, K.GC_JITTER), rank(1, K.LEMON_NODE, severity=Severity.INFO)) == ()


def test_new_trouble_joins_the_open_incident_it_belongs_to() -> None:
    mine = OpenIncident(id="i1", opened_at=100.0, findings=(rank(3),))
    other = OpenIncident(id="i0", opened_at=90.0, findings=(rank(0, job="other", time=90.0),))
    (decision,) = decide(finding(K.NODE_LOST, 102.0, node="b"), incidents=[other, mine])
    assert (decision.incident, decision.also) == ("i1", ())
    assert [f.kind for f in decision.findings] == [K.NODE_LOST]
    assert [f.kind for f in decision.causes] == [K.NODE_LOST, K.PROCESS_EXIT], "the ranking is over the whole incident"


def test_the_same_key_joins_its_incident_however_late() -> None:
    mine = OpenIncident(id="i1", opened_at=100.0, findings=(rank(3, K.STRAGGLER),))
    (decision,) = decide(rank(3, K.STRAGGLER, time=5000.0), incidents=[mine])
    assert decision.incident == "i1"


def test_a_recovered_incident_takes_no_new_trouble() -> None:
    over = OpenIncident(id="i1", opened_at=100.0, findings=(rank(3),), accepts=False)
    (again,) = decide(rank(3, time=120.0), rank(3, time=110.0, active=False), incidents=[over])
    assert again.incident is None


def test_a_clear_that_concerns_nobody_is_dropped() -> None:
    assert decide(rank(3, active=False)) == ()


def test_a_finding_that_ties_two_incidents_names_both_and_goes_to_the_older() -> None:
    young = OpenIncident(id="i2", opened_at=105.0, findings=(rank(3, time=105.0),))
    old = OpenIncident(id="i1", opened_at=100.0, findings=(finding(K.XID, 100.0, node="a", device="GPU-0"),))
    (decision,) = decide(rank(0, time=103.0), incidents=[young, old])
    assert (decision.incident, decision.also) == ("i1", ("i2",))


def test_the_pseudo_device_host_does_not_tie_hosts_together() -> None:
    one = finding(K.CPU_CONTENTION, node="a", device="host")
    assert len(decide(one, replace(one, entity=Entity(node="b", device="host")))) == 2


@pytest.mark.parametrize(("xid_at", "first"), [(99.0, K.XID), (101.0, K.NODE_LOST)])
def test_what_came_first_says_why_the_node_is_lost(xid_at: float, first: FindingKind) -> None:
    where = Entity(node="n1", device="GPU-1")
    xid = Finding(kind=K.XID, entity=where, time=xid_at, severity=Severity.CRITICAL, detector="xid", confidence=1.0,
                  evidence=Evidence(summary="off the bus"))  # fmt: skip
    lost = Finding(kind=K.NODE_LOST, entity=Entity(node="n1"), time=100.0, severity=Severity.CRITICAL,
                   detector="heartbeat", confidence=0.8, evidence=Evidence(summary="silent"))  # fmt: skip
    assert rank_causes([lost, xid])[0].kind is first


def test_every_kind_has_its_place_between_cause_and_symptom() -> None:
    everything = [rank(0, kind) for kind in K if kind not in ADVICE]
    ranked = [f.kind for f in rank_causes(everything)]
    assert set(ranked) == {f.kind for f in everything}
    assert ranked[0] is K.NODE_LOST
    assert set(ranked[-2:]) == {K.JOB_SLOWDOWN, K.PROBE_UNRESPONSIVE}


FINDINGS = st.lists(
    st.builds(
        finding,
        st.sampled_from(sorted(K)),
        st.integers(0, 200).map(float),
        severity=st.sampled_from(Severity),
        active=st.booleans(),
        job=st.sampled_from(["demo", "other"]),
        rank=st.sampled_from([0, 1, 2, 3, None]),
        node=st.sampled_from(["a", "b", "c", None]),
    ),
    max_size=12,
)


@given(FINDINGS, st.randoms(use_true_random=False))
def test_the_order_of_a_batch_does_not_matter(batch: list[Finding], random: Any) -> None:
    shuffled = list(batch)
    random.shuffle(shuffled)
    assert decide(*shuffled) == decide(*batch)


@given(FINDINGS, FINDINGS)
def test_every_new_finding_lands_in_exactly_one_place(batch: list[Finding], held: list[Finding]) -> None:
    incidents = [
        OpenIncident(id=f"i{n}", opened_at=f.time, findings=(f,), accepts=n % 3 != 0) for n, f in enumerate(held)
    ]
    decisions = decide(*batch, incidents=incidents)
    placed = [f for d in decisions for f in d.findings]
    wanted = [f for f in batch if f.active and f.kind not in ADVICE]
    assert all(placed.count(f) <= wanted.count(f) for f in placed)
    assert all(f in placed for f in wanted if f.severity is not Severity.INFO)
    changed = [i for d in decisions if d.incident is not None for i in (d.incident, *d.also)]
    assert len(changed) == len(set(changed)), "an incident is changed by one decision only"
    accepting = {i.id for i in incidents if i.accepts}
    assert set(changed) <= accepting


@pytest.mark.parametrize("ranks", [4096])
def test_a_whole_job_dying_is_one_incident_in_a_moment(ranks: int) -> None:
    topology = FleetTopology(rank_node={("big", r): f"n{r // 8}" for r in range(ranks)})
    batch = [finding(K.PROCESS_EXIT, 100.0 + r / ranks, job="big", rank=r) for r in range(ranks)]
    (decision,) = correlate(batch, (), topology)
    assert len(decision.findings) == ranks


# one cause of many nodes

RACKS = FleetTopology(
    node_rack={f"n{i}": f"r{i // 4}" for i in range(40)},
    node_cohort={f"n{i}": "pod" for i in range(40)},
    cohort_nodes={"pod": 40},
)


def on(node: int, kind: K = K.POWER_BRAKE, time: float = 100.0, **more: Any) -> Finding:
    return finding(kind, time, severity=Severity.WARNING, node=f"n{node}", device=f"GPU-{node}", **more)


def open_of(name: str, *findings: Finding) -> OpenIncident:
    return OpenIncident(id=name, opened_at=findings[0].time, findings=findings)


def test_three_nodes_of_a_rack_are_the_racks_trouble() -> None:
    (decision,) = correlate([on(0), on(1, time=130.0), on(2, time=200.0)], [], RACKS)
    assert decision.title == "3 nodes of rack r0: power_brake happened."
    assert (decision.node, decision.device, len(decision.findings)) == (None, None, 3)


def test_how_many_nodes_make_a_racks_trouble_is_the_callers_to_say() -> None:
    (decision,) = correlate([on(0), on(1, time=130.0)], [], RACKS, CorrelationConfig(rack_nodes=2))
    assert decision.title == "2 nodes of rack r0: power_brake happened."


def test_two_nodes_or_three_racks_are_chance() -> None:
    assert len(correlate([on(0), on(1)], [], RACKS)) == 2
    assert len(correlate([on(0), on(4), on(8)], [], RACKS)) == 3
    assert len(correlate([on(0), on(1), on(2, time=400.0)], [], RACKS)) == 3, "minutes apart"
    assert len(correlate([on(0), on(1), on(2, K.XID)], [], RACKS)) == 3, "different kinds"


def test_worn_memory_is_each_cards_own() -> None:
    assert len(correlate([on(i, K.ECC_UNCORRECTABLE) for i in range(4)], [], RACKS)) == 4


def test_half_of_a_cohort_shares_a_cause_whatever_its_racks() -> None:
    lost = [finding(K.NODE_LOST, 100.0 + i, node=f"n{i}") for i in range(0, 40, 2)]
    (decision,) = correlate(lost, [], RACKS)
    assert decision.title == "20 nodes: node_lost happened."


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_the_racks_incident_is_the_same_in_whatever_order_its_nodes_come(order: tuple[int, int, int]) -> None:
    first, second, third = (on(n, time=100.0 + 10 * n) for n in order)
    (decision,) = correlate([third], [open_of("i1", first), open_of("i2", second)], RACKS)
    assert (decision.incident, decision.also) == (
        min(("i1", first.time), ("i2", second.time), key=lambda pair: pair[1])[0],
        (max(("i1", first.time), ("i2", second.time), key=lambda pair: pair[1])[0],),
    )
    assert decision.title.startswith("3 nodes of rack r0")


def test_a_node_that_follows_joins_the_racks_incident_hours_later() -> None:
    wide = open_of("i1", on(0), on(1), on(2))
    (decision,) = correlate([on(3, time=9000.0)], [wide], RACKS)
    assert (decision.incident, decision.title) == ("i1", "4 nodes of rack r0: power_brake happened.")
    (other,) = correlate([on(5, time=9000.0)], [wide], RACKS)
    assert other.incident is None


def test_three_nodes_under_a_switch_are_the_switchs_trouble() -> None:
    """Their racks differ, and a port that goes down says nothing of the next rack's switch."""
    topology = FleetTopology(node_switch={f"n{i}": f"leaf-{i // 3}" for i in range(9)})
    down = [on(i, K.NIC_DEGRADED, time=100.0 + i) for i in (0, 1, 2, 3)]
    switch, alone = sorted(correlate(down, [], topology), key=lambda decision: -len(decision.findings))
    assert switch.title == "3 nodes under switch leaf-0: nic_degraded happened."
    assert (len(switch.findings), switch.node) == (3, None)
    assert len(alone.findings) == 1


def test_a_wide_incident_of_which_some_is_shown_counts_all_its_nodes() -> None:
    shown = tuple(on(i) for i in range(20))
    nodes = {K.POWER_BRAKE: frozenset(f"n{i}" for i in range(500))}
    wide = OpenIncident(id="i1", opened_at=100.0, findings=shown, nodes=nodes)
    (decision,) = correlate([on(900, time=9000.0)], [wide], FleetTopology())
    assert (decision.incident, decision.title) == ("i1", "501 nodes: power_brake happened.")


def test_a_silent_device_and_what_else_holds_of_it_are_one() -> None:
    lost = open_of("i1", finding(K.GPU_LOST, 100.0, node="n0", device="GPU-0"))
    (decision,) = correlate([finding(K.PROBE_UNRESPONSIVE, 500.0, node="n0", device="GPU-0")], [lost], RACKS)
    assert decision.incident == "i1"
    (apart,) = correlate([finding(K.PROBE_UNRESPONSIVE, 500.0, node="n0", device="GPU-1")], [lost], RACKS)
    assert apart.incident is None


def test_several_gpus_of_a_node_are_counted_in_the_title() -> None:
    gpus = [finding(K.THERMAL_THROTTLE, node="n0", device=f"GPU-{i}") for i in range(3)]
    (decision,) = correlate(gpus, [], RACKS)
    assert decision.title == "3 devices of n0: thermal_throttle happened."
    assert decision.node == "n0"


def test_two_witnesses_of_the_same_are_one_incident() -> None:
    one, two = on(0), replace(on(0), detector="other")
    (decision,) = correlate([two], [open_of("i1", one)], RACKS)
    assert decision.incident == "i1", "the same thing, however late"
    assert correlate([replace(two, active=False, time=120.0)], [open_of("i1", one, two)], RACKS) == ()


def test_a_throttled_gpu_explains_its_slow_rank_however_long_the_proof_takes() -> None:
    throttle = finding(K.THERMAL_THROTTLE, 100.0, node="a", device="GPU-1", severity=Severity.WARNING)
    mine = OpenIncident(id="i1", opened_at=100.0, findings=(throttle,))
    (decision,) = decide(rank(1, K.STRAGGLER, 400.0, severity=Severity.WARNING), incidents=[mine])
    assert decision.incident == "i1"
    assert [f.kind for f in decision.causes] == [K.THERMAL_THROTTLE, K.STRAGGLER]
    (apart,) = decide(rank(0, K.STRAGGLER, 400.0, severity=Severity.WARNING), incidents=[mine])
    assert apart.incident is None, "another GPU of the node is not throttled"


@pytest.mark.parametrize(
    "cause",
    [
        finding(K.NODE_LOST, 95.0, node="b"),
        finding(K.XID, 20.0, node="b", device="GPU-3"),
        finding(K.KERNEL_FAULT, 60.0, node="b"),
        rank(3, K.PROCESS_EXIT, 98.0, node="b"),
    ],
    ids=lambda f: f.kind.value,
)
def test_a_hang_is_explained_by_what_struck_its_rank_before(cause: Finding) -> None:
    (decision,) = decide(cause, rank(3, K.NONCOMM_HANG, 104.0))
    assert [f.kind for f in decision.causes] == [cause.kind, K.NONCOMM_HANG]


def test_an_old_code_or_one_of_another_gpu_explains_no_hang() -> None:
    assert len(decide(finding(K.XID, 100.0, node="b", device="GPU-3"), rank(3, K.NONCOMM_HANG, 800.0))) == 2
    assert len(decide(finding(K.XID, 100.0, node="b", device="GPU-2"), rank(3, K.NONCOMM_HANG, 200.0))) == 2


@pytest.mark.parametrize(("seconds", "incidents"), [(30.0, 1), (31.0, 2), (3600.0, 2)])
def test_what_comes_after_a_hang_explains_it_only_where_it_follows_closely(seconds: float, incidents: int) -> None:
    code = finding(K.XID, 100.0 + seconds, node="b", device="GPU-3")
    assert len(decide(rank(3, K.NONCOMM_HANG, 100.0), code)) == incidents


def test_several_culprits_of_one_hang_are_one_incident_and_their_peers_time_outs_follow() -> None:
    hang = [rank(number, K.NONCOMM_HANG, 100.0) for number in (1, 2)]
    late = replace(rank(0, K.PROCESS_EXIT, 125.0), cause=Cause.COLLECTIVE_TIMEOUT)
    (decision,) = decide(*hang, late)
    assert [(f.kind, f.entity.rank) for f in decision.causes] == [
        (K.NONCOMM_HANG, 1),
        (K.NONCOMM_HANG, 2),
        (K.PROCESS_EXIT, 0),
    ]


def test_a_dead_network_port_explains_a_communication_hang() -> None:
    (decision,) = decide(
        finding(K.COMM_HANG, 110.0, job="demo"), finding(K.NIC_DEGRADED, 100.0, node="b", device="nic:x:1")
    )
    assert [f.kind for f in decision.causes] == [K.NIC_DEGRADED, K.COMM_HANG]


def test_when_most_of_the_fleet_is_silent_the_network_and_the_service_come_first() -> None:
    silent = [on(n, K.NODE_LOST, time=100.0 + n / 10) for n in range(20)]
    (decision,) = correlate(silent, [], replace(RACKS, fleet_nodes=30))
    assert decision.title.startswith("20 of 30 nodes are silent at once: check the network")
    assert decision.node is None
    (few,) = correlate(silent, [], replace(RACKS, fleet_nodes=300))
    assert "20 nodes: " in few.title
