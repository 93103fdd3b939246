"""What each hardware event means: severity, action, how long it is quiet before it ends, and who wins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mainstay.detectors.correlation import hardware_event_rules as rules
from mainstay.detectors.correlation.hardware_events import HardwareEventDetector
from mainstay.detectors.finding import Entity, Evidence, Finding, FindingKind
from mainstay.probes.core_types import Event, EventKind, RecommendedAction, Severity

INFO, WARNING, CRITICAL = Severity.INFO, Severity.WARNING, Severity.CRITICAL
MONITOR, REBOOT, RESTART = RecommendedAction.MONITOR, RecommendedAction.REBOOT_NODE, RecommendedAction.RESTART_JOB
K = EventKind


def event(kind: EventKind, time: float = 1000.0, *, device: str | None = None, **data: Any) -> Event:
    name = "-".join(map(str, (kind, time, device, *data.values())))
    return Event(id=name, time=time, kind=kind, node="a", device=device, data=data)


def fault(name: str, time: float = 1000.0, **data: Any) -> Event:
    return event(K.KERNEL_FAULT, time, fault=name, **data)


HOUR, DAY = 1.0, 24.0
WATCHED = (
    "machine_check", "oops", "bug", "filesystem", "fs", "read_only", "nvme", "raid", "disk", "nfs", "edac_uncorrected",
    "memory_failure", "pci_reset", "pcie_uncorrected", "pcie_unrecovered", "nic_health", "nic_temperature",
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "severity", "action", "hours"),
    [
        ("panic", CRITICAL, REBOOT, DAY),
        ("hard_lockup", CRITICAL, REBOOT, DAY),
        ("gpu_init", CRITICAL, REBOOT, DAY),
        ("soft_lockup", WARNING, MONITOR, HOUR),
        ("rcu_stall", WARNING, MONITOR, HOUR),
        ("hung_task", WARNING, MONITOR, HOUR),
        ("oom", INFO, RESTART, HOUR),
        ("segfault", INFO, RESTART, HOUR),
        ("unheard_of", WARNING, MONITOR, DAY),
        *((name, WARNING, MONITOR, DAY) for name in WATCHED),
    ],
)
def test_each_fault_of_the_kernel(name: str, severity: Severity, action: RecommendedAction, hours: float) -> None:
    rule = rules.kernel_fault(fault(name), name)
    assert (rule.severity, rule.recommended_action) == (severity, action)
    assert rule.quiet_seconds == hours * 3600
    assert rule.kind is (FindingKind.OUT_OF_MEMORY if name == "oom" else FindingKind.KERNEL_FAULT)
    (held,) = HardwareEventDetector().update([fault(name)])
    assert held.confidence == (1.0 if severity is CRITICAL else 0.9)
    detector = HardwareEventDetector()
    boot = event(K.NODE_STARTED, 1100.0, uptime=60.0)
    assert [f.active for f in detector.update([fault(name), boot])] == [True, False], "a boot ends it"


@pytest.mark.parametrize(
    ("name", "words"), [("", "the kernel reports a fault"), ("xyz", "the kernel reports xyz"), ("oops", "met a bug")]
)
def test_an_unknown_fault_is_named(name: str, words: str) -> None:
    assert words in rules.kernel_fault(fault(name), name).text


@pytest.mark.parametrize(
    ("rule", "quiet", "evicts"),
    [
        (rules.SILENT, None, False),
        (rules.lost("gpu_is_lost"), None, True),
        (rules.lost("reset_required"), None, True),
        (rules.NOTICES["gpu_unavailable"], None, True),
        (rules.NOTICES["ecc_burst"], 3600.0, False),
        (rules.foreign({}), None, False),
    ],
)
def test_what_ends_the_others(rule: rules.EventRule, quiet: float | None, evicts: bool) -> None:
    assert (rule.quiet_seconds, rule.recommended_action.evicts) == (quiet, evicts)


def test_words_of_foreign_monitors_and_losses() -> None:
    assert rules.lost("").text == "the GPU is gone"
    assert rules.foreign({}).text == "another monitor reports a fault"
    assert rules.foreign({"source": "dcgm", "check": "pcie", "message": "bad."}).text == "dcgm reports pcie: bad"
    silent = HardwareEventDetector().update([event(K.PROBE_UNRESPONSIVE)])
    assert silent[0].evidence.summary == "a: the sampler gets no answer."
    told = HardwareEventDetector().update([fault("nvme", text="nvme0: time-out", count=3, uptime=8.5, seconds=True)])
    assert told[0].evidence.summary == "a: an NVMe disk has failed or stalled: nvme0: time-out."
    assert told[0].evidence.numbers == {"count": 3.0, "uptime_seconds": 8.5}


@pytest.mark.parametrize(
    ("kind", "hours"),
    [
        (FindingKind.KERNEL_FAULT, 24.0),
        (FindingKind.OUT_OF_MEMORY, 1.0),
        (FindingKind.ECC_CORRECTED, 1.0),
        (FindingKind.GPU_LOST, None),
    ],
)
def test_how_long_a_stored_finding_is_quiet(kind: FindingKind, hours: float | None) -> None:
    assert rules.quiet_seconds(kind) == (None if hours is None else hours * 3600)


def test_a_known_fault_that_its_node_calls_information_only_watches() -> None:
    (mild,) = HardwareEventDetector().update([fault("panic", severity="info")])
    assert (mild.severity, mild.recommended_action) == (INFO, MONITOR)


def test_the_heaviest_of_what_holds_speaks_and_the_newer_of_two_alike() -> None:
    detector = HardwareEventDetector()
    found = detector.update([fault("nvme", 1000.0), fault("raid", 1001.0), fault("disk", 999.0), fault("panic", 998.0)])
    assert [f.time for f in found] == [1000.0, 1001.0, 998.0], "an older one of the same weight is no news"
    after = detector.update([fault("panic", 1002.0, cleared=True)])
    assert [(f.time, f.severity, f.active) for f in after] == [(1001.0, WARNING, True)]


def test_of_more_facts_than_are_held_the_first_stay() -> None:
    detector = HardwareEventDetector(HardwareEventDetector.Config(checks=2))
    assert len(detector.update([fault(name, 1000.0 + n) for n, name in enumerate(("a", "b", "c"))])) == 2
    (again,) = detector.update([fault("b", 1010.0)])
    assert again.time == 1010.0, "what is held is renewed"
    assert detector.update([fault("c", 1020.0)]) == []


def test_of_stored_findings_only_its_own_that_hold_are_taken_back() -> None:
    stored = Finding(
        kind=FindingKind.GPU_LOST, entity=Entity(node="a", device="g"), time=1000.0, severity=CRITICAL,
        detector="hardware_events", confidence=1.0, evidence=Evidence(summary="gone"),
    )  # fmt: skip
    boot = event(K.NODE_STARTED, 2000.0, uptime=60.0)
    for change, ended in (({}, 1), ({"detector": "a"}, 0), ({"detector": "z"}, 0), ({"active": False}, 0)):
        detector = HardwareEventDetector()
        detector.restore_findings([replace(stored, **change)])
        assert len(detector.update([boot])) == ended, change


def test_the_end_of_a_grace_is_told_by_the_clock() -> None:
    """A report 100 s after the boot is information for 200 s more."""
    report = event(K.HEALTH_REPORT, fatal=True, recommended_action="reboot_node", uptime=100.0)
    detector = HardwareEventDetector()
    (mild,) = detector.update([report])
    assert (mild.severity, mild.recommended_action) == (INFO, MONITOR)
    assert detector.advance_clock(1199.9) == []
    (grave,) = detector.advance_clock(1200.0)
    assert (grave.severity, grave.recommended_action) == (CRITICAL, REBOOT)
