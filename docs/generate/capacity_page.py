"""The page of what a fleet needs, computed from ``bench/results/*.json``: figures of 10,000 nodes and how they grow."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from docs.generate.markdown import page, table
from mainstay.probes.signals import SignalSource
from mainstay.service.settings import TelemetrySettings
from mainstay.service.telemetry.catalogs import ring_signals
from mainstay.service.telemetry.ring import MIN_SECONDS
from mainstay.service.telemetry.ring_seconds import Seconds

NODES: Final = (1_000, 3_000, 10_000, 30_000, 100_000)
MEASURED: Final = 10_000
SMALLEST: Final = 1_000
"""The other size that ``bench.fleet`` measures; between both, cores grow by the exponent that it finds."""
GPUS: Final = 8
_GIB: Final = 2**30
_SETTINGS: Final = TelemetrySettings()
_FLEET: Final = f"{MEASURED} nodes, relayed: "
_CLUSTER: Final = re.compile(r"(\d+) nodes, relayed, .*two services: cores in all")


class Results:
    """Measured rows of the benches, by file and claim."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def rows(self, name: str) -> list[dict[str, Any]]:
        """All rows of a file."""
        return list(json.loads((self._folder / f"{name}.json").read_text(encoding="utf-8")))

    def row(self, name: str, claim: str) -> dict[str, Any]:
        """One row.

        Raises:
            LookupError: the file has no such claim; the page must be computed from another one.
        """
        for row in self.rows(name):
            if row["claim"] == claim:
                return row
        raise LookupError(f"{name}.json has no claim {claim!r}")

    def figure(self, name: str, claim: str) -> float:
        return float(self.row(name, claim)["figure"])

    def noted(self, name: str, claim: str, pattern: str, part: str = "note") -> float:
        """A number in the note (or the baseline) of a row."""
        found = re.search(pattern, self.row(name, claim)[part])
        if found is None:
            raise LookupError(f"{name}.json: the {part} of {claim!r} has no {pattern!r}")
        return float(found[1])


@dataclass(frozen=True)
class Size:
    """What a fleet of ``nodes`` needs in steady state."""

    nodes: int
    larger: float
    """Cores of the service that uses more, without history."""
    others: float
    """Cores of the other service, and of gateways if there were any."""
    postgres: float
    history: float
    """Cores that compact history, in one of the processes."""
    busy: float
    """Cores of the service that uses more while people ask."""
    memory: float
    """Resident memory of each process, GiB."""
    seconds: int
    """Seconds of the fleet in memory."""
    blocks: float
    """Telemetry as received for the time that it is kept, TB."""
    files: float
    """History of all tiers at their default ages, TB."""
    relayed: float
    """Network into the services through relays, Mbit/s."""
    direct: float
    """The same without relays."""
    relays: int

    @property
    def fits(self) -> bool:
        """Whether a service can carry its part: its Python code runs on one core at a time."""
        return self.busy <= 1.0

    @property
    def host_cores(self) -> int:
        """Cores of each host of a service: each must carry all work of a lost one. No fewer than were measured."""
        return max(2, math.ceil(self.busy + self.history))


def size(results: Results, nodes: int) -> Size:
    """Compute what ``nodes`` nodes with 8 GPUs at 1 Hz need."""
    steady = f"{_FLEET}cores"
    share, cores = nodes / MEASURED, results.figure("fleet", steady)
    samples = share * cores / results.figure("fleet", f"{_FLEET}CPU seconds per million samples") * 1e6
    larger, others, postgres = _cores(results, nodes)
    asked = results.figure("fleet", f"{_FLEET}cores while people ask") / cores
    tiers = "history of 64 nodes, noise of its own in each sample: all tiers"
    ages = "all tiers at their default ages, 10,000 nodes, extrapolated"
    rest = results.figure("fleet", f"{_FLEET}resident memory") - _ring(MEASURED)[1]
    stored = samples * 3600 * _SETTINGS.retention_hours
    return Size(
        nodes=nodes, larger=larger, others=others, postgres=postgres, busy=larger * asked,
        history=samples / 1e6 * results.figure("history", "compaction, noise of its own in each sample"),
        memory=_ring(nodes)[1] + rest * max(share, 1.0), seconds=_ring(nodes)[0],
        blocks=stored * results.noted("history", tiers, r"blocks: ([\d.]+)", "baseline") / 1e12,
        files=share * results.figure("history", ages),
        relayed=nodes * 8e-6 * results.figure("relay", "relay: bytes a frame to the service"),
        direct=nodes * 8e-6 * results.noted("relay", "relay: bytes a frame to the service", r"(\d+) B directly"),
        relays=math.ceil(nodes / 128),
    )  # fmt: skip


