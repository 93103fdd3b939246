"""InfiniBand and RoCE ports, read from ``/sys/class/infiniband``.

One device a port, ``nic:mlx5_0:1``. Every file of a port is kept open and read again at offset 0: the kernel then asks
the adapter again, at a fifth of the cost of opening it. A counter that stands at the largest value that it can hold is
*left out*: it has stopped counting, and a rate of zero would look healthy. What a kernel or an adapter does not count
has no file and is left out too. A port event between two samples is reported at once (``port_watch``).
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from mainstay.probes.core_types import NIC_PREFIX, EventKind, validate_name
from mainstay.probes.samplers.base import DeviceIdentity, ReadChannel, Readings, SourceEvent, Support, Tell
from mainstay.probes.samplers.port_watch import STEADY_S, PortWatch, Said
from mainstay.probes.signals import SignalSource

_WORD_BYTES: Final = 4
"""port_rcv_data and port_xmit_data count words of four bytes (InfiniBand 1.4, PortCountersExtended)."""
_SLOW_S: Final = 10.0
"""Each error counter costs the adapter's firmware a command, and no detector evaluates errors within seconds."""


@dataclass(frozen=True, slots=True)
class _Counter:
    """Where a counter stands, below the port's directory, and its width in bits in the oldest form that it has."""

    path: str
    bits: int = 32
    scale: int = 1


_FULL_32: Final = 2**32 - 1
_FULL_64: Final = 2**64 - 1

