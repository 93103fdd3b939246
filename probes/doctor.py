"""What is missing on this machine and how to get it. Nothing is changed, nothing is loaded that could hang.

An *essential* check is one without which the node daemon cannot work; every other one says which part needs it.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

from mainstay.probes.data_dir import default_data_dir

_GIB: Final = 1024**3
_SHM: Final = Path("/dev/shm")  # noqa: S108 - where snapshots live, not a scratch file
_SHM_WANTED: Final = _GIB
"""Two snapshots of the demo model fit in a tenth; a real model needs two to three times its state per node."""
_DISK_WANTED: Final = 2 * _GIB
"""A day of telemetry of a small fleet, and a full spool."""
_WAITS: Final = ("nvmlEventSetWait_v2", "nvmlEventSetWait")
_INFINIBAND: Final = Path("/sys/class/infiniband")
_NODE_MODULES: Final = ("msgspec", "urllib3")
_SERVICE_MODULES: Final = ("fastapi", "sqlalchemy", "alembic", "celery", "uvicorn")
_BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing looked at. ``fix`` says how to get what is missing; empty when nothing is."""

    name: str
    ok: bool
    essential: bool
    found: str
    needed_for: str
    fix: str = ""


def examine() -> list[Check]:
    """Look at everything, in the order in which a newcomer would need it."""
    return [check() for check in CHECKS]


def healthy(checks: Iterable[Check]) -> bool:
    """Whether every essential is there."""
    return all(check.ok for check in checks if check.essential)


def to_json(checks: list[Check]) -> str:
    document = {"ok": healthy(checks), "checks": [asdict(check) for check in checks]}
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def render(checks: list[Check]) -> str:
    """Return a table for people, then what to do."""
    rows = [("", "check", "found", "needed for")]
    for check in checks:
        mark = "ok" if check.ok else "MISSING" if check.essential else "missing"
        rows.append((mark, check.name, check.found, check.needed_for))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join([*lines, "", *(f"{check.name}: {check.fix}" for check in checks if check.fix)])


def _check(name: str, ok: bool, found: str, needed_for: str, fix: str, *, essential: bool = False) -> Check:
    return Check(
        name=name,
        ok=ok,
        essential=essential,
        found=found,
        needed_for=needed_for,
        fix="" if ok else fix,
    )


def _python() -> Check:
    found = ".".join(str(part) for part in sys.version_info[:3])
    fix = "sudo apt-get install -y python3.11 python3.11-venv, then make PYTHON=python3.11 install"
    return _check("python >= 3.11", sys.version_info >= (3, 11), found, "everything", fix, essential=True)


def _modules(extra: str, modules: tuple[str, ...], needed_for: str, *, essential: bool = False) -> Check:
    missing = [name for name in modules if find_spec(name) is None]
    found = f"without {', '.join(missing)}" if missing else "installed"
    fix = f"pip install 'mainstay[{extra}]'"
    return _check(f"mainstay[{extra}]", not missing, found, needed_for, fix, essential=essential)


def _nvml() -> Check:
    found = find_spec("pynvml") is not None
    fix = "pip install 'mainstay[node]'"
    return _check("nvidia-ml-py", found, "installed" if found else "not installed", "GPU signals", fix)


def _torch() -> Check:
    try:
        found = version("torch")
    except PackageNotFoundError:
        found = ""
    fix = "install torch 2.6 or newer, the CUDA build that fits your driver"
    return _check("torch", bool(found), found or "not installed", "mainstay run, mainstay validate", fix)


def _proc() -> Check:
    readable = os.access("/proc/stat", os.R_OK)
    found = "readable" if readable else "not readable"
    return _check("/proc", readable, found, "measuring the host", "run on Linux, with /proc mounted", essential=True)


def _driver() -> Check:
    """The library must load and the kernel module be there; NVML itself is not called: it may hang."""
    module = Path("/proc/driver/nvidia/version")
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        found = "kernel module without libnvidia-ml.so.1" if module.exists() else "none"
        return _check("NVIDIA driver", False, found, "GPU signals", "install the NVIDIA driver, if there are GPUs")
    fix = "load the kernel module: sudo modprobe nvidia"
    found = "library and kernel module" if module.exists() else "library without kernel module"
    return _check("NVIDIA driver", module.exists(), found, "GPU signals", fix)


