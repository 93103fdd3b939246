"""A fault that returns after a reset or a reboot asks for the next stronger action."""

from __future__ import annotations

from mainstay.detectors.gpu.xid import XidDetector
from mainstay.probes.core_types import EventKind, RecommendedAction
from tests.detectors.gpu.xid_events import (
    DAY,
    HOUR,
    INSPECT,
    REBOOT,
    RESET,
    boot,
    event,
    findings_of,
    statements_of,
    xid,
)


def test_79_after_a_reboot_that_did_not_help_is_to_be_inspected() -> None:
    detector = XidDetector()
    first = findings_of(xid(79), boot(HOUR), detector=detector)
    assert statements_of(first) == [REBOOT, ("critical", "reboot_node", False)]
    assert first[1].evidence.summary == "The node rebooted."
    (again,) = findings_of(xid(79, 3 * DAY), detector=detector)
    assert statements_of([again]) == [INSPECT]
    assert again.evidence.summary == (
        "GPU-1 on n1: the GPU fell off the bus (XID 79): have the hardware inspected; "
        "2nd time in 3 days, the last reset or reboot did not help."
    )
    assert findings_of(boot(4 * DAY), detector=detector) == [], "a reboot does not inspect"


def test_actions_escalate_step_by_step() -> None:
    detector = XidDetector()
    remedies = []
    for n in range(6):
        remedies += [f.recommended_action for f in findings_of(xid(46, n * HOUR), detector=detector) if f.active]
        findings_of(boot(n * HOUR + 600), detector=detector)
    assert remedies[:5] == [
        RecommendedAction.RESET_GPU,
        RecommendedAction.RESET_GPU,
        RecommendedAction.INSPECT_NODE,
        RecommendedAction.INSPECT_NODE,
        RecommendedAction.REPLACE,
    ]


def test_a_reset_that_did_not_help_leads_to_a_reboot() -> None:
    reset = event(EventKind.GPU_EVENT, 600.0, "GPU-1", what="reset", success="true")
    found = findings_of(xid(46), reset, xid(46, HOUR))
    assert statements_of(found) == [RESET, ("critical", "reset_gpu", False), REBOOT]
    failed = event(EventKind.GPU_EVENT, 600.0, "GPU-1", what="reset", success="false")
    assert statements_of(findings_of(xid(46), failed)) == [RESET]


def test_a_reboot_without_a_fault_before_it_is_no_attempt() -> None:
    assert statements_of(findings_of(boot(-3 * HOUR), boot(-2 * HOUR), xid(46), xid(46, HOUR)))[-1] == RESET


def test_faults_of_another_part_or_another_week_do_not_count() -> None:
    assert statements_of(findings_of(xid(48), boot(HOUR), xid(79, 2 * HOUR)))[-1] == REBOOT
    assert statements_of(findings_of(xid(79), boot(HOUR), xid(79, 8 * DAY)))[-1] == REBOOT
    assert statements_of(findings_of(xid(79, device="GPU-2"), boot(HOUR), xid(79, 2 * HOUR)))[-1] == REBOOT


def test_the_start_of_the_daemon_is_no_boot() -> None:
    first = event(EventKind.NODE_STARTED, -HOUR, uptime=HOUR, boot_id="b1")
    again = event(EventKind.NODE_STARTED, HOUR, uptime=3 * HOUR, boot_id="b1")
    assert statements_of(findings_of(first, xid(79), again)) == [REBOOT]
    nameless = event(EventKind.NODE_STARTED, HOUR, uptime=3 * HOUR)
    assert statements_of(findings_of(first, xid(79), nameless)) == [REBOOT]
    silent = event(EventKind.NODE_STARTED, HOUR, boot_id="b2")
    assert statements_of(findings_of(first, xid(79), silent))[-1][2] is False, "another boot's id tells as well"