_QUICK: Final = {
    "nic_receive_bytes_total": _Counter("counters/port_rcv_data", scale=_WORD_BYTES),
    "nic_transmit_bytes_total": _Counter("counters/port_xmit_data", scale=_WORD_BYTES),
    "nic_transmit_wait_total": _Counter("counters/port_xmit_wait"),
    "nic_link_downed_total": _Counter("counters/link_downed", bits=8),
}
_SLOW: Final = {
    "nic_symbol_errors_total": _Counter("counters/symbol_error", bits=16),
    "nic_link_recoveries_total": _Counter("counters/link_error_recovery", bits=8),
    "nic_receive_errors_total": _Counter("counters/port_rcv_errors", bits=16),
    "nic_transmit_discards_total": _Counter("counters/port_xmit_discards", bits=16),
    "nic_local_integrity_errors_total": _Counter("counters/local_link_integrity_errors", bits=4),
    "nic_buffer_overruns_total": _Counter("counters/excessive_buffer_overrun_errors", bits=4),
    "nic_ack_timeouts_total": _Counter("hw_counters/local_ack_timeout_err"),
    "nic_out_of_sequence_total": _Counter("hw_counters/out_of_sequence"),
    "nic_rnr_retries_total": _Counter("hw_counters/rnr_nak_retry_err"),
    "nic_slow_restarts_total": _Counter("hw_counters/roce_slow_restart"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NicConfig:
    """Where the kernel's files are. ``SYSFS_PATH`` is what the RDMA user-space libraries obey, too."""

    sys: Path = field(default_factory=lambda: Path(os.environ.get("SYSFS_PATH", "/sys")))

    @property
    def infiniband(self) -> Path:
        return self.sys / "class" / "infiniband"

    def build(self) -> NicSampler:
        return NicSampler(self)


class NicSampler:
    """Every port of every RDMA device. Ports may come and go; each may hang alone (``read_channels``)."""

    name = "nic"
    source = SignalSource.NIC

    def __init__(self, config: NicConfig) -> None:
        self.config = config
        self._lock = threading.RLock()
        self._ports: dict[str, _Port] = {}
        self._watches: dict[str, PortWatch] = {}
        self._tell: Tell | None = None
        self._looked_at = float("-inf")
        self._began: float | None = None
        self._said_steady = False

    def supported(self) -> Support:
        if not any(True for _ in _listed(self.config.infiniband)):
            return Support(ok=False, reason=f"no InfiniBand or RoCE port under {self.config.infiniband}")
        return Support(ok=True)

    def devices(self) -> tuple[DeviceIdentity, ...]:
        self._scan()
        return tuple(port.identity for port in self._ports.values())

    def sample(self, t: float) -> dict[str, Readings]:
        self._look(t)
        return {name: self._read(port, t) for name, port in self._ports.items()}

    def channels(self) -> tuple[ReadChannel, ...]:
        """A channel a port: an adapter whose firmware hangs holds up its own files only."""
        ids = tuple(device.id for device in self.devices())
        if not ids:
            return (ReadChannel(self.name, (), self.sample),)
        return tuple(ReadChannel(f"{self.name}/{name}", (name,), self._reader(name)) for name in ids)

    def listen(self, tell: Tell) -> None:
        self._tell = tell

    def close(self) -> None:
        with self._lock:
            self._ports = {}

    def _reader(self, name: str) -> Callable[[float], dict[str, Readings]]:
        def read(t: float) -> dict[str, Readings]:
            self._look(t)
            port = self._ports.get(name)
            return {} if port is None else {name: self._read(port, t)}

        return read

    def _read(self, port: _Port, t: float) -> Readings:
        readings = port.read(t)
        up = readings.get("nic_link_up")
        said = self._watches[port.identity.id].see(
            t, up=None if up is None else up == 1.0, down_count=port.down_count(readings)
        )
        self._say(t, port.identity.id, said, state=port.state)
        return readings

    def _look(self, t: float) -> None:
        """Once a sample, whoever comes first: which ports are there, which are not any more."""
        with self._lock:
            if t == self._looked_at:
                return
            self._looked_at = t
            for name in self._scan():
                self._watches[name].renewed(t)
            for name, watch in self._watches.items():
                if name not in self._ports:
                    self._say(t, name, watch.missing(t))
            self._say_steady(t)

    def _scan(self) -> list[str]:
        """Open new ports, close removed ones; return the known ports whose driver was reloaded."""
        with self._lock:
            there = {name: (path, inode) for name, path, inode in _listed(self.config.infiniband)}
            stale = [name for name, port in self._ports.items() if there.get(name) != (port.path, port.inode)]
            new = there.keys() - (self._ports.keys() - set(stale))
            if not new and not stale:
                return []
            again = [name for name in new if name in self._watches]
            opened = {name: _Port(name, *there[name]) for name in new}
            ports = {name: opened.get(name) or self._ports[name] for name in sorted(there, key=_natural)}
            for index, port in enumerate(ports.values()):
                port.identity = replace(port.identity, index=index)
            for name in new - self._watches.keys():
                self._watches[name] = PortWatch(name.removeprefix(NIC_PREFIX))
            self._ports = ports
            return again

    def _say_steady(self, t: float) -> None:
        """Once in a daemon's life: what an earlier one said about a port that is steady now is over."""
        if self._began is None and self._ports:
            self._began = t
        if self._said_steady or self._began is None or t - self._began <= STEADY_S:
            return
        self._said_steady = True
        steady = sorted(name for name, watch in self._watches.items() if watch.steady(t))
        if steady:
            self._say(t, None, [(EventKind.LINK_UP, {"link": "all", "links": steady, "steady_seconds": STEADY_S})])

    def _say(self, t: float, device: str | None, said: Iterable[Said], **more: str) -> None:
        for kind, data in said:
            if self._tell is not None:
                self._tell(SourceEvent(kind=kind, t=t, device=device, data={**data, **more}))


class _Port:
    """The open files of one port while its driver stays loaded.

    They are closed when the last reader ends: closed under a thread that still reads, a number may come to mean
    another file.
    """

    def __init__(self, name: str, path: Path, inode: int) -> None:
        self._files: dict[str, int] = {}
        self.path, self.inode = path, inode
        self.identity = _identify(name, path)
        self.state = ""
        self._absent: set[str] = set()
        self._wider: set[str] = set()
        self._slow_at = float("-inf")
        self._carrier = _carrier_file(self.identity)

    def read(self, t: float) -> dict[str, float]:
        """What can be read at ``t``; a port that does not answer at all gives nothing."""
        found = self._link()
        counters = dict(_QUICK)
        if not self._slow_at <= t < self._slow_at + _SLOW_S:
            self._slow_at = t - t % _SLOW_S
            counters |= _SLOW
        for name, counter in counters.items():
            value = self._count(counter)
            if value is not None:
                found[name] = value * counter.scale
        return found

    def down_count(self, readings: Readings) -> int | None:
        """How often it went down: InfiniBand counts that in the port, Ethernet in its network interface."""
        text = self._text(self._carrier) if self._carrier else None
        if text is not None and text.isdigit():
            return int(text)
        counted = readings.get("nic_link_downed_total")
        return None if counted is None else int(counted)

    def __del__(self) -> None:
        for path in list(self._files):
            self._drop(path)

    def _link(self) -> dict[str, float]:
        state, physical = self._text("state"), self._text("phys_state")
        if state is None:
            return {}
        up = _word(state) == "ACTIVE" and (physical is None or _word(physical) == "LinkUp")
        self.state = f"{_word(state)}, {_word(physical)}" if physical else _word(state)
        rate = _bits_per_second(self._text("rate") or "") if up else None
        return {"nic_link_up": float(up), **({} if rate is None else {"nic_rate_bits_per_second": rate})}

    def _count(self, counter: _Counter) -> int | None:
        text = self._text(counter.path)
        if text is None or not text.isdigit():
            return None
        value = int(text)
        full = (1 << counter.bits) - 1
        if value > full:
            self._wider.add(counter.path)  # this adapter counts further than the oldest form
        saturated = value in {full, _FULL_32, _FULL_64} and not (value == full and counter.path in self._wider)
        return None if saturated else value

    def _text(self, path: str) -> str | None:
        if path in self._absent:
            return None
        try:
            descriptor = self._files.get(path)
            if descriptor is None:
                descriptor = self._files[path] = os.open(self.path / path, os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(descriptor, 64, 0).decode("ascii", "replace").strip()
        except FileNotFoundError:
            self._absent.add(path)  # not counted here; read again when the driver is reloaded
        except OSError:
            self._drop(path)
        return None

    def _drop(self, path: str) -> None:
        descriptor = self._files.pop(path, None)
        if descriptor is not None:
            with suppress(OSError):
                os.close(descriptor)


def _listed(infiniband: Path) -> Iterator[tuple[str, Path, int]]:
    """(device id, port directory, inode) of every port; a reloaded driver gives the same names new inodes."""
    with suppress(OSError):
        for device in sorted(infiniband.iterdir()):
            ports = device / "ports"
            with suppress(OSError):
                for entry in os.scandir(ports):
                    name = _legal(f"{NIC_PREFIX}{device.name}:{entry.name}")
                    if name is not None:
                        yield name, ports / entry.name, entry.inode()


def _legal(name: str) -> str | None:
    try:
        return validate_name(name, "port")
    except ValueError:
        return None


def _identify(name: str, path: Path) -> DeviceIdentity:
    device = path.parents[1]
    told = {key: _first_line(device / key) for key in ("hca_type", "board_id", "node_guid", "fw_ver")}
    board = f" ({told['board_id']})" if told["hca_type"] and told["board_id"] else told["board_id"]
    serial = told["node_guid"] or _first_line(device / "node_desc")
    bus = (device / "device").resolve() if (device / "device").exists() else None
    facts = {
        "pci": bus.name if bus else "",
        "firmware": told["fw_ver"],
        "board": told["board_id"],
        "numa_node": _first_line(device / "device" / "numa_node"),
        "link_layer": _first_line(path / "link_layer"),
        "interface": _interface(device, path),
        "rate": _first_line(path / "rate"),
    }
    return DeviceIdentity(
        id=name,
        index=0,
        kind="nic",
        model=f"{told['hca_type']}{board}" or "RDMA port",
        # Ports of one adapter share its GUID; the first port stands for the adapter.
        serial=f"{serial}/{path.name}" if serial and path.name != "1" else serial or None,
        facts={key: value for key, value in facts.items() if value},
    )


def _interface(device: Path, port: Path) -> str:
    """The network interface of a port, as RoCE needs one and IPoIB may have one."""
    named = _first_line(port / "gid_attrs" / "ndevs" / "0")
    with suppress(OSError):
        return named or min((entry.name for entry in (device / "device" / "net").iterdir()), default="")
    return named


def _carrier_file(identity: DeviceIdentity) -> str:
    """Where an Ethernet port counts its falls, seen from the port's directory."""
    interface = identity.facts.get("interface")
    ethernet = identity.facts.get("link_layer") == "Ethernet"
    return f"../../device/net/{interface}/carrier_down_count" if ethernet and interface else ""


def _first_line(path: Path) -> str:
    try:
        return path.read_text(errors="replace").partition("\n")[0].strip()
    except OSError:
        return ""


def _word(text: str) -> str:
    """``4: ACTIVE`` as ``ACTIVE``."""
    return text.partition(":")[2].strip() or text


def _bits_per_second(text: str) -> float | None:
    """``400 Gb/sec (4X NDR)`` as 4e11."""
    number, _, rest = text.partition(" ")
    try:
        return float(number) * 1e9 if rest.startswith("Gb/sec") else None
    except ValueError:
        return None


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    """``mlx5_10`` after ``mlx5_9``."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name) if part)


CONFIG = NicConfig
