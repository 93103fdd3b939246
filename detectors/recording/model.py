"""What a recording is, wherever it comes from: a directory, a generator of scenarios, a reader of other traces.

All times are Unix seconds. ``docs/reference/recordings.md`` defines the directory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec

from mainstay.detectors.base import Samples
from mainstay.detectors.job.mesh import AXES, JobMesh, mesh_of
from mainstay.probes.core_types import Event
from mainstay.probes.signals import SignalSource

VERSION = 1
DEVICE_SOURCES = (SignalSource.HOST, SignalSource.GPU, SignalSource.NIC)


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    cohort: str = ""
    """Nodes of one cohort may be compared with one another."""
    rack: str | None = None
    switches: tuple[str, ...] = ()
    """Above the node, nearest first."""


class DeviceInfo(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    id: str
    """``host`` for the node itself, ``nic:…`` for a port, anything else is a GPU."""
    model: str = ""
    serial: str | None = None


class JobInfo(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    ranks: tuple[dict[str, int | str | None], ...]
    """``{"rank": 0, "node": "n0", "device": "gpu0", "dp": 0, "pp": 0, "tp": 0}``; an axis that is not given is 0."""
    axes: tuple[str, ...] = AXES
    """Outermost first."""


class FleetInfo(msgspec.Struct, frozen=True, kw_only=True):
    """``fleet.json``."""

    version: int = VERSION
    source: str = ""
    """Where it comes from, for people."""
    start: float = 0.0
    stop: float = 0.0
    nodes: tuple[NodeInfo, ...] = ()
    devices: tuple[DeviceInfo, ...] = ()
    jobs: tuple[JobInfo, ...] = ()

    def group(self, node: str, device: str) -> str:
        """With whom a device may be compared: its node's cohort and its model; alone where they are unknown."""
        cohort = next((n.cohort for n in self.nodes if n.name == node), "")
        model = next((d.model for d in self.devices if (d.node, d.id) == (node, device)), "")
        return f"{cohort}/{model}" if cohort or model else f"alone:{node}/{device}"

    def mesh(self, job: str) -> JobMesh:
        """The job's ranks on their axes.

        Raises:
            KeyError: the recording has no such job.
        """
        info = next((one for one in self.jobs if one.id == job), None)
        if info is None:
            raise KeyError(job)
        return mesh_of(job, {"ranks": info.ranks}, {node.name: node.switches for node in self.nodes}, info.axes)


class Recording(Protocol):
    """What replay needs. Chunks of one feed follow one another in time; each is small enough to hold in memory."""

    @property
    def fleet(self) -> FleetInfo: ...

    def devices(self, source: SignalSource) -> Iterator[Samples]:
        """Devices of one source on a grid of whole seconds; counters as rates per second."""
        ...

    def steps(self, job: str) -> Iterator[Samples]: ...

    def progress(self, job: str) -> Iterator[Samples]: ...

    def pairs(self, job: str) -> Iterator[Samples]: ...

    def events(self) -> tuple[Event, ...]:
        """In order of time."""
        ...