def _measured(results: Results) -> dict[int, tuple[float, ...]]:
    """Nodes → cores of the larger service, of the others, and of PostgreSQL: each size of ``bench.cluster``."""
    found: dict[int, tuple[float, ...]] = {}
    for row in results.rows("cluster"):
        if count := _CLUSTER.fullmatch(row["claim"]):
            services = [float(cores) for cores in re.findall(r"(?:service|gateway) \d+ ([\d.]+)", row["note"])]
            postgres = float(re.findall(r"PostgreSQL ([\d.]+)", row["note"])[0])
            larger = max(float(cores) for cores in re.findall(r"service \d+ ([\d.]+)", row["note"]))
            found[int(count[1])] = (larger, sum(services) - larger, postgres)
    if not found:
        raise LookupError("cluster.json has no claim about cores in all")
    return found


def _cores(results: Results, nodes: int) -> tuple[float, ...]:
    """The same for any size: between measured sizes by their growth, above in proportion, below as one process."""
    measured = _measured(results)
    if nodes in measured:
        return measured[nodes]
    below, above = [n for n in measured if n < nodes], [n for n in measured if n > nodes]
    if not above:
        return tuple(nodes / max(below) * cores for cores in measured[max(below)])
    nearest, share = measured[min(above)], nodes / min(above)
    exponent = results.figure("fleet", f"{_FLEET}growth of the cores from a tenth of the nodes, exponent")
    exponents = [exponent] * len(nearest)
    if below:
        ratio = math.log(max(below) / min(above))
        exponents = [math.log(a / b) / ratio for a, b in zip(measured[max(below)], nearest, strict=True)]
    return tuple(cores * share**each for cores, each in zip(nearest, exponents, strict=True))


def _ring(nodes: int) -> tuple[int, float]:
    """Seconds in memory at default settings, and their GiB."""
    seconds = Seconds(ring_signals(SignalSource.GPU))
    seconds.capacity = nodes * GPUS
    depth = max(MIN_SECONDS, min(_SETTINGS.ring_seconds, int(_SETTINGS.ring_bytes / seconds.bytes_per_second)))
    return depth, depth * seconds.bytes_per_second / _GIB


def capacity(folder: Path) -> str:
    """Return the page, from the folder of measured results."""
    results = Results(folder)
    sizes = [size(results, nodes) for nodes in NODES]
    most = MEASURED / size(results, MEASURED).busy
    processes = [_process_row(each, _basis(results, each.nodes)) for each in sizes]
    cost = {"core": results.figure("relay", "relay, 128 nodes at 1 Hz: share of a core"),
            "memory": results.figure("relay", "relay: resident memory")}  # fmt: skip
    return page(
        "Capacity", _ABOUT, "## Processors and memory", _PROCESSES, table(_PROCESS_HEAD, processes),
        "## Disk and network", _STORAGE, table(_STORAGE_HEAD, map(_storage_row, sizes)),
        "## How it is computed", _METHOD.format(**cost), "## What does not scale today",
        _LIMITS.format(most=f"{round(most, -3):,.0f}"),
    )  # fmt: skip


_PROCESS_HEAD: Final = (
    "nodes", "basis", "the larger service", "the same while people ask", "others", "history", "PostgreSQL",
    "cores a host", "memory a process", "time in memory", "a service can carry it",
)  # fmt: skip
_STORAGE_HEAD: Final = (
    "nodes", f"telemetry as received, {_SETTINGS.retention_hours} h", "history, all tiers", "network through relays",
    "network without relays", "relays",
)  # fmt: skip


