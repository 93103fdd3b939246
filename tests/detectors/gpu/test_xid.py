"""What XID codes mean: one finding a device; repeats, simultaneous codes, reboots and restarts are understood."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from mainstay.detectors.finding import Finding, FindingKind
from mainstay.detectors.gpu.xid import XidDetector
from mainstay.detectors.policy.load import load
from mainstay.probes.core_types import Event, EventKind, Severity
from tests.detectors.gpu.xid_events import (
    DAY,
    HOUR,
    INFO,
    INSPECT,
    REBOOT,
    REPLACE,
    RESET,
    WARN,
    T,
    boot,
    event,
    findings_of,
    statements_of,
    xid,
)


def example(seed: int) -> list[Event]:
    def make_event(n: int, kind: EventKind, device: str | None, at: float, **data: Any) -> Event:
        return Event(id=f"{n}-{seed}", time=T + at, kind=kind, node="n1", device=device, data=data)

    return [
        make_event(1, EventKind.XID, "GPU-1", 0.0, code=13, gpc=1, tpc=2, pid=7, uptime=DAY),
        make_event(2, EventKind.XID, "GPU-1", 5000.0, code=13, gpc=1, tpc=2, pid=8, uptime=DAY),
        make_event(3, EventKind.XID, "GPU-2", 5001.0, code=79, text="GPU has fallen off the bus.", uptime=DAY),
        make_event(4, EventKind.SXID, None, 5002.0, code=20034, fatal=True, link=30, uptime=DAY),
        make_event(5, EventKind.XID, None, 5003.0, code=45, uptime=DAY),
        make_event(6, EventKind.GPU_EVENT, "GPU-2", 5010.0, what="reset", success="true"),
    ]


def later(events: list[Event], repetition: int) -> list[Event]:
    return [replace(e, id=f"{e.id}-{repetition}") for e in events]


# one code alone


@pytest.mark.parametrize(
    ("code", "severity", "recommended_action"),
    [
        (13, "info", "restart_job"), (31, "info", "restart_job"), (43, "info", "restart_job"),
        (94, "info", "restart_job"),
        (45, "info", "none"), (63, "info", "monitor"), (92, "info", "monitor"), (20, "info", "none"),
        (38, "info", "monitor"),
        (74, "warning", "monitor"), (777, "warning", "monitor"), (149, "warning", "monitor"),
        (46, "critical", "reset_gpu"), (48, "critical", "reset_gpu"), (95, "critical", "reset_gpu"),
        (119, "critical", "reset_gpu"), (79, "critical", "reboot_node"), (54, "critical", "inspect_node"),
        (64, "critical", "replace"),
    ],
)  # fmt: skip
def test_a_code_by_itself(code: int, severity: str, recommended_action: str) -> None:
    (found,) = findings_of(xid(code))
    assert (found.kind, found.severity, found.recommended_action) == (FindingKind.XID, severity, recommended_action)
    assert found.evidence.numbers["code"] == code
    assert f"XID {code}" in found.evidence.summary


def test_the_summary_is_one_plain_sentence() -> None:
    (found,) = findings_of(xid(79, text="GPU has fallen off the bus."))
    assert found.evidence.summary == "GPU-1 on n1: the GPU fell off the bus (XID 79): reboot the node."
    assert (found.entity.node, found.entity.device, found.time) == ("n1", "GPU-1", T)


@pytest.mark.parametrize("code", [None, "x", True, -1, 1.5, [79], "79x"])
def test_a_number_that_is_none_is_an_unknown_error_and_no_crash(code: Any) -> None:
    (found,) = findings_of(
        event(EventKind.XID, device="GPU-1", code=code, uptime="long", text=7, pid="p", link=True, count=-5)
    )
    assert found.severity is Severity.WARNING
    assert "XID of unknown number" in found.evidence.summary


def test_a_number_as_text_is_taken() -> None:
    assert statements_of(findings_of(event(EventKind.XID, device="GPU-1", code="79"))) == [REBOOT]


def test_an_event_without_a_node_gives_no_finding() -> None:
    assert findings_of(Event(id="x", time=T, kind=EventKind.XID, data={"code": 79})) == []


# the same error twice


def test_one_error_told_by_nvml_and_by_the_kernel_is_one_and_the_richer_text_wins() -> None:
    bare = xid(149, 0.0, source="nvml")
    line = xid(149, 0.4, text="NETIR_LINK_EVT Fatal XC0 i0 Link 07 (0x1 0x2)")
    found = findings_of(bare, line)
    assert statements_of(found) == [WARN, RESET]
    assert found[0].key == found[1].key
    assert found[1].event == line.id
    assert "on link 7, fatal" in found[1].evidence.summary
    assert found[1].evidence.numbers["count"] == 1, "two reports, one error"
    assert statements_of(findings_of(line, bare)) == [RESET], "the bare one adds nothing"


def test_lines_of_one_fault_are_one_statement() -> None:
    lines = [xid(13, n / 10, pid=7, text=f"Graphics SM Warp Exception on (GPC {n % 3}, TPC 0)") for n in range(60)]
    assert len(findings_of(*lines)) <= 2


def test_the_kernels_line_without_a_device_finds_it_by_its_address() -> None:
    nvml = xid(48, 0.0, source="nvml", pci="00000000:3B:00.0")
    line = event(EventKind.XID, 100.0, code=79, pci="0000:3b:00", source="kernel", uptime=DAY)
    assert findings_of(nvml, line)[-1].entity.device == "GPU-1"


def test_a_flood_of_45_is_one_finding_of_mere_information() -> None:
    detector = XidDetector()
    found: list[Finding] = []
    began = time.perf_counter()
    for n in range(11_760):
        found += detector.update([xid(45, n * 0.01, f"GPU-{n % 8}", pid=4711)])
    assert time.perf_counter() - began < 10.0
    assert statements_of(found) == [("info", "none", True)]
    assert found[0].entity.device is None
    (ended,) = detector.advance_clock(T + 118 + HOUR)
    assert not ended.active


def test_45_beside_its_cause_does_not_hide_it() -> None:
    found = findings_of(xid(79), xid(45, 1.0), xid(45, 2.0, "GPU-2"))
    assert [f.entity.device for f in found] == ["GPU-1", None]


# repeats


def sm(at: float, pid: int, *, gpc: int = 1, tpc: int = 2, device: str = "GPU-1") -> Event:
    return xid(13, at, device, pid=pid, gpc=gpc, tpc=tpc)


def test_13_at_the_same_spot_under_another_process_is_suspicious() -> None:
    found = findings_of(sm(0, 1), sm(5 * HOUR, 2))
    assert statements_of(found) == [INFO, WARN]
    assert "at GPC 1 TPC 2, the same spot of the chip failed before" in found[1].evidence.summary


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (sm(5 * HOUR, 2, tpc=3), "another spot"),
        (sm(25 * HOUR, 2), "too long ago"),
        (sm(5 * HOUR, 1), "the same process"),
        (sm(5 * HOUR, 2, device="GPU-2"), "another GPU"),
    ],
)
def test_13_that_is_not_suspicious(second: Event, why: str) -> None:
    assert {f.severity for f in findings_of(sm(0, 1), second)} == {Severity.INFO}, why


def test_13_all_over_the_chip_is_the_programs() -> None:
    lines = [sm(n / 10 + repetition * 2 * HOUR, repetition, gpc=n, tpc=n) for repetition in range(2) for n in range(8)]
    assert {f.severity for f in findings_of(*lines)} == {Severity.INFO}


def test_31_of_different_jobs_on_one_gpu_is_suspicious_and_within_one_job_is_not() -> None:
    assert statements_of(findings_of(xid(31, job="a"), xid(31, 600.0, job="b"))) == [INFO, WARN]
    assert statements_of(findings_of(xid(31, job="a"), xid(31, 600.0, job="a"))) == [INFO, INFO]


def test_a_crash_loop_of_an_unknown_job_is_one_occasion() -> None:
    loop = [xid(31, n * 300.0, pid=n) for n in range(6)]
    assert {f.severity for f in findings_of(*loop)} == {Severity.INFO}
    assert findings_of(*loop, xid(31, 3 * HOUR, pid=99))[-1].severity is Severity.WARNING


def test_31_on_several_gpus_at_once_is_the_programs_fault() -> None:
    first = [xid(31, n / 10, f"GPU-{n}", pid=n) for n in range(8)]
    second = [xid(31, 5 * HOUR + n / 10, f"GPU-{n}", pid=100 + n) for n in range(8)]
    found = findings_of(*first, *second)
    assert {f.severity for f in found} <= {Severity.INFO, Severity.WARNING}
    last = {f.key: f for f in found}
    assert not [f for f in last.values() if f.severity is not Severity.INFO and f.active], "said too early, it ended"


def test_31_across_the_nodes_of_a_job_is_the_programs_fault() -> None:
    events = [
        xid(31, repetition * 5 * HOUR + n, "GPU-0", job=f"j{repetition}") for repetition in range(2) for n in range(3)
    ]
    spread = [replace(e, node=f"n{k % 3}") for k, e in enumerate(events)]
    last = {f.key: f for f in findings_of(*spread)}
    assert all(f.severity is Severity.INFO or not f.active for f in last.values())


def test_94_is_counted_per_gpu() -> None:
    found = findings_of(*(xid(94, n * DAY) for n in range(5)))
    assert statements_of(found)[-2:] == [INFO, WARN]


def test_a_suspicion_never_evicts_and_ends_after_a_quiet_day() -> None:
    detector = XidDetector()
    held = findings_of(sm(0, 1), sm(HOUR, 2), detector=detector)[-1]
    assert not held.recommended_action.evicts
    assert detector.advance_clock(T + HOUR + DAY - 60) == []
    (ended,) = detector.advance_clock(T + HOUR + DAY)
    assert (ended.active, ended.key) == (False, held.key)
    assert ended.evidence.summary == "It stayed quiet."


# several codes at once


def test_63_with_48_asks_for_the_reset_and_64_for_a_new_part() -> None:
    assert statements_of(findings_of(xid(63))) == [("info", "monitor", True)]
    assert statements_of(findings_of(xid(48), xid(63, 1.0)))[-1] == RESET
    assert statements_of(findings_of(xid(48), xid(64, 1.0)))[-1] == REPLACE


def test_154_leads_over_the_other_codes() -> None:
    found = findings_of(
        xid(48), xid(154, 0.2, text="recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")
    )
    assert statements_of(found) == [RESET, REBOOT]
    assert "it follows from XID 48" in found[1].evidence.summary


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("changed from 0x0 (None) to 0x1 (GPU Reset Required)", RESET),
        ("changed to 0x2 (Node Reboot Required)", REBOOT),
        ("changed to 0x3 (Drain P2P)", RESET),
        ("changed to 0x4 (Drain and Reset)", RESET),
        ("changed from 0x1 (GPU Reset Required) to 0x0 (None)", ("info", "none", True)),
        ("something new", WARN),
        ("", WARN),
    ],
)
def test_154_follows_its_text(text: str, expected: tuple[str, str, bool]) -> None:
    assert statements_of(findings_of(xid(154, text=text))) == [expected]


def test_154_does_not_silence_what_needs_a_person() -> None:
    assert statements_of(findings_of(xid(64), xid(154, 1.0, text="(GPU Reset Required)")))[-1] == REPLACE


def test_154_none_ends_what_a_reset_repairs() -> None:
    found = findings_of(xid(154, text="(GPU Reset Required)"), xid(48, 0.1), xid(154, 30.0, text="(None)"))
    assert statements_of(found) == [RESET, RESET, ("critical", "reset_gpu", False)]


# restarts, closed findings and changed policies


def test_events_shown_again_after_a_restart_build_the_same_state() -> None:
    past = [xid(79), boot(HOUR)]
    detector = XidDetector()
    detector.update(past)
    assert statements_of(detector.update([*past, xid(79, DAY)])) == [INSPECT]


def test_what_left_the_memory_can_still_end() -> None:
    held = findings_of(xid(79), xid(31, 0.0, "GPU-2"), xid(64, 0.0, "GPU-3"))
    detector = XidDetector()
    detector.restore_findings(
        [*held, replace(held[0], detector="other", entity=replace(held[0].entity, device="GPU-9"))]
    )
    ended = detector.advance_clock(T + 2 * HOUR)
    assert [f.entity.device for f in ended] == ["GPU-2"]
    ended = detector.update([boot(3 * HOUR)])
    assert [(f.entity.device, f.active) for f in ended] == [("GPU-1", False)]
    assert detector.advance_clock(T + 30 * DAY) == [], "a part to be replaced waits for a person"


def test_what_a_person_closed_is_forgotten() -> None:
    detector = XidDetector()
    (found,) = findings_of(xid(64), detector=detector)
    detector.release({found.key}, before=T + HOUR)
    assert findings_of(xid(31, HOUR), detector=detector) == [], "it holds: what is milder is not told"
    detector.release(set(), before=T)
    assert findings_of(xid(31, HOUR + 100), detector=detector) == [], "too fresh to be missing"
    detector.release(set(), before=T + 10.0)
    assert statements_of(findings_of(xid(13, 2 * HOUR), detector=detector)) == [INFO]


def test_another_policy_takes_over_what_is_known() -> None:
    detector = XidDetector()
    findings_of(xid(79), detector=detector)
    strict = load('[xid.79]\nrecommended_action = "inspect_node"')
    assert statements_of(detector.follow(strict, T + 1)) == [INSPECT]
    assert detector.follow(strict, T + 2) == []
    mild = load('[xid.79]\nseverity = "info"\nrecommended_action = "monitor"')
    assert statements_of(detector.follow(mild, T + 3)) == [("critical", "inspect_node", False)]


@pytest.mark.slow
def test_the_memory_of_one_device_is_bounded() -> None:
    detector = XidDetector()
    for n in range(3000):
        detector.update([xid(n % 170, n * 100.0, pid=n, link=n, gpc=n, tpc=n, job=f"j{n}", text="x" * (n % 500))])
    (history,) = (h for p, h in detector._histories.items() if p.device)
    assert len(history.bursts) <= 24
    assert all(len(b.processes) <= 8 and len(b.text) <= 400 for b in history.bursts)


@pytest.mark.parametrize("code", [13, 45, 63, 79])
def test_what_is_told_of_the_node_in_the_same_second_says_nothing_new_of_the_error(code: int) -> None:
    for context in (
        event(EventKind.NODE_STOPPING),
        event(EventKind.NODE_STARTED, uptime=5 * DAY, boot_id="known"),
        event(EventKind.GPU_EVENT, 0.0, "GPU-1", what="reset", success="false"),
    ):
        first, *more = findings_of(xid(code), context)
        assert (first.active, more) == (True, [])
