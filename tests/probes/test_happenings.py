"""From what a source tells to an event: placed, at once, and in order of a stop."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from probes import goodbye
from probes.happenings import Happenings, uptime
from probes.pci import canonical
from probes.samplers.base import DeviceIdentity, Happened
from probes.words import Event, EventKind

GPU = DeviceIdentity(id="GPU-1", index=0, kind="gpu", model="m", uuid="GPU-1", facts={"pci": "00000000:0A:00.0"})
PORTS = tuple(
    DeviceIdentity(id=f"nic:mlx5_{k}:1", index=k, kind="nic", model="m",
                   facts={"pci": "0000:b1:00.0", "interface": f"eth{k}"}) for k in range(2)
)  # fmt: skip


@pytest.fixture
def made() -> Iterator[tuple[Happenings, list[Event]]]:
    events: list[Event] = []
    happenings = Happenings("n", events.append)
    happenings.start()
    yield happenings, events
    happenings.stop()


def wait(events: list[Event], count: int) -> list[Event]:
    deadline = time.monotonic() + 60
    while len(events) < count:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return events


def xid(pci: str | None = "0000:0a:00", **data: object) -> Happened:
    about = {"code": 79, "source": "kernel"} | ({"pci": pci} if pci else {}) | data
    return Happened(kind=EventKind.XID, t=time.time(), data=about)


@pytest.mark.parametrize(("text", "same"), [
    ("0000:0a:00", "0000:0a:00.0"), ("00000000:0A:00.0", "0000:0a:00.0"), ("0a:00.1", "0000:0a:00.1"),
    ("0018:01:00", "0018:01:00.0"), ("00000018:01:00.0", "0018:01:00.0"), ("GPU-1", None), ("", None), ("a", None),
])  # fmt: skip
def test_an_address_has_one_spelling(text: str, same: str | None) -> None:
    assert canonical(text) == same


def test_it_is_an_event_within_milliseconds(made: tuple[Happenings, list[Event]]) -> None:
    happenings, events = made
    happenings.know([GPU, *PORTS])
    started = time.perf_counter()
    happenings.tell(xid())
    (event,) = wait(events, 1)
    assert time.perf_counter() - started < 0.5
    assert (event.node, event.device, event.data["code"]) == ("n", "GPU-1", 79)
    assert event.data["uptime"] == pytest.approx(uptime(time.time()), abs=2)


def test_a_card_that_is_gone_keeps_its_address_and_ports_are_told_apart(made: tuple[Happenings, list[Event]]) -> None:
    happenings, events = made
    happenings.know([GPU, *PORTS])
    happenings.know(PORTS)
    happenings.tell(xid())
    happenings.tell(xid("0000:b1:00.0", interface="eth1"))
    happenings.tell(xid("0000:ff:00.0"))
    happenings.tell(xid(None, uuid="nic:mlx5_0:1"))
    assert [event.device for event in wait(events, 4)] == ["GPU-1", "nic:mlx5_1:1", None, "nic:mlx5_0:1"]


def test_a_port_that_is_watched_is_not_told_twice(made: tuple[Happenings, list[Event]]) -> None:
    happenings, events = made
    happenings.know([GPU, *PORTS])
    for pci in ("0000:b1:00.0", "0000:ff:00.0"):
        data = {"source": "kernel", "pci": pci, "link": "eth0", "interface": "eth0"}
        happenings.tell(Happened(kind=EventKind.LINK_DOWN, t=time.time(), data=data))
    happenings.tell(Happened(kind=EventKind.LINK_DOWN, t=time.time(), device=PORTS[0].id, data={"link": "eth0"}))
    assert [event.device for event in wait(events, 2)] == [None, PORTS[0].id]


def test_what_comes_before_the_devices_are_known_waits_for_them() -> None:
    events: list[Event] = []
    happenings = Happenings("n", events.append)
    happenings.start()
    happenings.tell(xid())
    happenings.tell(Happened(kind=EventKind.KERNEL_FAULT, t=time.time(), data={"fault": "oom"}))
    wait(events, 1)
    assert [event.kind for event in events] == [EventKind.KERNEL_FAULT]
    happenings.know([GPU])
    assert wait(events, 2)[1].device == "GPU-1"
    happenings.stop()


def test_devices_that_never_come_are_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probes.happenings._KNOWN_LATER_S", 0.05)
    events: list[Event] = []
    happenings = Happenings("n", events.append)
    happenings.start()
    happenings.tell(xid())
    assert wait(events, 1)[0].device is None
    happenings.stop()


def test_a_stop_says_what_was_held_back_and_then_goodbye(made: tuple[Happenings, list[Event]]) -> None:
    happenings, events = made
    happenings.know([GPU])
    for _ in range(50):
        happenings.tell(xid())
    happenings.stop(Happened(kind=EventKind.NODE_STOPPING, t=time.time(), data={"reason": "stopped"}))
    assert [event.kind for event in events] == [EventKind.XID] * 4 + [EventKind.NODE_STOPPING]
    assert events[3].data["count"] == 47


def test_a_disk_that_refuses_costs_that_event_only(caplog: pytest.LogCaptureFixture) -> None:
    taken: list[Event] = []

    def put(event: Event) -> None:
        if not caplog.records:
            raise OSError("full")
        taken.append(event)

    happenings = Happenings("n", put)
    happenings.start()
    happenings.know([GPU])
    happenings.tell(xid())
    happenings.tell(xid())
    wait(taken, 1)
    happenings.stop()
    assert "an event is lost: full" in caplog.text


def test_a_report_that_nobody_foresaw_costs_itself_only(
    made: tuple[Happenings, list[Event]], caplog: pytest.LogCaptureFixture
) -> None:
    happenings, events = made
    happenings.know([GPU])
    happenings.tell(xid(fields=object(), code=[1, {}]))  # cannot be a key
    happenings.tell(xid())
    assert wait(events, 1)[0].data["code"] == 79
    assert "a report is lost" in caplog.text


def test_a_machine_that_goes_down_is_told_from_a_daemon_that_was_stopped(tmp_path: Path) -> None:
    assert goodbye.reason(tmp_path, lambda: "stopping") == "stopped", "no systemd: nobody is asked"
    (tmp_path / "systemd" / "system").mkdir(parents=True)
    assert goodbye.reason(tmp_path, lambda: "stopping") == "shutdown"
    assert goodbye.reason(tmp_path, lambda: "degraded") == "stopped"
    assert goodbye.reason(tmp_path, lambda: "") == "stopped"