def _process_row(each: Size, basis: str) -> tuple[object, ...]:
    return (
        f"{each.nodes:,}", basis, f"{each.larger:.2f}", f"{each.busy:.2f}", f"{each.others:.2f}",
        f"{each.history:.2f}", f"{each.postgres:.2f}", each.host_cores, f"{each.memory:.1f} GiB", f"{each.seconds} s",
        "yes" if each.fits else "**no**",
    )  # fmt: skip


def _storage_row(each: Size) -> tuple[object, ...]:
    return (
        f"{each.nodes:,}", f"{each.blocks:.2f} TB", f"{each.files:.2f} TB", f"{each.relayed:.1f} Mbit/s",
        f"{each.direct:.0f} Mbit/s", each.relays,
    )  # fmt: skip


def _basis(results: Results, nodes: int) -> str:
    measured = _measured(results)
    if nodes in measured:
        return "measured"
    if nodes > max(measured):
        return "extrapolated"
    return "one process measured" if nodes == SMALLEST else "interpolated"


_ABOUT: Final = """
This page says what a fleet needs in steady state: nodes with 8 GPUs each, sampled at 1 Hz and sent through relays, two
services, and one PostgreSQL. *Basis* says which sizes were run as a whole. Rows that are *extrapolated* never were.
""".strip()
_PROCESSES: Final = """
Figures are cores that are busy, unless another unit is given. *Basis* is that of the two processes and PostgreSQL;
history is extrapolated from 64 nodes in each row. *Cores a host* is what each host of a service needs to carry all
work of a lost one while people ask and history is compacted. It is at least 2, as in the measurements.
""".strip()
_STORAGE: Final = """
Telemetry as received is in PostgreSQL, and history in files or an object store. Sizes are without indexes, WAL,
replicas, and backups. Network is what nodes send to the services. Each process also reads from PostgreSQL what
another accepted. All rows are extrapolated: from 64 nodes (disk) and 128 nodes (network).
""".strip()
_METHOD: Final = """
- Cores of services and PostgreSQL are those of `bench.cluster`. Between sizes that it measured, they grow by a power of
  the nodes; below, by the exponent that `bench.fleet` found from 1,000 to 10,000 nodes for one process; above, in
  proportion to the nodes.
- *While people ask* multiplies them by what `bench.fleet` measured for one process with and without requests.
- History is `bench.history` in CPU seconds per million samples. It runs in a thread of one service.
- Memory is that of the telemetry in memory at default settings (from the code), and the rest of what `bench.fleet`
  measured. This rest grows in proportion above 10,000 nodes, and is taken to be the same below.
- Bytes a sample of both stores are those of `bench.history`, whose samples have noise of their own. Bytes a frame are
  those of `bench.relay`, whose frames compress better.
- There is one relay for 128 nodes. It costs {core:.1f}% of a core and {memory:.0f} MiB.
- The nodes of these benches report GPUs only. Hosts and network ports add samples.

[Benchmarks](../benchmarks/index.md) lists the figures. All are of one shared virtual machine with two cores.
""".strip()
_LIMITS: Final = """
- **Each service keeps the recent minutes of the whole fleet in memory** and decodes every frame. Further ones divide
  detection among them, and nothing of this part
  ([decision 65](../decisions/0065-shards-of-detection-by-detector-and-job.md)). Python code of a process runs on one
  core at a time. By this estimate, two services can carry about {most} nodes. Rows with **no** are beyond that: split
  such a fleet into several installations. Gateways (`MAINSTAY_CLUSTER__ROLE=gateway`) keep nothing: they check and
  store frames, and take that part off the services.
- A large fleet has fewer seconds in memory (at least 60). Charts of the last minutes then read the database sooner,
  unless `MAINSTAY_TELEMETRY__RING_BYTES` is raised.
- All processes commit to one PostgreSQL primary.
""".strip()
