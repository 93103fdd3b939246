"""The host itself: processors, memory, disks, network, clock and processes, read from /proc and /sys.

Everything is counted once: a disk's partitions, device-mapper and loop devices repeat their disk's traffic, bridges and
bonds repeat their members', loopback never left the machine. So only devices with hardware behind them count; where a
container shows none, every interface that is not plainly a repeater does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mainstay.probes.core_types import HOST_DEVICE
from mainstay.probes.samplers import host_slow
from mainstay.probes.samplers.base import DeviceIdentity, ReadChannel, Readings, Support, Tell
from mainstay.probes.samplers.host_slow import UNREADABLE
from mainstay.probes.signals import SignalSource

_SECTOR_BYTES: Final = 512
"""The unit of /proc/diskstats, for any sector size of the disk."""
_CPU_FIELDS: Final = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
"""Guest time, which follows, is left out: the kernel counts it in user time already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostConfig:
    """Where the kernel's files are."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    root: Path = Path("/")
    shm: Path = Path("/dev/shm")  # noqa: S108 - where snapshots live, not a scratch file
    fstab: Path = Path("/etc/fstab")

    def build(self) -> HostSampler:
        return HostSampler(self)


class HostSampler:
    """One device, ``host``. Ratios of processor time need two samples: the first has none."""

    name = "host"
    source = SignalSource.HOST

    def __init__(self, config: HostConfig) -> None:
        self.config = config
        self._cpu: tuple[int, ...] | None = None
        self._readers: tuple[Callable[[], Readings], ...] = (
            self._cpu_ratios, self._load, self._memory, self._kernel_counters, self._disks, self._network,
            self._uptime, self._oom_kills,
            lambda: {"shm_used_ratio": _fill(self.config.shm)},
            lambda: {"disk_used_ratio": _fill(self.config.root)},
        )  # fmt: skip
        self._slow_readers: tuple[Callable[[], Readings], ...] = (
            host_slow.FileSystems(config.proc, config.fstab).read,
            host_slow.clock,
            lambda: host_slow.memory_errors(config.sys),
            lambda: {"inodes_used_ratio": _inodes(config.root)},
        )
        self._processes = host_slow.Processes(config.proc)
        self._fabric: bool | None = None
        self._slow_at = float("-inf")

    def supported(self) -> Support:
        stat = self.config.proc / "stat"
        return Support(ok=True) if stat.is_file() else Support(ok=False, reason=f"{stat} does not exist (not Linux?)")

    def devices(self) -> tuple[DeviceIdentity, ...]:
        model = os.uname().machine
        try:
            model = self._cpu_model() or model
            memory = self._meminfo()["MemTotal"]
        except UNREADABLE:
            memory = None
        return (DeviceIdentity(id=HOST_DEVICE, index=0, kind="host", model=model, memory_bytes=memory),)

    def sample(self, t: float) -> dict[str, Readings]:
        readings: dict[str, float] = {}
        due = not self._slow_at <= t < self._slow_at + host_slow.EVERY_S
        if due:
            self._slow_at = t - t % host_slow.EVERY_S
        for read in (*self._readers, *(self._slow_readers if due else ())):
            with suppress(*UNREADABLE):  # left out: unknown
                readings.update(read())
        with suppress(*UNREADABLE):
            readings.update(self._look_around(t))
        return {HOST_DEVICE: readings}

    def _look_around(self, t: float) -> Readings:
        if self._fabric is None:
            self._fabric = host_slow.has_nvswitch(self.config.sys)
        return self._processes.read(t, fabric=self._fabric)

    def channels(self) -> tuple[ReadChannel, ...]:
        return (ReadChannel(self.name, tuple(device.id for device in self.devices()), self.sample),)

    def listen(self, tell: Tell) -> None:
        """Nothing happens here between two samples."""

    def close(self) -> None:
        self._cpu = self._fabric = None

    def _read(self, *parts: str) -> str:
        return self.config.proc.joinpath(*parts).read_text()

    def _cpu_model(self) -> str:
        for line in self._read("cpuinfo").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
        return ""

    def _cpu_ratios(self) -> Readings:
        line = self._read("stat").partition("\n")[0].split()
        before, self._cpu = self._cpu, tuple(int(field) for field in line[1 : 1 + len(_CPU_FIELDS)])
        if before is None:
            return {}
        # Idle and iowait may step back by a tick on some kernels.
        spent = {f: max(0, new - old) for f, new, old in zip(_CPU_FIELDS, self._cpu, before, strict=True)}
        total = sum(spent.values())
        busy = total - spent["idle"] - spent["iowait"] - spent["steal"]
        return {"cpu_utilization_ratio": busy / total, "cpu_steal_ratio": spent["steal"] / total}

    def _load(self) -> Readings:
        return {"load_1m": float(self._read("loadavg").split()[0])}

    def _uptime(self) -> Readings:
        return {"uptime_seconds": float(self._read("uptime").split()[0])}

    def _oom_kills(self) -> Readings:
        lines = dict(line.split() for line in self._read("vmstat").splitlines())
        return {"oom_kills_total": int(lines["oom_kill"])}

    def _meminfo(self) -> dict[str, int]:
        lines = (line.split() for line in self._read("meminfo").splitlines())
        return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) >= 2}

    def _memory(self) -> Readings:
        info = self._meminfo()
        used = info["MemTotal"] - info["MemAvailable"]
        return {"memory_used_bytes": used, "memory_used_ratio": used / info["MemTotal"]}

    def _kernel_counters(self) -> Readings:
        found = {}
        names = {"ctxt": "context_switches_total", "procs_blocked": "processes_blocked"}
        for line in self._read("stat").splitlines():
            key, _, rest = line.partition(" ")
            if key in names:
                found[names[key]] = int(rest)
        return found

    def _disks(self) -> Readings:
        rows = [words for line in self._read("diskstats").splitlines() if self._is_disk((words := line.split())[2])]
        if not rows:
            return {}
        return {
            "disk_read_bytes_total": sum(int(row[5]) for row in rows) * _SECTOR_BYTES,
            "disk_write_bytes_total": sum(int(row[9]) for row in rows) * _SECTOR_BYTES,
        }

    def _is_disk(self, name: str) -> bool:
        # In /sys/block names with a slash (cciss/c0d0) are spelt with an exclamation mark.
        return (self.config.sys / "block" / name.replace("/", "!") / "device").exists()

    def _network(self) -> Readings:
        interfaces = dict(self._interfaces())
        physical = {name for name in interfaces if self._interface(name, "device")}
        counted = physical or {name for name in interfaces if not self._repeats(name)}
        rows = [interfaces[name] for name in counted]
        if not rows:
            return {}
        return {
            "network_receive_bytes_total": sum(row[0] for row in rows),
            "network_transmit_bytes_total": sum(row[8] for row in rows),
            "network_errors_total": sum(row[2] + row[3] + row[10] + row[11] for row in rows),
        }

    def _interfaces(self) -> Iterator[tuple[str, list[int]]]:
        for line in self._read("net", "dev").splitlines()[2:]:
            name, _, numbers = line.partition(":")
            if name.strip() != "lo":
                yield name.strip(), [int(number) for number in numbers.split()]

    def _interface(self, name: str, part: str) -> bool:
        return (self.config.sys / "class" / "net" / name / part).exists()

    def _repeats(self, name: str) -> bool:
        return self._interface(name, "bridge") or self._interface(name, "bonding")


def _fill(path: Path) -> float:
    """Used share of a file system, as df counts it: what is reserved for root counts as used."""
    stat = os.statvfs(path)
    used = stat.f_blocks - stat.f_bfree
    return used / (used + stat.f_bavail)


def _inodes(path: Path) -> float:
    """Used share of a file system's inodes; some have no fixed number of them."""
    stat = os.statvfs(path)
    return (stat.f_files - stat.f_ffree) / stat.f_files


CONFIG = HostConfig
