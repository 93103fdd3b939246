"""A silence that was told is ended by whoever hears the end, this daemon or the next."""

from __future__ import annotations

from pathlib import Path

import pytest

from probes.samplers.base import Happened
from probes.silences import Silences, Subject, of
from probes.words import EventKind

CARD = Subject("gpu-1", "nvml", "nvml/gpu-1")


def test_an_end_is_told_of_what_had_begun_and_once(tmp_path: Path) -> None:
    silences = Silences(tmp_path / "silences.json")
    assert not silences.end(CARD)
    silences.begin(CARD)
    silences.begin(CARD)
    assert not silences.end(Subject(None, "nvml", "nvml/gpu-1")), "the node is not the card"
    assert silences.end(CARD)
    assert not silences.end(CARD)


def test_the_next_daemon_ends_what_this_one_began(tmp_path: Path) -> None:
    first = Silences(tmp_path / "silences.json")
    first.begin(CARD)
    first.begin(Subject(None, "nvml"))
    second = Silences(tmp_path / "silences.json")
    assert second.of_the_child() == [Subject(None, "nvml")]
    assert second.end(CARD)
    assert not Silences(tmp_path / "silences.json").end(CARD)


@pytest.mark.parametrize("junk", [b"", b"{", b"[1]", b'{"a":1}', b"\xff"])
def test_a_file_that_cannot_be_read_is_nothing(tmp_path: Path, junk: bytes) -> None:
    (tmp_path / "silences.json").write_bytes(junk)
    silences = Silences(tmp_path / "silences.json")
    assert not silences.of_the_child()
    silences.begin(CARD)
    assert Silences(tmp_path / "silences.json").end(CARD)


def test_a_disk_that_refuses_costs_the_memory_of_it_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    silences = Silences(tmp_path / "none" / "silences.json")
    silences.begin(CARD)
    assert silences.end(CARD)
    assert "cannot be kept" in caplog.text


def test_what_a_child_says_names_its_silence() -> None:
    told = Happened(
        kind=EventKind.PROBE_SILENT, t=1.0, device="gpu-1", data={"sampler": "nvml", "lane": "nvml/gpu-1", "hung": True}
    )
    assert of(told) == CARD
