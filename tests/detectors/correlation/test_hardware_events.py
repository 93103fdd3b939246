"""Hardware events become findings by weight, and the findings end with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mainstay.detectors.correlation.hardware_event_rules import single_line
from mainstay.detectors.correlation.hardware_events import HardwareEventDetector
from mainstay.detectors.finding import Cause, Finding, FindingKind
from mainstay.probes.core_types import Event, EventKind, RecommendedAction, Severity

K = EventKind
NUMBER = iter(range(10**9))


def event(kind: EventKind, time: float = 1000.0, *, node: str = "a", device: str | None = None, **data: Any) -> Event:
    return Event(id=f"e{next(NUMBER)}", time=time, kind=kind, node=node, device=device, data=data)


def report(time: float = 1000.0, *, check: str = "c", **data: Any) -> Event:
    given = {
        "source": "gpud",
        "fatal": True,
        "healthy": False,
        "recommended_action": "reboot_node",
        "message": "all is lost.",
    }
    return event(K.HEALTH_REPORT, time, check=check, **{**given, **data})


def example(seed: int) -> list[Event]:
    def make_event(n: int, kind: EventKind, device: str | None = None, **data: Any) -> Event:
        return Event(id=f"{kind}{n}-{seed}", time=float(n), kind=kind, node="a", device=device, data=data)

    return [
        make_event(1, K.GPU_LOST, "GPU-1", reason="gpu_is_lost"),
        make_event(2, K.PROBE_UNRESPONSIVE, "GPU-2", sampler="nvml", lane="GPU-2", reason="has not answered for 2 s"),
        make_event(3, K.PROBE_UNRESPONSIVE, "GPU-2", sampler="nvml", lane="GPU-2", cleared=True),
        make_event(4, K.KERNEL_FAULT, fault="nvme", text="nvme0: I/O timeout"),
        make_event(
            5,
            K.HEALTH_REPORT,
            source="gpud",
            check="infiniband",
            fatal=True,
            healthy=False,
            recommended_action="reboot_node",
        ),
        make_event(6, K.NODE_STOPPING, reason="shutdown"),
    ]


def later(events: list[Event], repetition: int) -> list[Event]:
    return [replace(e, id=f"{e.id}-{repetition}") for e in events]


def findings_of(*events: Event) -> list[Finding]:
    return HardwareEventDetector().update(list(events))


def statements_of(*events: Event) -> list[tuple[str, str, str, bool]]:
    return [(f.kind.value, f.severity.value, f.recommended_action.value, f.active) for f in findings_of(*events)]


def test_each_event_becomes_its_finding() -> None:
    assert statements_of(*example(0)) == [
        ("gpu_lost", "critical", "reboot_node", True),
        ("probe_unresponsive", "warning", "monitor", True),
        ("probe_unresponsive", "warning", "monitor", False),
        ("kernel_fault", "warning", "monitor", True),
        ("health_report", "critical", "reboot_node", True),
    ]


def test_a_silent_card_is_named_with_what_its_sampler_said() -> None:
    (found,) = findings_of(
        event(K.PROBE_UNRESPONSIVE, device="GPU-7", sampler="nvml", reason="no answer for 1.5 s", seconds=1.5)
    )
    assert found.evidence.summary == "GPU-7 on a: the sampler gets no answer: no answer for 1.5 s."
    assert found.evidence.numbers == {"seconds": 1.5}
    assert (found.entity.node, found.entity.device) == ("a", "GPU-7")


def test_two_samplers_of_one_node_speak_again_one_by_one() -> None:
    nvml = event(K.PROBE_UNRESPONSIVE, sampler="nvml")
    nic = event(K.PROBE_UNRESPONSIVE, 1001.0, sampler="nic")
    back = event(K.PROBE_UNRESPONSIVE, 1002.0, sampler="nic", cleared=True)
    rest = event(K.PROBE_UNRESPONSIVE, 1003.0, sampler="nvml", cleared=True)
    assert [f.active for f in findings_of(nvml, nic, back)] == [True, True, True], "one of them is still silent"
    assert [f.active for f in findings_of(nvml, nic, back, rest)][-1] is False


def test_a_clearance_of_what_was_never_said_is_no_news() -> None:
    assert (
        findings_of(
            event(K.PROBE_UNRESPONSIVE, sampler="nvml", cleared=True), event(K.GPU_LOST, device="g", cleared=True)
        )
        == []
    )


def test_a_lost_gpu_ends_when_it_answers_or_the_node_boots() -> None:
    lost = event(K.GPU_LOST, device="GPU-1", reason="GPU has fallen off the bus", source="kernel")
    (found,) = findings_of(lost)
    assert found.evidence.summary == "GPU-1 on a: the GPU is gone (GPU has fallen off the bus)."
    assert found.recommended_action.evicts
    assert [f.active for f in findings_of(lost, event(K.GPU_LOST, 1010.0, device="GPU-1", cleared=True))] == [
        True,
        False,
    ]
    started = event(K.NODE_STARTED, 1500.0, uptime=60.0, boot_id="b2")
    assert [f.active for f in findings_of(lost, started)] == [True, False]
    restarted = event(K.NODE_STARTED, 1500.0, uptime=90_000.0, boot_id="b1")
    assert [f.active for f in findings_of(lost, restarted)] == [True], "the daemon began again, the node did not"


@pytest.mark.parametrize(
    ("reason", "words", "recommended_action"),
    [
        ("gpu_is_lost", "it answers no call", RecommendedAction.REBOOT_NODE),
        ("not_listed", "the driver no longer lists it", RecommendedAction.REBOOT_NODE),
        ("reset_required", "only after a reset", RecommendedAction.RESET_GPU),
    ],
)
def test_the_samplers_reasons_become_words_and_the_mildest_action(
    reason: str, words: str, recommended_action: RecommendedAction
) -> None:
    (found,) = findings_of(event(K.GPU_LOST, device="GPU-1", reason=reason))
    assert words in found.evidence.summary
    assert found.recommended_action is recommended_action


@pytest.mark.parametrize(
    ("fault", "kind", "severity", "recommended_action"),
    [
        ("oom", "out_of_memory", "info", "restart_job"),
        ("nvme", "kernel_fault", "warning", "monitor"),
        ("raid", "kernel_fault", "warning", "monitor"),
        ("fs", "kernel_fault", "warning", "monitor"),
        ("panic", "kernel_fault", "critical", "reboot_node"),
        ("soft_lockup", "kernel_fault", "warning", "monitor"),
        ("never_heard_of", "kernel_fault", "warning", "monitor"),
    ],
)
def test_kernel_faults_by_class(fault: str, kind: str, severity: str, recommended_action: str) -> None:
    assert statements_of(event(K.KERNEL_FAULT, fault=fault, text="a line")) == [
        (kind, severity, recommended_action, True)
    ]


@pytest.mark.parametrize(
    ("what", "cause"),
    [
        (event(K.GPU_LOST, device="GPU-1", reason="gpu_is_lost"), Cause.FAULTY_GPU),
        (event(K.GPU_LOST, device="GPU-1", reason="words of a kernel"), Cause.FAULTY_GPU),
        (event(K.GPU_EVENT, device="GPU-1", what="ecc_burst"), Cause.GPU_MEMORY),
        (event(K.GPU_EVENT, device="GPU-1", what="gpu_unavailable"), Cause.FAULTY_GPU),
        (event(K.PROBE_UNRESPONSIVE, device="GPU-1", sampler="nvml"), None),
        (report(check="gpu"), None),
        *((event(K.KERNEL_FAULT, fault=fault), Cause.HOST) for fault in ("panic", "machine_check", "edac_uncorrected")),
        *((event(K.KERNEL_FAULT, fault=fault), Cause.STORAGE) for fault in ("fs", "read_only", "nvme", "raid", "nfs")),
        (event(K.KERNEL_FAULT, fault="nic_health"), Cause.NIC),
        (event(K.KERNEL_FAULT, fault="gpu_init"), Cause.FAULTY_GPU),
        (event(K.KERNEL_FAULT, fault="oom"), Cause.SOFTWARE),
        (event(K.KERNEL_FAULT, fault="segfault"), Cause.SOFTWARE),
        (event(K.KERNEL_FAULT, fault="hung_task"), None),
        (event(K.KERNEL_FAULT, fault="never_heard_of"), None),
        (event(K.KERNEL_FAULT, fault="pcie_uncorrected"), None),
        (event(K.KERNEL_FAULT, fault="pcie_uncorrected", device="GPU-1"), Cause.GPU_LINK),
        (event(K.KERNEL_FAULT, fault="pci_reset", device="nic:mlx5_0:1"), Cause.NIC),
    ],
)
def test_a_fact_tells_its_category_of_cause_where_it_can(what: Event, cause: Cause | None) -> None:
    detector = HardwareEventDetector()
    (found,) = detector.update([what])
    assert found.cause is cause
    (ended,) = detector.update([replace(what, id="over", time=what.time + 60, data={**what.data, "cleared": True})])
    assert (ended.active, ended.cause) == (False, cause), "what ends says what it was"


def test_a_cause_outlives_a_restart() -> None:
    held = findings_of(event(K.KERNEL_FAULT, fault="nvme"))
    after = HardwareEventDetector()
    after.restore_findings(held)
    (ended,) = after.update([event(K.NODE_STARTED, 2000.0, uptime=30.0)])
    assert ended.cause is Cause.STORAGE


def test_an_unknown_fault_is_as_severe_as_its_node_says_but_never_drains() -> None:
    assert statements_of(event(K.KERNEL_FAULT, fault="x", severity="info"))[0][1] == "info"
    assert statements_of(event(K.KERNEL_FAULT, fault="x", severity="critical"))[0][1:3] == ("warning", "monitor")
    assert statements_of(event(K.KERNEL_FAULT))[0][1:3] == ("warning", "monitor"), "and nonsense is a warning, no crash"


@pytest.mark.parametrize(
    ("change", "severity", "recommended_action"),
    [
        ({}, Severity.CRITICAL, RecommendedAction.REBOOT_NODE),
        ({"fatal": False}, Severity.WARNING, RecommendedAction.MONITOR),
        ({"fatal": "yes"}, Severity.WARNING, RecommendedAction.MONITOR),
        ({"recommended_action": "monitor"}, Severity.WARNING, RecommendedAction.MONITOR),
        ({"recommended_action": "explode"}, Severity.WARNING, RecommendedAction.MONITOR),
        ({"recommended_action": "restart_job"}, Severity.INFO, RecommendedAction.RESTART_JOB),
        ({"severity": "info"}, Severity.INFO, RecommendedAction.MONITOR),
    ],
)
def test_a_foreign_monitor_evicts_only_with_a_fatal_fault_and_an_action(
    change: dict[str, Any], severity: Severity, recommended_action: RecommendedAction
) -> None:
    (found,) = findings_of(report(**change))
    assert (found.severity, found.recommended_action) == (severity, recommended_action)
    assert found.evidence.summary == "a: gpud reports c: all is lost."


def test_checks_of_one_monitor_are_held_side_by_side() -> None:
    mild = report(1.0, check="mild", fatal=False)
    found = findings_of(mild, report(2.0), report(3.0, healthy=True), report(4.0, check="mild", healthy=True))
    assert [(f.severity, f.active) for f in found] == [
        (Severity.WARNING, True),
        (Severity.CRITICAL, True),
        (Severity.WARNING, True),  # what is left
        (Severity.WARNING, False),
    ]


def test_a_healthy_report_is_no_finding() -> None:
    assert findings_of(report(healthy=True)) == []


@pytest.mark.parametrize(
    "before",
    [event(K.NODE_STOPPING, 900.0), event(K.NODE_STARTED, 990.0, uptime=60.0, boot_id="b")],
    ids=["during a stop", "just booted"],
)
def test_a_foreign_alarm_around_a_reboot_waits(before: Event) -> None:
    """214 of 288 nodes were called fatal by their monitor because they rebooted."""
    detector = HardwareEventDetector()
    (found,) = detector.update([before, report()])
    assert (found.severity, found.recommended_action) == (Severity.INFO, RecommendedAction.MONITOR)
    assert detector.advance_clock(1100.0) == []
    (still,) = detector.advance_clock(1000.0 + 900.0)
    assert (still.severity, still.active) == (Severity.CRITICAL, True), "it stayed sick: now it counts"
    assert [f.active for f in detector.update([report(2000.0, healthy=True)])] == [False]


def test_notices_that_come_as_xids_too_say_nothing() -> None:
    for what in ("ecc_double_bit", "dram_retirement", "poison", "recovery_action", "nvml_event_0x80", None):
        assert findings_of(event(K.GPU_EVENT, device="GPU-1", what=what)) == []
    assert statements_of(event(K.GPU_EVENT, device="GPU-1", what="ecc_burst")) == [
        ("ecc_corrected", "warning", "monitor", True)
    ]
    unavailable = statements_of(event(K.GPU_EVENT, device="GPU-1", what="gpu_unavailable"))
    assert unavailable == [("gpu_lost", "critical", "reboot_node", True)]


def test_what_happens_once_ends_by_quiet() -> None:
    detector = HardwareEventDetector()
    detector.update([event(K.KERNEL_FAULT, fault="oom")])
    assert detector.advance_clock(1000.0 + 3599.0) == []
    assert [f.active for f in detector.advance_clock(1000.0 + 3600.0)] == [False]
    detector.update([event(K.GPU_LOST, device="GPU-1")])
    assert detector.advance_clock(1000.0 + 10**7) == [], "a lost GPU does not come back by silence"


def test_what_was_said_before_a_restart_can_still_end() -> None:
    before = HardwareEventDetector()
    held = before.update([event(K.GPU_LOST, device="GPU-1"), report()])
    after = HardwareEventDetector()
    after.restore_findings(held)
    assert after.update([]) == []
    ended = after.update([report(1100.0, healthy=True), event(K.NODE_STARTED, 2000.0, uptime=30.0)])
    assert {(f.kind, f.active) for f in ended} == {(FindingKind.HEALTH_REPORT, False), (FindingKind.GPU_LOST, False)}


def test_retries_and_events_about_nobody_say_nothing() -> None:
    detector = HardwareEventDetector()
    detector.update(example(0))
    assert detector.update(example(0)) == []
    assert detector.update([Event(id="n", time=1.0, kind=K.GPU_LOST)]) == []
    again = [example(0)[0], Event(id="j", time=1.0, kind=K.JOB_STARTED, node="a"), event(K.GPU_LOST, device="GPU-9")]
    assert [f.entity.device for f in detector.update(again)] == ["GPU-9"], "what follows them is heard"


def test_starts_and_stops_alone_are_no_findings() -> None:
    assert (
        findings_of(event(K.NODE_STOPPING, reason="stopped"), event(K.NODE_STARTED, 1001.0, uptime=5.0, boot_id="x"))
        == []
    )


@pytest.mark.parametrize(
    ("fault", "hours"),
    [("panic", 24.0), ("soft_lockup", 1.0), ("oom", 1.0), ("nvme", 24.0), ("segfault", 1.0), ("never_heard_of", 24.0)],
)
def test_each_fault_is_quiet_for_its_hours(fault: str, hours: float) -> None:
    detector = HardwareEventDetector()
    held = detector.update([event(K.KERNEL_FAULT, fault=fault)])
    after = HardwareEventDetector()
    after.restore_findings(held)
    quiet = 1000.0 + hours * 3600
    assert detector.advance_clock(quiet - 1.0) == []
    assert [f.evidence.summary for f in detector.advance_clock(quiet)] == ["It stayed quiet."]
    usual = 1000.0 + (1.0 if fault == "oom" else 24.0) * 3600  # after a restart the kind alone is known
    assert after.advance_clock(usual - 1.0) == []
    assert len(after.advance_clock(usual)) == 1


def test_a_burst_is_quiet_for_an_hour_also_after_a_restart() -> None:
    after = HardwareEventDetector()
    after.restore_findings(findings_of(event(K.GPU_EVENT, device="GPU-1", what="ecc_burst")))
    assert after.advance_clock(4599.0) == []
    assert len(after.advance_clock(4600.0)) == 1


@pytest.mark.parametrize(
    ("before", "information"),
    [
        (event(K.NODE_STARTED, 701.0, uptime=0.0, boot_id="b"), True),
        (event(K.NODE_STARTED, 700.0, uptime=0.0, boot_id="b"), False),
        (event(K.NODE_STOPPING, 100.1), True),
        (event(K.NODE_STOPPING, 100.0), False),
        (event(K.NODE_STOPPING, 1000.0), True),
        (event(K.NODE_STOPPING, 1000.1), False),
    ],
)
def test_a_boot_explains_five_minutes_and_a_stop_fifteen(before: Event, information: bool) -> None:
    found = findings_of(before, report())
    assert [f.severity for f in found] == [Severity.INFO if information else Severity.CRITICAL]


@pytest.mark.parametrize(
    ("uptime", "information"), [(0, True), (299.9, True), (300, False), (-0.5, False), (True, False)]
)
def test_a_report_may_tell_the_uptime_itself(uptime: float, information: bool) -> None:
    (found,) = findings_of(report(uptime=uptime))
    assert found.severity is (Severity.INFO if information else Severity.CRITICAL)


def test_only_a_new_boot_ends_what_a_boot_ends() -> None:
    lost = event(K.GPU_LOST, device="GPU-1")
    elsewhere = event(K.GPU_LOST, node="b", device="GPU-1")
    for ids, ended in ((("b1", "b1"), []), (("b1", "b2"), [False]), ((None, "b2"), []), (("b1", None), [])):
        starts = [event(K.NODE_STARTED, at, boot_id=i) for at, i in zip((900.0, 1100.0), ids, strict=True)]
        found = findings_of(starts[0], elsewhere, lost, starts[1])
        assert [f.active for f in found] == [True, True, *ended], ids
        assert all(f.entity.node == "a" for f in found[2:])
    late = event(K.NODE_STARTED, 1100.0, uptime=100.0, boot_id="b")
    assert [f.active for f in findings_of(lost, late)] == [True], "it was lost in this boot"
    three = [event(K.NODE_STARTED, at, boot_id=i) for at, i in ((800.0, "b1"), (900.0, None), (1100.0, "b1"))]
    assert [f.active for f in findings_of(*three[:2], lost, three[2])] == [True], "what was known is remembered"


def test_foreign_text_is_one_line_of_a_hundred_and_sixty_characters() -> None:
    assert single_line(" a\n b.. ") == "a b"
    assert single_line("x" * 160) == "x" * 160
    assert single_line("x" * 161) == "x" * 159 + "…"
    assert single_line(7) == ""
