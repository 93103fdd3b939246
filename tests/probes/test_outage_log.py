"""This daemon or the next one ends a reported outage."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainstay.probes.core_types import EventKind
from mainstay.probes.outage_log import OutageLog, OutageSubject, subject_of
from mainstay.probes.samplers.base import SourceEvent

CARD = OutageSubject("gpu-1", "nvml", "nvml/gpu-1")


def test_only_an_open_outage_ends_and_once(tmp_path: Path) -> None:
    outages = OutageLog(tmp_path / "outages.json")
    assert not outages.end_outage(CARD)
    outages.open_outage(CARD)
    outages.open_outage(CARD)
    assert not outages.end_outage(OutageSubject(None, "nvml", "nvml/gpu-1")), "the node is not the card"
    assert outages.end_outage(CARD)
    assert not outages.end_outage(CARD)


def test_the_next_daemon_ends_what_this_one_began(tmp_path: Path) -> None:
    first = OutageLog(tmp_path / "outages.json")
    first.open_outage(CARD)
    first.open_outage(OutageSubject(None, "nvml"))
    second = OutageLog(tmp_path / "outages.json")
    assert second.outages_of_child() == [OutageSubject(None, "nvml")]
    assert second.end_outage(CARD)
    assert not OutageLog(tmp_path / "outages.json").end_outage(CARD)


@pytest.mark.parametrize("junk", [b"", b"{", b"[1]", b'{"a":1}', b"\xff"])
def test_a_file_that_cannot_be_read_is_nothing(tmp_path: Path, junk: bytes) -> None:
    (tmp_path / "outages.json").write_bytes(junk)
    outages = OutageLog(tmp_path / "outages.json")
    assert not outages.outages_of_child()
    outages.open_outage(CARD)
    assert OutageLog(tmp_path / "outages.json").end_outage(CARD)


def test_a_disk_that_refuses_costs_the_memory_of_it_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    outages = OutageLog(tmp_path / "none" / "outages.json")
    outages.open_outage(CARD)
    assert outages.end_outage(CARD)
    assert "cannot save the open outages" in caplog.text


def test_a_message_of_a_child_names_its_outage() -> None:
    event = SourceEvent(
        kind=EventKind.PROBE_UNRESPONSIVE,
        t=1.0,
        device="gpu-1",
        data={"sampler": "nvml", "channel": "nvml/gpu-1", "hung": True},
    )
    assert subject_of(event) == CARD
