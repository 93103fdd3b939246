"""The network ports, read from a tree of kernel files made for the purpose, and the events of their ups and downs."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from mainstay.probes.core_types import EventKind
from mainstay.probes.samplers.base import Readings, SourceEvent
from mainstay.probes.samplers.nic import NicConfig, NicSampler
from mainstay.probes.samplers.port_watch import GONE_S, STEADY_S, TRAINING_S, PortWatch

COUNTERS = {
    "counters/port_rcv_data": 1000, "counters/port_xmit_data": 2000, "counters/port_xmit_wait": 30,
    "counters/link_downed": 0, "counters/symbol_error": 3, "counters/link_error_recovery": 1,
    "counters/port_rcv_errors": 2, "counters/port_xmit_discards": 4, "counters/local_link_integrity_errors": 0,
    "counters/excessive_buffer_overrun_errors": 0, "hw_counters/local_ack_timeout_err": 5,
    "hw_counters/out_of_sequence": 6, "hw_counters/rnr_nak_retry_err": 7, "hw_counters/roce_slow_restart": 8,
}  # fmt: skip
DOWN, UP = EventKind.LINK_DOWN, EventKind.LINK_UP


def port(sys: Path, device: str = "mlx5_0", number: int = 1, *, ethernet: bool = False, **files: Any) -> Path:
    """The files of one port; more of them by keyword, a slash written as two underscores."""
    adapter = sys / "class/infiniband" / device
    folder = adapter / "ports" / str(number)
    texts = {
        "state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)",
        "link_layer": "Ethernet" if ethernet else "InfiniBand", **COUNTERS,
    }  # fmt: skip
    texts |= {name.replace("__", "/"): text for name, text in files.items()}
    own = {
        "hca_type": "MT4129",
        "board_id": "MT_0000000838",
        "node_guid": f"a088:c203:{device}",
        "fw_ver": "28.39.2048",
    }
    for where, contents in ((folder, texts), (adapter, own)):
        for name, text in contents.items():
            (where / name).parent.mkdir(parents=True, exist_ok=True)
            if text is not None:
                (where / name).write_text(f"{text}\n")
    bus = sys / "devices/pci0000:00" / f"0000:{number + int(device[-1]):02}:00.0"
    (bus / "net" / f"eth{device[-1]}").mkdir(parents=True, exist_ok=True)
    (bus / "numa_node").write_text("1\n")
    if not (adapter / "device").exists():
        (adapter / "device").symlink_to(bus)
    return folder


def world(directory: Path) -> dict[str, str]:
    """Two ports, and the variable that says where they are."""
    port(directory, "mlx5_0")
    port(directory, "mlx5_1", ethernet=True)
    return {"SYSFS_PATH": str(directory)}


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    return tmp_path


def build(sys: Path) -> NicSampler:
    return NicConfig(sys=sys).build()


def read(sys: Path, name: str = "nic:mlx5_0:1") -> Readings:
    return build(sys).sample(0.0)[name]


class Listener:
    """A sampler that is heard second by second."""

    def __init__(self, sys: Path) -> None:
        self.said: list[SourceEvent] = []
        self.sampler = build(sys)
        self.sampler.listen(self.said.append)
        self.t = 0.0

    def run(self, seconds: int = 1) -> list[SourceEvent]:
        """Return the events of these seconds."""
        before = len(self.said)
        for _ in range(seconds):
            self.t += 1.0
            self.sampler.sample(self.t)
        return self.said[before:]


def test_every_signal_of_a_port_in_its_unit(sys: Path) -> None:
    port(sys)
    assert read(sys) == {
        "nic_link_up": 1.0, "nic_rate_bits_per_second": 400e9,
        "nic_receive_bytes_total": 4000, "nic_transmit_bytes_total": 8000, "nic_transmit_wait_total": 30,
        "nic_link_downed_total": 0, "nic_symbol_errors_total": 3, "nic_link_recoveries_total": 1,
        "nic_receive_errors_total": 2, "nic_transmit_discards_total": 4, "nic_local_integrity_errors_total": 0,
        "nic_buffer_overruns_total": 0, "nic_ack_timeouts_total": 5, "nic_out_of_sequence_total": 6,
        "nic_rnr_retries_total": 7, "nic_slow_restarts_total": 8,
    }  # fmt: skip


def test_a_port_says_who_it_is(sys: Path) -> None:
    port(sys, ethernet=True)
    port(sys, number=2)
    port(sys, "mlx5_9")
    first, second, last = build(sys).devices()
    assert (first.id, first.index, first.kind, first.model) == ("nic:mlx5_0:1", 0, "nic", "MT4129 (MT_0000000838)")
    assert first.serial == "a088:c203:mlx5_0"
    assert first.facts == {
        "pci": "0000:01:00.0", "firmware": "28.39.2048", "board": "MT_0000000838", "numa_node": "1",
        "link_layer": "Ethernet", "interface": "eth0", "rate": "400 Gb/sec (4X NDR)",
    }  # fmt: skip
    assert (second.id, second.serial) == ("nic:mlx5_0:2", "a088:c203:mlx5_0/2"), "ports of one adapter are two things"
    assert (last.id, last.index) == ("nic:mlx5_9:1", 2)


def test_ports_stand_in_the_order_that_people_count_in(sys: Path) -> None:
    for n in (10, 9, 1):
        port(sys, f"mlx5_{n}")
    assert [device.id for device in build(sys).devices()] == ["nic:mlx5_1:1", "nic:mlx5_9:1", "nic:mlx5_10:1"]


@pytest.mark.parametrize("rate", ["2.5 Gb/sec (1X SDR)", "100 Gb/sec (2X HDR)", "800 Gb/sec (4X XDR)"])
def test_rates_of_all_ages_are_understood(sys: Path, rate: str) -> None:
    port(sys, rate=rate)
    assert read(sys)["nic_rate_bits_per_second"] == float(rate.split(maxsplit=1)[0]) * 1e9


@pytest.mark.parametrize("rate", ["", "fast", "400 Mb/sec", "x Gb/sec"])
def test_a_rate_that_nobody_understands_is_unknown(sys: Path, rate: str) -> None:
    port(sys, rate=rate)
    assert "nic_rate_bits_per_second" not in read(sys)


@pytest.mark.parametrize(
    ("state", "phys_state", "up"),
    [("4: ACTIVE", "5: LinkUp", 1.0), ("1: DOWN", "3: Disabled", 0.0), ("2: INIT", "5: LinkUp", 0.0),
     ("4: ACTIVE", "6: LinkErrorRecovery", 0.0), ("4: ACTIVE", None, 1.0)],
)  # fmt: skip
def test_a_port_is_up_when_it_is_usable(sys: Path, state: str, phys_state: str | None, up: float) -> None:
    port(sys, state=state, phys_state=phys_state)
    readings = read(sys)
    assert readings["nic_link_up"] == up
    assert ("nic_rate_bits_per_second" in readings) == bool(up), "a port that is down has no rate"


@pytest.mark.parametrize(
    ("name", "full", "signal"),
    [("symbol_error", 2**16 - 1, "nic_symbol_errors_total"), ("link_error_recovery", 255, "nic_link_recoveries_total"),
     ("local_link_integrity_errors", 15, "nic_local_integrity_errors_total"),
     ("port_rcv_data", 2**32 - 1, "nic_receive_bytes_total"),
     ("port_xmit_data", 2**64 - 1, "nic_transmit_bytes_total")],
)  # fmt: skip
def test_a_counter_that_is_full_has_stopped_counting(sys: Path, name: str, full: int, signal: str) -> None:
    port(sys, **{f"counters__{name}": full})
    assert signal not in read(sys), "unknown, for its rate of zero would look healthy"


def test_a_wide_counter_may_pass_the_place_where_a_narrow_one_ends(sys: Path) -> None:
    folder = port(sys, counters__symbol_error=2**16 + 5)
    sampler = build(sys)
    sampler.sample(0.0)
    (folder / "counters/symbol_error").write_text(f"{2**16 - 1}\n")  # reset, and by chance here again
    assert sampler.sample(10.0)["nic:mlx5_0:1"]["nic_symbol_errors_total"] == 2**16 - 1


@pytest.mark.parametrize("gone", [*COUNTERS, "rate", "phys_state", "state"])
@pytest.mark.parametrize("content", [None, "", "nonsense\n", "-1\n"])
def test_one_unreadable_file_costs_its_own_signals_only(sys: Path, gone: str, content: str | None) -> None:
    folder = port(sys)
    whole = set(read(sys))
    (folder / gone).unlink() if content is None else (folder / gone).write_text(content)
    left = set(read(sys))
    assert left <= whole
    assert len(whole - left) <= 2


def test_errors_are_counted_every_ten_seconds_and_the_state_every_second(sys: Path) -> None:
    port(sys)
    sampler = build(sys)
    slow = [t for t in range(25) if "nic_symbol_errors_total" in sampler.sample(1000.0 + t)["nic:mlx5_0:1"]]
    assert slow == [0, 10, 20]


def test_a_port_that_falls_and_comes_back_is_told_in_the_same_second(sys: Path) -> None:
    folder = port(sys)
    listener = Listener(sys)
    listener.run(30)
    assert listener.said == []
    (folder / "state").write_text("1: DOWN\n")
    (folder / "phys_state").write_text("2: Polling\n")
    (down,) = listener.run()
    assert (down.kind, down.t, down.device) == (DOWN, 31.0, "nic:mlx5_0:1")
    assert down.data == {"link": "mlx5_0:1", "since_up": 30.0, "state": "DOWN, Polling"}
    assert listener.run(5) == []
    (folder / "state").write_text("4: ACTIVE\n")
    (folder / "phys_state").write_text("5: LinkUp\n")
    (up,) = listener.run()
    assert (up.kind, up.data["since_down"]) == (UP, 6.0)


def test_a_flap_between_two_samples_is_seen_by_its_counter(sys: Path) -> None:
    folder = port(sys)
    listener = Listener(sys)
    listener.run(3)
    (folder / "counters/link_downed").write_text("2\n")
    down, up = listener.run()
    assert (down.kind, down.data["flaps"], down.data["back"], down.data["since_up"]) == (DOWN, 2, True, 3.0)
    assert (up.kind, up.data["since_down"]) == (UP, 0.0)


def test_an_ethernet_port_counts_its_falls_in_its_interface(sys: Path) -> None:
    port(sys, ethernet=True)
    carrier = sys / "class/infiniband/mlx5_0/device/net/eth0/carrier_down_count"
    carrier.write_text("7\n")
    listener = Listener(sys)
    listener.run(3)
    carrier.write_text("8\n")
    assert [said.kind for said in listener.run()] == [DOWN, UP]


def test_a_port_that_was_never_up_is_not_in_use(sys: Path) -> None:
    port(sys, state="1: DOWN", phys_state="3: Disabled")
    listener = Listener(sys)
    listener.run(1200)
    assert listener.said == []
    assert listener.sampler.sample(1300.0)["nic:mlx5_0:1"]["nic_link_up"] == 0.0


def test_a_port_that_comes_up_later_takes_back_what_an_earlier_daemon_said(sys: Path) -> None:
    folder = port(sys, state="1: DOWN")
    listener = Listener(sys)
    assert listener.run(2000) == []
    (folder / "state").write_text("4: ACTIVE\n")
    (steady,) = listener.run(700)
    assert (steady.device, steady.data["steady_seconds"]) == ("nic:mlx5_0:1", STEADY_S)


def test_a_driver_that_is_loaded_anew_is_no_fault(sys: Path) -> None:
    folder = port(sys)
    listener = Listener(sys)
    listener.run(3)
    shutil.rmtree(sys / "class/infiniband/mlx5_0")
    listener.run(20)
    assert listener.sampler.devices() == ()
    port(sys, state="2: INIT")
    listener.run(15)
    (folder / "state").write_text("4: ACTIVE\n")
    listener.run(60)
    assert listener.said == []


def test_a_driver_that_is_loaded_anew_between_two_samples_is_noticed(sys: Path) -> None:
    port(sys, counters__link_downed=5)
    listener = Listener(sys)
    listener.run(3)
    folder = sys / "class/infiniband/mlx5_0/ports/1"
    folder.rename(folder.with_name("old"))  # so that its inode is not given out again
    port(sys, state="2: INIT", counters__link_downed=0)
    shutil.rmtree(folder.with_name("old"))
    assert listener.run(30) == [], "it trains"
    (down, *_rest) = listener.run(40)
    assert (down.kind, down.t) == (DOWN, 4.0 + TRAINING_S), "it did not come up"


def test_a_port_that_vanishes_is_reported_and_so_is_its_return(sys: Path) -> None:
    port(sys)
    port(sys, "mlx5_1")
    listener = Listener(sys)
    listener.run(3)
    shutil.rmtree(sys / "class/infiniband/mlx5_1")
    assert listener.run(int(GONE_S)) == []
    (down,) = listener.run(60)
    assert (down.kind, down.device, down.data["gone"]) == (DOWN, "nic:mlx5_1:1", True)
    port(sys, "mlx5_1")
    (up,) = listener.run(3)
    assert (up.kind, up.device) == (UP, "nic:mlx5_1:1")


def test_a_burst_of_flaps_is_a_handful_of_events_and_none_is_lost(sys: Path) -> None:
    folder = port(sys)
    listener = Listener(sys)
    listener.run(3)
    for n in range(1, 121):
        (folder / "counters/link_downed").write_text(f"{(n + 1) // 2}\n")
        (folder / "state").write_text("4: ACTIVE\n" if n % 2 == 0 else "1: DOWN\n")
        listener.run()
    listener.run(30)
    assert len(listener.said) <= 30
    assert sum(said.data.get("flaps", 1) for said in listener.said if said.kind is DOWN) == 60
    assert listener.said[-1].kind is UP, "the last word is how it stands"


def test_a_port_that_stays_down_is_said_again_and_a_steady_one_once(sys: Path) -> None:
    folder = port(sys)
    listener = Listener(sys)
    listener.run(3)
    (folder / "state").write_text("1: DOWN\n")
    assert [said.data.get("down_seconds") for said in listener.run(1000)] == [None, 120.0, 900.0]
    (folder / "state").write_text("4: ACTIVE\n")
    listener.run()
    (steady,) = [said for said in listener.run(1000) if said.device]
    assert (steady.kind, steady.data["steady_seconds"]) == (UP, STEADY_S)


def test_what_an_earlier_daemon_said_is_over_when_the_ports_are_steady(sys: Path) -> None:
    port(sys)
    port(sys, "mlx5_1")
    port(sys, "mlx5_2", state="1: DOWN")
    listener = Listener(sys)
    assert listener.run(600) == []
    (all_,) = listener.run(1000)
    assert (all_.kind, all_.device) == (UP, None)
    assert all_.data["links"] == ["nic:mlx5_0:1", "nic:mlx5_1:1"]


def test_an_unreadable_state_is_neither_up_nor_down() -> None:
    watch = PortWatch("mlx5_0:1")
    said = [*watch.see(0.0, up=True, down_count=0), *watch.see(1.0, up=None, down_count=None)]
    said += watch.see(2.0, up=True, down_count=0)
    assert said == []


def test_channels_read_one_port_each_and_all_of_them_once(sys: Path) -> None:
    port(sys)
    port(sys, "mlx5_1")
    sampler = build(sys)
    channels = sampler.channels()
    assert [channel.name for channel in channels] == ["nic/nic:mlx5_0:1", "nic/nic:mlx5_1:1"]
    assert [set(channel.read(1.0)) for channel in channels] == [set(channel.devices) for channel in channels]
    shutil.rmtree(sys / "class/infiniband/mlx5_1")
    assert channels[1].read(2.0) == {}
    assert len(sampler.channels()) == 1


def test_it_says_why_it_cannot_work(sys: Path) -> None:
    support = build(sys).supported()
    assert not support.ok
    assert str(sys) in support.reason


def test_files_are_let_go_of(sys: Path) -> None:
    port(sys)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for n in range(5):
        sampler = build(sys)
        sampler.sample(float(n))
        sampler.close()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_ten_ports_cost_little(sys: Path) -> None:
    for n in range(10):
        port(sys, f"mlx5_{n}")
    sampler = build(sys)
    sampler.sample(0.0)
    started = time.process_time()
    for n in range(1, 51):
        sampler.sample(float(n))
    assert (time.process_time() - started) / 50 < 0.005, "half a per cent of a core at 1 Hz"