def _events() -> Check:
    """Whether the driver's library has the calls that report an XID at once; asking the driver itself might hang."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return _check("NVML events", False, "no driver", "XIDs within milliseconds", "install the NVIDIA driver")
    found = next((name for name in _WAITS if hasattr(library, name)), "")
    fix = "update the NVIDIA driver (R450 or newer); until then the kernel log is the only source of XIDs"
    return _check("NVML events", bool(found), found or "not in this driver", "XIDs within milliseconds", fix)


def _kernel_log() -> Check:
    """Opened as the daemon does, and closed again; nothing is read."""
    from mainstay.probes.kernel_log.sources import SourceError, open_source  # noqa: PLC0415 - only this check needs it

    try:
        source = open_source("auto")
    except SourceError as error:
        return _check("kernel log", False, str(error), "XIDs, OOM kills, lock-ups, disk and link faults", _log_fix())
    source.close()
    return _check(
        "kernel log", True, f"readable from {source.name}", "XIDs, OOM kills, lock-ups, disk and link faults", ""
    )


def _log_fix(root: Path = Path("/")) -> str:
    """What keeps this user from the kernel log, and the ways round it."""
    if not (root / "dev/kmsg").exists():
        return "give the container the device: --device /dev/kmsg --cap-add SYSLOG (Kubernetes: mount it from the host)"
    restricted = _text(root / "proc/sys/kernel/dmesg_restrict") == "1"
    ways = ["run as root or with CAP_SYSLOG (systemd: AmbientCapabilities=CAP_SYSLOG)"]
    ways += ["sudo sysctl kernel.dmesg_restrict=0"] if restricted else []
    ways += ["sudo usermod -aG systemd-journal USER, for the way through journald"]
    return "; or ".join(ways)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _ports() -> Check:
    """A node without RDMA ports is a whole node; where there are some their state must be readable."""
    ports = sorted(_INFINIBAND.glob("*/ports/*/state"))
    dark = [path.parent.parent.parent.name for path in ports if not os.access(path, os.R_OK)]
    found = f"{len(ports)} ports" if ports else f"none under {_INFINIBAND}"
    if dark:
        found = f"not readable: {', '.join(sorted(set(dark)))}"
    fix = "load the driver of the adapter (mlx5_ib), if there is one; in a container mount /sys"
    return _check("RDMA ports", bool(ports) and not dark, found, "InfiniBand and RoCE faults", fix)


def _shm() -> Check:
    free = _free(_SHM)
    fix = "mount -o remount,size=50% /dev/shm; in a container: --shm-size (compose: shm_size)"
    return _check(str(_SHM), free >= _SHM_WANTED, f"{free / _GIB:.1f} GiB free", "snapshots in memory", fix)


def _disk() -> Check:
    place = next(path for path in (default_data_dir(), *default_data_dir().parents) if path.exists())
    free, writable = _free(place), os.access(place, os.W_OK)
    found = f"{free / _GIB:.1f} GiB free under {place}" + ("" if writable else ", not writable")
    fix = "free some space, or name another place with --data-dir"
    ok = free >= _DISK_WANTED and writable
    return _check("disk", ok, found, "spool and telemetry", fix, essential=True)


def _program(name: str, candidates: tuple[str, ...], needed_for: str, fix: str) -> Check:
    paths = [path for path in map(shutil.which, candidates) if path]
    return _check(name, bool(paths), paths[0] if paths else "not found", needed_for, fix)


def _postgres_server() -> Check:
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    found = str(installed[-1]) if installed else shutil.which("postgres") or ""
    fix = "sudo apt-get install -y postgresql, or set MAINSTAY_TEST_POSTGRES_URL"
    return _check("postgres", bool(found), found or "not found", "make test; the scaled service", fix)


def _free(path: Path) -> int:
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return 0


def _apt(package: str) -> str:
    return f"sudo apt-get install -y {package}"


CHECKS: Final[tuple[Callable[[], Check], ...]] = (
    _python,
    lambda: _modules("node", _NODE_MODULES, "mainstay node", essential=True),
    _proc,
    _disk,
    _shm,
    _driver,
    _nvml,
    _events,
    _kernel_log,
    _ports,
    _torch,
    lambda: _modules("service", _SERVICE_MODULES, "mainstay up, serve, worker, demo"),
    lambda: _program("node", ("node",), "building the dashboard", "install Node 20 or newer from nodejs.org"),
    lambda: _program("chromium", _BROWSERS, "browser tests in make test", _apt("chromium")),
    lambda: _program("C compiler", ("cc", "gcc"), "the tests of GPU signals in make test", _apt("gcc")),
    _postgres_server,
    lambda: _program("redis", ("redis-server",), "make test; the scaled service", _apt("redis-server")),
)
