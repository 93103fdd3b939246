"""Faults that others missed or found late, by name. Each must be found, soon, with the culprit, in one incident."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from mainstay.probes.core_types import EventKind
from tests.scenarios.health.fleet import Gpu, Node
from tests.scenarios.health.stage import CALM_PACE_S, Stage


@dataclass(frozen=True)
class Fault:
    """A story of something that broke. ``play`` returns when it broke and what is to blame."""

    name: str
    source: str
    play: Callable[[Stage], Onset]
    kinds: frozenset[str]
    """Any of these says it."""
    within: float
    """Seconds from the onset to the finding."""
    evicts: bool | None = False
    """Whether a drain should be proposed; None: either is fine."""
    incidents: int = 1
    stage: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Onset:
    """What broke: the culprits as (node, device); a device of None is the host."""

    culprits: tuple[tuple[str, str | None], ...]
    seconds: int = 30
    """How long the stage plays on to see it found."""


FAULTS: list[Fault] = []


def _fault(
    source: str,
    kinds: Iterable[str],
    *,
    within: float = 5.0,
    evicts: bool | None = False,
    incidents: int = 1,
    **stage: Any,
) -> Callable[[Callable[[Stage], Onset]], Callable[[Stage], Onset]]:
    def keep(play: Callable[[Stage], Onset]) -> Callable[[Stage], Onset]:
        FAULTS.append(Fault(play.__name__, source, play, frozenset(kinds), within, evicts, incidents, stage))
        return play

    return keep


def _busy(stage: Stage, seconds: int = 80, *, pace: int = CALM_PACE_S) -> None:
    for node in stage.nodes.values():
        node.load(1.0)
    stage.run(seconds, pace=pace)


def _of(node: Node, *gpus: int) -> tuple[tuple[str, str | None], ...]:
    return tuple((node.name, node.gpus[i].id) for i in gpus)


@_fault("NVSentinel#1666: two cards a node braked for 36 h, never reported", ["power_brake"])
def power_brake(stage: Stage) -> Onset:
    _busy(stage)
    node = stage.nodes["n04"]
    for i in (2, 6):
        node.gpus[i].throttle("power_brake", 1.0)
    return Onset(_of(node, 2, 6))


@_fault("a whole rack's power shelf brakes: one cause, one incident", ["power_brake"], count=8)
def power_brake_of_a_rack(stage: Stage) -> Onset:
    _busy(stage)
    rack = [node for node in stage.nodes.values() if node.rack == "r0"]
    for node in rack:
        for gpu in node.gpus:
            gpu.throttle("power_brake", 0.8)
    return Onset(tuple(c for node in rack for c in _of(node, *range(8))))


@_fault("a fan has failed behind one card", ["thermal_throttle"])
def thermal_throttle(stage: Stage) -> Onset:
    _busy(stage)
    node = stage.nodes["n01"]
    node.gpus[5].throttle("hardware_thermal", 0.6)
    node.gpus[5].gauges.update(gpu_temperature_celsius=88.0, gpu_temperature_margin_celsius=0.0)
    return Onset(_of(node, 5))


@_fault("NVSentinel#890: the PCIe link trained down and no check ran", ["pcie_degraded"])
def pcie_downtrained(stage: Stage) -> Onset:
    _busy(stage)
    node = stage.nodes["n02"]
    node.gpus[0].gauges["gpu_pcie_width"] = 4.0
    return Onset(_of(node, 0))


@_fault("XID 79: fallen off the bus", ["xid", "gpu_lost"], within=2.0, evicts=True)
def fallen_off_the_bus(stage: Stage) -> Onset:
    _busy(stage)
    node = stage.nodes["n06"]
    stage.xid(node, 1, 79, "GPU has fallen off the bus.")
    stage.event(EventKind.GPU_LOST, node, node.gpus[1].id, reason="GPU is lost", source="nvml")
    node.gpus[1].answers = False
    return Onset(_of(node, 1))


@_fault("NVSentinel#155: lost without any XID line", ["gpu_lost"], within=2.0, evicts=True)
def lost_without_xid(stage: Stage) -> Onset:
    _busy(stage)
    node = stage.nodes["n06"]
    stage.event(EventKind.GPU_LOST, node, node.gpus[1].id, reason="GPU has fallen off the bus", source="kernel")
    node.gpus[1].answers = False
    return Onset(_of(node, 1))


@_fault(
    "DCGM#313: a burst of corrected errors hangs every call to one card",
    ["probe_unresponsive"],
    within=3.0,
    evicts=None,
)
def hung_driver_call(stage: Stage) -> Onset:
    _busy(stage)
    node = stage.nodes["n03"]
    node.gpus[7].answers = False
    stage.event(
        EventKind.PROBE_UNRESPONSIVE, node, node.gpus[7].id, sampler="nvml", reason="no answer for 1.5 s", seconds=1.5
    )
    return Onset(_of(node, 7))


@_fault("DCGM#263: the driver says reset, the monitor says healthy", ["gpu_recovery_action"], within=16.0, evicts=True)
def recovery_action(stage: Stage) -> Onset:
    _busy(stage)
    node = stage.nodes["n00"]
    node.gpus[4].gauges["gpu_recovery_action"] = 1.0
    return Onset(_of(node, 4), seconds=40)


@_fault("NVSentinel#883: the fabric manager was dead for 20 days", ["fabric_down"], within=30.0)
def fabric_manager_dead(stage: Stage) -> Onset:
    _busy(stage)
    node = stage.nodes["n05"]
    node.host.gauges["fabric_manager_up"] = 0.0
    return Onset(((node.name, "host"),), seconds=60)


@_fault("gpud#1085: every NVLink inactive and the card called healthy", ["nvlink_errors"], within=30.0, evicts=None)
def all_nvlinks_inactive(stage: Stage) -> Onset:
    _busy(stage)
    node = stage.nodes["n05"]
    node.gpus[2].gauges["gpu_nvlinks_active"] = 0.0
    return Onset(_of(node, 2), seconds=60)


@_fault(
    "marin#8934: one link's recoveries rose for five days before it took a rack down",
    ["nvlink_errors"],
    within=5400.0,
    count=1,
)
def rising_link_recoveries(stage: Stage) -> Onset:
    _busy(stage)
    gpu: Gpu = stage.nodes["n00"].gpus[3]
    gpu.rates["gpu_nvlink_recoveries_total"] = 0.01  # 36 an hour; all other links have none
    gpu.gauges.update(gpu_nvlink_worst_link=11.0, gpu_nvlink_worst_link_errors_per_second=0.01)
    return Onset(_of(stage.nodes["n00"], 3), seconds=5400)


@_fault("an uncorrectable error in HBM", ["ecc_uncorrectable", "xid"], within=16.0, evicts=True)
def uncorrectable_ecc(stage: Stage) -> Onset:
    _busy(stage)
    node = stage.nodes["n02"]
    node.gpus[6].totals.update(gpu_ecc_uncorrected_total=1.0, gpu_ecc_uncorrected_aggregate_total=1.0)
    stage.xid(node, 6, 48, "DBE (double bit error) detected")
    return Onset(_of(node, 6), seconds=40)


@_fault("a row that cannot be remapped: a criterion for return", ["row_remap", "xid"], within=16.0, evicts=True)
def remap_failed(stage: Stage) -> Onset:
    _busy(stage)
    node = stage.nodes["n02"]
    node.gpus[6].gauges["gpu_remap_failed"] = 1.0
    return Onset(_of(node, 6), seconds=40)


@_fault("a burst of corrected errors, 4,600 a second", ["ecc_corrected"], within=30.0)
def corrected_error_burst(stage: Stage) -> Onset:
    _busy(stage)
    node = stage.nodes["n04"]
    node.gpus[0].rates["gpu_ecc_corrected_total"] = 4600.0
    return Onset(_of(node, 0), seconds=60)


@_fault("a transceiver dies: port down", ["nic_degraded"], evicts=None)
def port_down(stage: Stage) -> Onset:
    _busy(stage)
    node = stage.nodes["n01"]
    node.ports[0].gauges["nic_link_up"] = 0.0
    stage.event(EventKind.LINK_DOWN, node, node.ports[0].id, link="mlx5_0:1", since_up=86_000.0)
    return Onset(((node.name, node.ports[0].id),), seconds=60)


@_fault("a node dies without a word", ["node_lost"], within=10.0, evicts=None)
def node_dies(stage: Stage) -> Onset:
    _busy(stage, 120, pace=1)  # how soon a silence is noticed is learned, too
    stage.vanish(stage.nodes["n03"])
    return Onset((("n03", None),))


@_fault("a leaf switch dies: a rack stops reporting at once", ["node_lost"], within=10.0, evicts=None, count=8)
def rack_falls_silent(stage: Stage) -> Onset:
    _busy(stage, 120, pace=1)  # how soon a silence is noticed is learned, too
    rack = [node for node in stage.nodes.values() if node.rack == "r1"]
    for node in rack:
        stage.vanish(node)
    return Onset(tuple((node.name, None) for node in rack))


@_fault("a collective hangs: full utilization at low power", ["stalled_collective"], within=90.0, incidents=2)
def stalled_collective(stage: Stage) -> Onset:
    _busy(stage, 300)
    for name in ("n00", "n01"):
        for gpu in stage.nodes[name].gpus:
            gpu.power_share = 0.12
    return Onset((*_of(stage.nodes["n00"], *range(8)), *_of(stage.nodes["n01"], *range(8))), seconds=360)
