"""XID codes of NVLink and NVSwitch: which of them are faults and which are not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mainstay.detectors.finding import FindingKind
from mainstay.probes.core_types import Event, EventKind
from tests.detectors.gpu.xid_events import (
    DAY,
    HOUR,
    REBOOT,
    RESET,
    WARN,
    T,
    boot,
    event,
    findings_of,
    statements_of,
    xid,
)


def test_74_reads_its_registers() -> None:
    def line(first: str) -> Event:
        return xid(74, text=f"NVLink: fatal error detected on link 2({first}, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)")

    assert statements_of(findings_of(line("0x40000000"))) == [("info", "none", True)]
    assert statements_of(findings_of(line("0x10"))) == [RESET]
    assert statements_of(findings_of(line("0x200000"))) == [WARN]
    assert statements_of(findings_of(line("0x2"))) == [RESET]
    explained = findings_of(xid(48, -10.0), line("0x2"))
    assert "XID 48" in explained[-1].evidence.summary, "48 speaks; the link is explained"


def test_74_twice_on_one_link_is_no_flap() -> None:
    assert statements_of(findings_of(xid(74, link=3), xid(74, HOUR, link=3))) == [WARN, RESET]
    assert statements_of(findings_of(xid(74, link=3), xid(74, HOUR, link=4))) == [WARN, WARN]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"text": "NETIR_LINK_EVT Fatal XC0 i0 Link 03"}, RESET),
        ({"text": "NETIR_LINK_EVT Nonfatal XC0 i0 Link 03"}, ("info", "monitor", True)),
        ({"text": "NETIR_LINK_EVT Non-fatal XC0 i0 Link 03"}, ("info", "monitor", True)),
        ({"fatal": True, "unit": "NETIR"}, RESET),
        ({"fatal": False}, ("info", "monitor", True)),
    ],
)
def test_fatal_and_nonfatal_of_the_fifth_nvlink(data: dict[str, Any], expected: tuple[str, str, bool]) -> None:
    assert statements_of(findings_of(xid(149, **data))) == [expected]


LINKS = (xid(149, 10.0, fatal=True, link=3), xid(74, 10.0, link=3), xid(136, 10.0))


@pytest.mark.parametrize("line", LINKS, ids=["149", "74", "136"])
def test_links_that_go_down_with_their_node_are_information(line: Event) -> None:
    """214 of 288 nodes said NVLINK_DOWN; every one of them had been rebooted on purpose."""
    stopping = event(EventKind.NODE_STOPPING, 0.0, reason="shutdown")
    found = findings_of(stopping, line)
    assert statements_of(found) == [("info", "none", True)]
    assert "during an orderly stop" in found[0].evidence.summary
    late = findings_of(line, replace(stopping, time=T + 30.0))
    assert statements_of(late)[-1][2] is False, "said a moment too early, it is taken back"


def test_links_that_train_at_boot_are_information() -> None:
    assert statements_of(findings_of(xid(149, fatal=True, uptime=40.0))) == [("info", "none", True)]
    assert statements_of(findings_of(boot(0.0), xid(149, 100.0, fatal=True, uptime=None))) == [("info", "none", True)]
    assert statements_of(findings_of(xid(149, fatal=True, uptime=400.0))) == [RESET]
    assert statements_of(findings_of(xid(79, uptime=40.0))) == [REBOOT], "a GPU that fell off the bus does not train"


def test_a_stop_long_ago_or_before_a_boot_forgives_nothing() -> None:
    stopping = event(EventKind.NODE_STOPPING, -HOUR, reason="shutdown")
    assert statements_of(findings_of(stopping, xid(149, fatal=True))) == [RESET]
    quick = [event(EventKind.NODE_STOPPING, -60.0, reason="stopped"), boot(-10.0, uptime=45.0)]
    assert statements_of(findings_of(*quick, xid(149, 50.0, fatal=True, uptime=DAY)))[-1] == RESET


def test_a_switch_says_itself_whether_it_is_fatal() -> None:
    def sxid(code: int, **data: Any) -> Event:
        return event(EventKind.SXID, code=code, **{"uptime": DAY, **data})

    assert statements_of(findings_of(sxid(20034, text="Fatal, Link 30 LTSSM Fault Up"))) == [REBOOT]
    assert statements_of(findings_of(sxid(20034, fatal=False))) == [WARN]
    assert statements_of(findings_of(sxid(12028))) == [WARN]
    assert statements_of(findings_of(sxid(11012))) == [("info", "none", True)]
    assert statements_of(findings_of(sxid(22011))) == [REBOOT]
    assert statements_of(findings_of(sxid(23007))) == [REBOOT]
    assert findings_of(sxid(22011))[0].kind is FindingKind.SXID
    assert statements_of(findings_of(event(EventKind.NODE_STOPPING, -10.0), sxid(20034, fatal=True))) == [
        ("info", "none", True)
    ]
