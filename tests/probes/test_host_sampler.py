"""The host sampler: right against psutil on this machine, and on trees of kernel files made for the purpose."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from mainstay.probes.samplers.base import Readings
from mainstay.probes.samplers.host import HostConfig

STAT = "cpu  {} 0 {} {} {} 0 0 {} {} 0\ncpu0 1 2 3\nctxt 12345\nprocs_blocked 3\n"
DISKS = """\
   7       0 loop0 1 0 8000 0 1 0 8000 0 0 0 0
 259       0 nvme0n1 1 0 100 0 1 0 200 0 0 0 0
 259       1 nvme0n1p1 1 0 60 0 1 0 70 0 0 0 0
 253       0 dm-0 1 0 100 0 1 0 200 0 0 0 0
 104       0 cciss/c0d0 1 0 10 0 1 0 20 0 0 0 0
"""
NET = """\
Inter-|   Receive |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo:    999 1 9 9 0 0 0 0 999 1 9 9 0 0 0 0
  eth0:    100 1 1 2 0 0 0 0  200 1 3 4 0 0 0 0
  eth1:     10 1 0 0 0 0 0 0   20 1 0 0 0 0 0 0
 bond0:    110 1 1 2 0 0 0 0  220 1 3 4 0 0 0 0
docker0:     5 1 0 0 0 0 0 0    5 1 0 0 0 0 0 0
"""
MOUNTS = """\
22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw,errors=remount-ro
23 22 259:1 / /boot rw,relatime - ext4 /dev/nvme0n1p1 rw
24 22 259:3 / /data rw,relatime - xfs /dev/nvme1n1 rw,attr2
25 22 259:3 / /srv/shared ro,relatime - xfs /dev/nvme1n1 rw,attr2
26 22 7:0 / /snap/core ro - squashfs /dev/loop0 ro
27 22 0:40 / /run/box ro - overlay overlay ro,lowerdir=/l
28 22 11:0 / /media/cd ro - iso9660 /dev/sr0 ro
29 22 0:50 / /home rw - nfs4 server:/home ro
30 22 8:1 / /archive ro - ext4 /dev/sda1 ro
"""
FSTAB = "# comment\n/dev/a / ext4 errors=remount-ro 0 1\n/dev/b /data xfs defaults 0 2\n/dev/c /archive ext4 ro 0 2\n"
KTHREAD = 0x00208040


def process(tree: Path, pid: int, name: str, state: str = "S", *, flags: int = 0x400100, runs: int = 1) -> None:
    """A process as /proc shows it."""
    folder = tree / "proc" / str(pid)
    folder.mkdir(exist_ok=True)
    (folder / "stat").write_text(f"{pid} ({name}) {state} 1 {pid} {pid} 0 -1 {flags} 100 0 0 0 7 8\n")
    (folder / "status").write_text(f"Name: x\nvoluntary_ctxt_switches:\t{runs}\nnonvoluntary_ctxt_switches:\t0\n")


def slow(sampler, name: str, start: int, seconds: int = 10) -> list[float]:
    """What a slow signal read in these seconds."""
    readings = [sampler.sample(float(t))["host"] for t in range(start, start + seconds)]
    return [r[name] for r in readings if name in r]


def world(directory: Path) -> dict[str, str]:
    """The host sampler is supported wherever there is /proc."""
    del directory
    return {}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for folder in ("proc/net", "sys/block", "sys/class/net"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "proc/stat").write_text(STAT.format(100, 100, 700, 50, 50, 40))
    (tmp_path / "proc/loadavg").write_text("1.25 1.00 0.50 2/300 12345\n")
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 250 kB\nHugePages: 0\n")
    (tmp_path / "proc/diskstats").write_text(DISKS)
    (tmp_path / "proc/net/dev").write_text(NET)
    (tmp_path / "proc/uptime").write_text("86400.25 1000.00\n")
    (tmp_path / "proc/vmstat").write_text("nr_free_pages 5\noom_kill 2\n")
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/self/mountinfo").write_text(MOUNTS)
    (tmp_path / "fstab").write_text(FSTAB)
    for disk in ("nvme0n1", "cciss!c0d0"):
        (tmp_path / "sys/block" / disk / "device").mkdir(parents=True)
    (tmp_path / "sys/class/net/bond0/bonding").mkdir(parents=True)
    (tmp_path / "sys/class/net/docker0/bridge").mkdir(parents=True)
    return tmp_path


def build(tree: Path):
    return HostConfig(proc=tree / "proc", sys=tree / "sys", root=tree, shm=tree, fstab=tree / "fstab").build()


def read(tree: Path) -> Readings:
    return build(tree).sample(0.0)["host"]


def test_processor_time_is_a_difference_and_counts_guests_once(tree: Path) -> None:
    sampler = build(tree)
    assert "cpu_utilization_ratio" not in sampler.sample(0.0)["host"], "one sample has no difference"
    (tree / "proc/stat").write_text(STAT.format(130, 110, 740, 60, 60, 70))
    readings = sampler.sample(1.0)["host"]
    assert readings["cpu_utilization_ratio"] == pytest.approx(0.40)  # 30 user + 10 system of 100
    assert readings["cpu_steal_ratio"] == pytest.approx(0.10)


def test_an_idle_counter_that_steps_back_is_not_negative(tree: Path) -> None:
    sampler = build(tree)
    sampler.sample(0.0)
    (tree / "proc/stat").write_text(STAT.format(110, 100, 699, 50, 50, 40))
    assert sampler.sample(1.0)["host"]["cpu_utilization_ratio"] == 1.0


def test_a_clock_that_stands_still_gives_no_ratio(tree: Path) -> None:
    sampler = build(tree)
    sampler.sample(0.0)
    assert "cpu_utilization_ratio" not in sampler.sample(0.0)["host"]


def test_partitions_loops_and_mappings_are_not_counted_twice(tree: Path) -> None:
    readings = read(tree)
    assert readings["disk_read_bytes_total"] == 110 * 512
    assert readings["disk_write_bytes_total"] == 220 * 512


def test_interfaces_with_hardware_count_and_nothing_else_then(tree: Path) -> None:
    for name in ("eth0", "eth1"):
        (tree / "sys/class/net" / name / "device").mkdir(parents=True)
    readings = read(tree)
    assert readings["network_receive_bytes_total"] == 110
    assert readings["network_transmit_bytes_total"] == 220
    assert readings["network_errors_total"] == 10


def test_in_a_container_every_interface_counts_that_repeats_no_other(tree: Path) -> None:
    readings = read(tree)
    assert readings["network_receive_bytes_total"] == 110
    assert readings["network_transmit_bytes_total"] == 220


def test_memory_load_and_kernel_counters(tree: Path) -> None:
    readings = read(tree)
    assert readings["memory_used_bytes"] == 750 * 1024
    assert readings["memory_used_ratio"] == 0.75
    assert readings["load_1m"] == 1.25
    assert readings["context_switches_total"] == 12345
    assert readings["processes_blocked"] == 3


@pytest.mark.parametrize("gone", ["stat", "loadavg", "meminfo", "diskstats", "net/dev", "uptime", "vmstat"])
@pytest.mark.parametrize("content", [None, "", "nonsense\n", "a b c d e f g h i j k l\n" * 3])
def test_one_unreadable_file_costs_its_own_signals_only(tree: Path, gone: str, content: str | None) -> None:
    whole = set(read(tree))
    path = tree / "proc" / gone
    path.unlink() if content is None else path.write_text(content)
    left = set(read(tree))
    assert left < whole
    assert len(whole - left) <= 3


def test_a_file_system_that_is_not_there_is_unknown(tmp_path: Path) -> None:
    readings = HostConfig(shm=tmp_path / "none").build().sample(0.0)["host"]
    assert "shm_used_ratio" not in readings
    assert "disk_used_ratio" in readings


def test_it_says_why_it_cannot_work(tmp_path: Path) -> None:
    support = HostConfig(proc=tmp_path).build().supported()
    assert not support.ok
    assert str(tmp_path) in support.reason


def test_it_agrees_with_psutil_here() -> None:
    readings = HostConfig().build().sample(0.0)["host"]
    memory, disk = psutil.virtual_memory(), psutil.disk_usage("/")
    assert readings["memory_used_bytes"] == pytest.approx(memory.total - memory.available, rel=0.1, abs=2**28)
    assert readings["disk_used_ratio"] == pytest.approx(disk.percent / 100, abs=0.01)
    assert readings["load_1m"] == pytest.approx(psutil.getloadavg()[0], abs=1.0)
    (identity,) = HostConfig().build().devices()
    assert identity.memory_bytes == memory.total
    nics = psutil.net_io_counters(pernic=True)
    assert readings["network_receive_bytes_total"] <= sum(nic.bytes_recv for nic in nics.values())


def test_uptime_and_processes_killed_for_want_of_memory(tree: Path) -> None:
    readings = read(tree)
    assert readings["uptime_seconds"] == 86400.25
    assert readings["oom_kills_total"] == 2


def test_the_slow_signals_come_every_ten_seconds(tree: Path) -> None:
    sampler = build(tree)
    seen = [t for t in range(100, 125) if "filesystems_read_only" in sampler.sample(float(t))["host"]]
    assert seen == [100, 110, 120]


def test_a_file_system_that_turned_read_only_is_counted_once(tree: Path) -> None:
    sampler = build(tree)
    assert slow(sampler, "filesystems_read_only", 0) == [0], "sealed, remote, foreign and meant to be: none counts"
    (tree / "proc/self/mountinfo").write_text(MOUNTS.replace("xfs /dev/nvme1n1 rw", "xfs /dev/nvme1n1 ro"))
    assert slow(sampler, "filesystems_read_only", 10) == [1]
    assert slow(build(tree), "filesystems_read_only", 0) == [1], "fstab wants it writable, whoever saw it first"
    (tree / "fstab").unlink()
    assert slow(build(tree), "filesystems_read_only", 0) == [0], "no file says that it should be writable"
    assert slow(sampler, "filesystems_read_only", 20) == [1], "it was when it was first seen"


def test_stuck_is_who_never_ran_between_two_passes(tree: Path) -> None:
    process(tree, 10, "busy) D (x", "D")
    process(tree, 11, "stuck", "D")
    process(tree, 12, "kworker/0:1", "D", flags=KTHREAD)
    process(tree, 13, "fine")
    sampler = build(tree)
    assert slow(sampler, "processes_stuck", 0) == [], "one pass is not enough"
    process(tree, 10, "busy) D (x", "D", runs=2)
    assert slow(sampler, "processes_stuck", 10) == [1]
    process(tree, 10, "busy) D (x", "D", runs=3)
    process(tree, 11, "stuck", "R", runs=2)
    assert slow(sampler, "processes_stuck", 20) == [0]


def test_the_fabric_manager_is_looked_for_only_where_there_are_switches(tree: Path) -> None:
    process(tree, 10, "nv-fabricmanage")
    assert slow(build(tree), "fabric_manager_up", 0) == []
    for n, (vendor, kind) in enumerate([("0x10de", "0x030200"), ("0x8086", "0x068000"), ("0x10de", "0x068000")]):
        device = tree / "sys/bus/pci/devices" / f"0000:0{n}:00.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "class").write_text(f"{kind}\n")
    sampler = build(tree)
    assert slow(sampler, "fabric_manager_up", 0) == [1.0]
    process(tree, 10, "nv-fabricmanage", "Z")
    assert slow(sampler, "fabric_manager_up", 10) == [0.0]


def test_memory_controllers_are_summed_and_their_absence_is_unknown(tree: Path) -> None:
    assert slow(build(tree), "dram_corrected_total", 0) == []
    for n in range(2):
        controller = tree / f"sys/devices/system/edac/mc/mc{n}"
        controller.mkdir(parents=True)
        (controller / "ce_count").write_text(f"{n + 3}\n")
        (controller / "ue_count").write_text(f"{n}\n")
    readings = read(tree)
    assert (readings["dram_corrected_total"], readings["dram_uncorrected_total"]) == (7, 1)


def test_the_clock_is_asked_for_its_error() -> None:
    readings = HostConfig().build().sample(0.0)["host"]
    assert readings["clock_synchronized"] in (0.0, 1.0)
    assert ("clock_error_seconds" in readings) == bool(readings["clock_synchronized"]), "undisciplined: unknown"


def test_thousands_of_processes_cost_little(tree: Path) -> None:
    for pid in range(1000, 6000):
        process(tree, pid, "worker")
    sampler = build(tree)
    sampler.sample(0.0)
    spent = []
    for t in range(1, 31):
        started = time.process_time()
        sampler.sample(float(t))
        spent.append(time.process_time() - started)
    assert sum(spent) / len(spent) < 0.015
    assert max(spent) < 0.05, "no sample pays for the others"
