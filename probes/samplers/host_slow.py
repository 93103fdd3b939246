"""Host values that cost too much to read every second: processes, file systems, memory errors, clock.

Each reader is asked at every sample and answers when it has something new; in between it gives nothing, so that its
signals are missing there. A value that cannot be read raises one of ``UNREADABLE``, which costs its own signals only.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mainstay.probes.samplers.base import Readings

UNREADABLE: Final = (OSError, ValueError, IndexError, KeyError, ZeroDivisionError)
"""What a missing, foreign or half-understood kernel file gives."""
EVERY_S: Final = 10.0
"""Between two readings of the slow tier."""
_PASS_SAMPLES: Final = 10
_MOST_A_SAMPLE: Final = 400
"""Processes looked at in one sample, 4 ms at most: with more than 4,000 a pass takes longer, it does not cost more."""
_KERNEL_THREAD: Final = 0x00200000
"""PF_KTHREAD. Kernel threads may sleep in state D for good, by design."""
_FABRIC_MANAGER: Final = "nv-fabricmanage"
"""What the kernel keeps of nv-fabricmanager: 15 characters."""
_NVIDIA, _NVSWITCH_CLASS = "0x10de", "0x0680"
_SEALED: Final = frozenset({"squashfs", "iso9660", "udf", "erofs", "cramfs", "romfs"})
"""File systems that are read-only by nature."""


@dataclass(slots=True)
class Processes:
    """Passes over /proc, a slice per sample: processes stuck since the last pass, and whether one process exists.

    A process is stuck if it was in state D at both visits, 10 s apart or more, and never ran in between. One that waits
    for a slow disk again and again is busy, not stuck. Main threads only: all threads would cost fifty times as much.
    """

    proc: Path
    _waiting: list[str] = field(default_factory=list)
    _slice: int = 0
    _pass_at: float = float("-inf")
    _asleep: dict[str, str] = field(default_factory=dict)
    """Process in state D at the last pass → how often it had run."""
    _asleep_now: dict[str, str] = field(default_factory=dict)
    _stuck: int = 0
    _fabric_manager: bool = False
    _passes: int = 0

    def read(self, t: float, *, fabric: bool) -> Readings:
        """A slice; the readings when it ended a pass. ``fabric``: whether this host needs a fabric manager."""
        if not self._waiting:
            if self._pass_at <= t < self._pass_at + EVERY_S:
                return {}
            self._start(t)
        part, self._waiting = self._waiting[: self._slice], self._waiting[self._slice :]
        for pid in part:
            with suppress(*UNREADABLE):  # it has ended meanwhile
                self._visit(pid)
        return {} if self._waiting else self._finish(fabric=fabric)

    def _start(self, t: float) -> None:
        self._pass_at = t
        self._waiting = [name for name in os.listdir(self.proc) if name.isdigit()]  # noqa: PTH208 - names suffice
        self._slice = min(_MOST_A_SAMPLE, max(50, -(-len(self._waiting) // _PASS_SAMPLES)))
        self._asleep_now, self._stuck, self._fabric_manager = {}, 0, False

    def _visit(self, pid: str) -> None:
        text = _content(f"{self.proc}/{pid}/stat")
        name, _, rest = text.partition("(")[2].rpartition(")")
        fields = rest.split(maxsplit=7)  # from the third of the file on: state, ppid, ..., flags
        if name.startswith(_FABRIC_MANAGER) and fields[0] != "Z":
            self._fabric_manager = True
        if fields[0] != "D" or int(fields[6]) & _KERNEL_THREAD:
            return
        runs = "".join(line for line in _content(f"{self.proc}/{pid}/status").splitlines() if "ctxt_switches" in line)
        self._asleep_now[pid] = runs
        self._stuck += self._asleep.get(pid) == runs

    def _finish(self, *, fabric: bool) -> Readings:
        self._asleep, self._passes = self._asleep_now, self._passes + 1
        found: dict[str, float] = {"processes_stuck": self._stuck} if self._passes > 1 else {}
        return found | ({"fabric_manager_up": float(self._fabric_manager)} if fabric else {})


@dataclass(slots=True)
class FileSystems:
    """Local file systems that are read-only and should not be: the kernel makes them so when they are damaged.

    Judged by the superblock, not by the mount: a read-only bind mount of a healthy file system is no fault.
    """

    proc: Path
    fstab: Path
    _written: set[str] = field(default_factory=set)
    """Devices that were seen writable."""

    def read(self) -> Readings:
        intended = self._intended()
        read_only = set()
        for device, point, writable in self._mounts():
            if writable:
                self._written.add(device)
            elif device in self._written or point in intended:
                read_only.add(device)
        return {"filesystems_read_only": len(read_only)}

    def _mounts(self) -> Iterator[tuple[str, str, bool]]:
        """(device number, mount point, superblock is writable) of file systems on local block devices."""
        for line in (self.proc / "self" / "mountinfo").read_text().splitlines():
            mount, _, source = line.partition(" - ")
            fields, (kind, device, options) = mount.split(), source.split(maxsplit=2)
            if device.startswith("/dev/") and not device.startswith("/dev/loop") and kind not in _SEALED:
                yield fields[2], fields[4], "rw" in options.split(",")

    def _intended(self) -> set[str]:
        """Mount points that the administrator wants writable."""
        try:
            lines = [line.split() for line in self.fstab.read_text().splitlines()]
        except OSError:
            return set()
        return {
            words[1] for words in lines if len(words) >= 4 and words[0][0] != "#" and "ro" not in words[3].split(",")
        }


def memory_errors(sys: Path) -> Readings:
    """What the memory controllers counted (EDAC); nothing where no controller is watched."""
    found = {}
    controllers = sorted((sys / "devices" / "system" / "edac" / "mc").glob("mc[0-9]*"))
    for name, file in (("dram_corrected_total", "ce_count"), ("dram_uncorrected_total", "ue_count")):
        if controllers:
            found[name] = sum(int((controller / file).read_text()) for controller in controllers)
    return found


def has_nvswitch(sys: Path) -> bool:
    """Whether NVSwitches are on this host's PCI bus: then GPUs work together only under a fabric manager."""
    for device in (sys / "bus" / "pci" / "devices").glob("*"):
        with suppress(OSError):
            vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
            if vendor == _NVIDIA and kind.startswith(_NVSWITCH_CLASS):
                return True
    return False


class _Timex(ctypes.Structure):
    """``struct timex`` of adjtimex(2), up to what is read; the rest is room."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_long * 32),
    )


_NOT_SYNCHRONIZED: Final = 0x0040
"""STA_UNSYNC: no time source has disciplined the clock, or its error passed 16 s since."""


def clock() -> Readings:
    """What the kernel knows of its clock. Asking (modes = 0) needs no privilege and changes nothing."""
    state = _Timex()
    if ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(state)) < 0:
        raise OSError(ctypes.get_errno(), "adjtimex")
    synchronized = not state.status & _NOT_SYNCHRONIZED
    error = {"clock_error_seconds": max(0, state.esterror) / 1e6} if synchronized else {}
    return {"clock_synchronized": float(synchronized), **error}


def _content(path: str) -> str:
    """A small file of /proc, at half the cost of ``Path.read_text``."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 4096).decode("utf-8", "replace")
    finally:
        os.close(descriptor)
