"""Incidents that were none: what made other monitors cry wolf, by name. Nothing here may propose to drain a node.

Each story is the shape of a published complaint, told as telemetry and events.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mainstay.probes.core_types import EventKind
from tests.scenarios.health.fleet import Node
from tests.scenarios.health.stage import CALM_PACE_S as PACE
from tests.scenarios.health.stage import Stage


@dataclass(frozen=True)
class Quiet:
    """A story that must not end in a drain."""

    name: str
    source: str
    """Where it hurt."""
    play: Callable[[Stage], None]
    incidents: int = 0
    """Incidents that an operator may reasonably be shown."""
    stage: dict[str, Any] = field(default_factory=dict)


QUIET: list[Quiet] = []


def _quiet(
    source: str, *, incidents: int = 0, **stage: Any
) -> Callable[[Callable[[Stage], None]], Callable[[Stage], None]]:
    def keep(play: Callable[[Stage], None]) -> Callable[[Stage], None]:
        QUIET.append(Quiet(play.__name__, source, play, incidents, stage))
        return play

    return keep


def _links(node: Node, count: int, state: float) -> None:
    for gpu in node.gpus:
        gpu.gauges.update(gpu_nvlinks_active=float(count), gpu_fabric_state=state)


@_quiet("NVSentinel#1701: 214 of 288 nodes said NVLINK_DOWN, all planned reboots", count=6)
def nvlink_down_on_planned_reboot(stage: Stage) -> None:
    stage.run(90, pace=PACE)
    for node in stage.nodes.values():
        stage.event(EventKind.NODE_STOPPING, node, reason="shutdown")
        for gpu in range(8):  # the driver unloads: its links go down with noise
            stage.xid(node, gpu, 149, "NETIR_LINK_EVT Fatal XC0 i0 Link 03", unit="NETIR_LINK_EVT", fatal=True, link=3)
        stage.xid(node, 0, 74, "NVLink: fatal error detected on link 3", link=3)
        node.up = False
        stage.run(10)
        stage.run(50, pace=PACE)
        stage.boot(node)
        _links(node, 0, 2.0)
        for gpu in range(8):
            stage.xid(node, gpu, 149, "NETIR_LINK_EVT Fatal XC0 i0 Link 07", unit="NETIR_LINK_EVT", fatal=True, link=7)
        stage.event(EventKind.LINK_DOWN, node, node.ports[0].id, link="mlx5_0:1")
        stage.run(25, pace=PACE)
        _links(node, 18, 3.0)
        stage.event(EventKind.LINK_UP, node, node.ports[0].id, link="mlx5_0:1", since_down=25.0)
        stage.run(20, pace=PACE)
    stage.run(120, pace=PACE)


@_quiet("aicr#2641: IMEX unhealthy for 13 days on healthy idle nodes")
def imex_unhealthy_on_idle_nodes(stage: Stage) -> None:
    for node in stage.nodes.values():
        for gpu in node.gpus:
            gpu.gauges["gpu_recovery_action"] = 5.0
    stage.run(600, pace=PACE)


@_quiet("DCGM#285: power watch fires on one nanosecond, and on a counter that fell")
def one_nanosecond_of_power_violation(stage: Stage) -> None:
    for node in stage.nodes.values():
        node.load(1.0)
        for gpu in node.gpus:
            gpu.rates["gpu_throttle_power_brake_nanoseconds_total"] = 1.0
            gpu.rates["gpu_throttle_hardware_thermal_nanoseconds_total"] = 1.0
    stage.run(120, pace=PACE)
    for node in stage.nodes.values():
        node.reset_counters()
    stage.run(120, pace=PACE)


@_quiet("NVSentinel#1708: jobs at their power cap, on and off")
def power_cap_flaps_with_the_job(stage: Stage) -> None:
    for n in range(8):
        for node in stage.nodes.values():
            node.load(float(n % 2 == 0))
            for gpu in node.gpus:
                gpu.throttle("power_cap", 0.9 if n % 2 == 0 else 0.0)
        stage.run(45, pace=PACE)


@_quiet("NVSentinel#1748: 11,760 XID 45 from one job's clean-up")
def xid_45_flood(stage: Stage) -> None:
    for node in stage.nodes.values():
        node.load(1.0)
    stage.run(60, pace=PACE)
    node = stage.nodes["n00"]
    # The node's daemon says the first few and then sums up; the same again from every card.
    for n in range(40):
        for gpu in range(8):
            stage.xid(node, gpu, 45, "Preemptive Channel Removal", pid=4711, count=1 if n < 5 else 42)
        if n % 8 == 0:
            stage.run(1)
    node.load(0.0)
    stage.run(180, pace=PACE)


@_quiet("users' own bugs: XID 31, 13 and 43 on every card of a job", incidents=1)
def application_xids(stage: Stage) -> None:
    for node in stage.nodes.values():
        node.load(1.0)
    stage.run(60, pace=PACE)
    for name in ("n00", "n01", "n02"):
        node = stage.nodes[name]
        for gpu in range(8):
            stage.xid(node, gpu, 31, "MMU Fault: ENGINE GRAPHICS", pid=900 + gpu)
            stage.xid(node, gpu, 43, "Ch 00000008", pid=900 + gpu)
        node.load(0.0)
    stage.run(120, pace=PACE)


@_quiet("NVSentinel#1447: more than ten flaps a second filled the store", incidents=1)
def flapping_port(stage: Stage) -> None:
    node = stage.nodes["n03"]
    stage.run(60, pace=PACE)

    def flap(_: int) -> None:
        for _again in range(10):
            stage.event(EventKind.LINK_DOWN, node, node.ports[1].id, link="mlx5_1:1", since_up=0.05)
            stage.event(EventKind.LINK_UP, node, node.ports[1].id, link="mlx5_1:1", since_down=0.05)
        node.ports[1].totals["nic_link_downed_total"] = node.ports[1].totals.get("nic_link_downed_total", 0) + 10

    stage.run(60, flap)
    stage.run(60, pace=PACE)


@_quiet("cards save power at idle: generation 1, low clocks")
def idle_downshift(stage: Stage) -> None:
    stage.run(240, pace=PACE)
    for n in range(4):
        stage.nodes[f"n0{n}"].load(1.0)
    stage.run(60, pace=PACE)
    for n in range(4):
        stage.nodes[f"n0{n}"].load(0.0)
    stage.run(120, pace=PACE)


@_quiet("NVSentinel#1481: NVLINK_DOWN on cards that have no NVLink")
def cards_without_nvlink(stage: Stage) -> None:
    for node in stage.nodes.values():
        for gpu in node.gpus:
            gpu.gauges.update(gpu_nvlinks_active=0.0, gpu_nvlinks_supported=0.0, gpu_fabric_state=0.0)
        node.load(1.0)
    stage.run(240, pace=PACE)


@_quiet("a driver upgrade under a running daemon: silence, then counters from zero")
def driver_upgrade(stage: Stage) -> None:
    for node in stage.nodes.values():
        for gpu in node.gpus:
            gpu.totals.update(
                gpu_ecc_corrected_total=40.0, gpu_pcie_replay_total=300.0, gpu_nvlink_recoveries_total=3.0
            )
    stage.run(120, pace=PACE)
    node = stage.nodes["n02"]
    for gpu in node.gpus:
        gpu.answers = False
    stage.run(50)
    node.reset_counters()
    for gpu in node.gpus:
        gpu.answers = True
        gpu.gauges["gpu_utilization_ratio"] = 1.0  # memory is scrubbed
    stage.run(5)
    for gpu in node.gpus:
        del gpu.gauges["gpu_utilization_ratio"]
    stage.run(120, pace=PACE)


@_quiet("jobs start and stop all over the fleet, each at its own time", count=12)
def jobs_come_and_go(stage: Stage) -> None:
    nodes = list(stage.nodes.values())

    def shuffle(second: int) -> None:
        if second % 20 == 0:
            node = nodes[second // 20 % len(nodes)]
            node.load(0.0 if node.gpus[0].load else float(stage.chance.uniform(0.5, 1.0)))

    stage.run(600, shuffle, pace=PACE)


@_quiet("the control plane restarts in the middle of a busy hour")
def service_restart(stage: Stage) -> None:
    for node in stage.nodes.values():
        node.load(0.9)
    stage.run(150, pace=PACE)
    stage.restart()
    stage.run(30)
    stage.run(120, pace=PACE)


@_quiet("a rack is switched off in order, and comes back", count=8)
def rack_maintenance(stage: Stage) -> None:
    stage.run(60, pace=PACE)
    rack = [node for node in stage.nodes.values() if node.rack == "r1"]
    for node in rack:
        stage.shut_down(node)
    stage.run(60)
    stage.run(120, pace=PACE)
    for node in rack:
        stage.boot(node)
    stage.run(30)
    stage.run(90, pace=PACE)


@_quiet("a cold aisle warms up: all nodes are hotter, none is sick")
def warm_afternoon(stage: Stage) -> None:
    for node in stage.nodes.values():
        node.load(1.0)

    def warm(second: int) -> None:
        for node in stage.nodes.values():
            for gpu in node.gpus:
                gpu.gauges["gpu_temperature_celsius"] = 66.0 + second / 40 + stage.chance.normal(0.0, 0.8)

    stage.run(480, warm, pace=PACE)


@_quiet("a stuck sensor repeats its number")
def stuck_sensor(stage: Stage) -> None:
    gpu = stage.nodes["n01"].gpus[4]
    gpu.gauges["gpu_temperature_celsius"] = 41.0
    for node in stage.nodes.values():
        node.load(1.0)
    stage.run(300, pace=PACE)


@_quiet("the reboot that a healthy card asks for at leisure: rows wait to be remapped", incidents=1)
def remap_pending(stage: Stage) -> None:
    node = stage.nodes["n05"]
    stage.run(60, pace=PACE)
    stage.xid(node, 3, 63, "Row Remapper: New row marked for remapping, reset gpu to activate")
    node.gpus[3].gauges["gpu_remap_pending"] = 1.0
    node.gpus[3].totals["gpu_remapped_rows_corrected_total"] = 1.0
    stage.run(180, pace=PACE)
