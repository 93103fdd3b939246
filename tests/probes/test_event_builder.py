"""From what a source tells to an event: placed, at once, and in order of a stop."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainstay.probes import shutdown_reason
from mainstay.probes.core_types import Event, EventKind
from mainstay.probes.event_builder import EventBuilder, uptime
from mainstay.probes.pci import canonical
from mainstay.probes.samplers.base import DeviceIdentity, SourceEvent

GPU = DeviceIdentity(id="GPU-1", index=0, kind="gpu", model="m", uuid="GPU-1", facts={"pci": "00000000:0A:00.0"})
PORTS = tuple(
    DeviceIdentity(id=f"nic:mlx5_{k}:1", index=k, kind="nic", model="m",
                   facts={"pci": "0000:b1:00.0", "interface": f"eth{k}"}) for k in range(2)
)  # fmt: skip


@pytest.fixture
def built() -> Iterator[tuple[EventBuilder, list[Event]]]:
    events: list[Event] = []
    event_builder = EventBuilder("n", events.append)
    event_builder.start()
    yield event_builder, events
    event_builder.stop()


def wait(events: list[Event], count: int) -> list[Event]:
    deadline = time.monotonic() + 60
    while len(events) < count:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return events


def xid(pci: str | None = "0000:0a:00", **data: object) -> SourceEvent:
    about = {"code": 79, "source": "kernel"} | ({"pci": pci} if pci else {}) | data
    return SourceEvent(kind=EventKind.XID, t=time.time(), data=about)


@pytest.mark.parametrize(("text", "same"), [
    ("0000:0a:00", "0000:0a:00.0"), ("00000000:0A:00.0", "0000:0a:00.0"), ("0a:00.1", "0000:0a:00.1"),
    ("0018:01:00", "0018:01:00.0"), ("00000018:01:00.0", "0018:01:00.0"), ("GPU-1", None), ("", None), ("a", None),
])  # fmt: skip
def test_an_address_has_one_spelling(text: str, same: str | None) -> None:
    assert canonical(text) == same


def test_it_is_an_event_within_milliseconds(built: tuple[EventBuilder, list[Event]]) -> None:
    event_builder, events = built
    event_builder.set_uptime_source([GPU, *PORTS])
    started = time.perf_counter()
    event_builder.submit(xid())
    (event,) = wait(events, 1)
    assert time.perf_counter() - started < 0.5
    assert (event.node, event.device, event.data["code"]) == ("n", "GPU-1", 79)
    assert event.data["uptime"] == pytest.approx(uptime(time.time()), abs=2)


def test_a_card_that_is_gone_keeps_its_address_and_ports_are_told_apart(
    built: tuple[EventBuilder, list[Event]],
) -> None:
    event_builder, events = built
    event_builder.set_uptime_source([GPU, *PORTS])
    event_builder.set_uptime_source(PORTS)
    event_builder.submit(xid())
    event_builder.submit(xid("0000:b1:00.0", interface="eth1"))
    event_builder.submit(xid("0000:ff:00.0"))
    event_builder.submit(xid(None, uuid="nic:mlx5_0:1"))
    assert [event.device for event in wait(events, 4)] == ["GPU-1", "nic:mlx5_1:1", None, "nic:mlx5_0:1"]


def test_a_port_that_is_watched_is_not_told_twice(built: tuple[EventBuilder, list[Event]]) -> None:
    event_builder, events = built
    event_builder.set_uptime_source([GPU, *PORTS])
    for pci in ("0000:b1:00.0", "0000:ff:00.0"):
        data = {"source": "kernel", "pci": pci, "link": "eth0", "interface": "eth0"}
        event_builder.submit(SourceEvent(kind=EventKind.LINK_DOWN, t=time.time(), data=data))
    event_builder.submit(
        SourceEvent(kind=EventKind.LINK_DOWN, t=time.time(), device=PORTS[0].id, data={"link": "eth0"})
    )
    assert [event.device for event in wait(events, 2)] == [None, PORTS[0].id]


def test_what_comes_before_the_devices_are_known_waits_for_them() -> None:
    events: list[Event] = []
    event_builder = EventBuilder("n", events.append)
    event_builder.start()
    event_builder.submit(xid())
    event_builder.submit(SourceEvent(kind=EventKind.KERNEL_FAULT, t=time.time(), data={"fault": "oom"}))
    wait(events, 1)
    assert [event.kind for event in events] == [EventKind.KERNEL_FAULT]
    event_builder.set_uptime_source([GPU])
    assert wait(events, 2)[1].device == "GPU-1"
    event_builder.stop()


def test_devices_that_never_come_are_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainstay.probes.event_builder._KNOWN_LATER_S", 0.05)
    events: list[Event] = []
    event_builder = EventBuilder("n", events.append)
    event_builder.start()
    event_builder.submit(xid())
    assert wait(events, 1)[0].device is None
    event_builder.stop()


def test_a_stop_says_what_was_held_back_and_then_shutdown_notice(built: tuple[EventBuilder, list[Event]]) -> None:
    event_builder, events = built
    event_builder.set_uptime_source([GPU])
    for _ in range(50):
        event_builder.submit(xid())
    event_builder.stop(SourceEvent(kind=EventKind.NODE_STOPPING, t=time.time(), data={"reason": "stopped"}))
    assert [event.kind for event in events] == [EventKind.XID] * 4 + [EventKind.NODE_STOPPING]
    assert events[3].data["count"] == 47


def test_a_disk_that_refuses_costs_that_event_only(caplog: pytest.LogCaptureFixture) -> None:
    taken: list[Event] = []

    def put(event: Event) -> None:
        if not caplog.records:
            raise OSError("full")
        taken.append(event)

    event_builder = EventBuilder("n", put)
    event_builder.start()
    event_builder.set_uptime_source([GPU])
    event_builder.submit(xid())
    event_builder.submit(xid())
    wait(taken, 1)
    event_builder.stop()
    assert "an event is lost: full" in caplog.text


def test_a_report_that_nobody_foresaw_costs_itself_only(
    built: tuple[EventBuilder, list[Event]], caplog: pytest.LogCaptureFixture
) -> None:
    event_builder, events = built
    event_builder.set_uptime_source([GPU])
    event_builder.submit(xid(fields=object(), code=[1, {}]))  # cannot be a key
    event_builder.submit(xid())
    assert wait(events, 1)[0].data["code"] == 79
    assert "a report is lost" in caplog.text


def test_a_machine_that_goes_down_is_told_from_a_daemon_that_was_stopped(tmp_path: Path) -> None:
    assert shutdown_reason.shutdown_reason(tmp_path, lambda: "stopping") == "stopped", "no systemd: stopped"
    (tmp_path / "systemd" / "system").mkdir(parents=True)
    assert shutdown_reason.shutdown_reason(tmp_path, lambda: "stopping") == "shutdown"
    assert shutdown_reason.shutdown_reason(tmp_path, lambda: "degraded") == "stopped"
    assert shutdown_reason.shutdown_reason(tmp_path, lambda: "") == "stopped"
