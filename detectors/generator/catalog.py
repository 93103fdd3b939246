"""Every fault and every healthy trap in one table, and runs of them by name, seed, and size."""

from __future__ import annotations

from typing import Any

import numpy as np

from mainstay.detectors.generator import compute_faults as compute
from mainstay.detectors.generator import network_faults as network
from mainstay.detectors.generator import stop_faults as stop
from mainstay.detectors.generator import traps
from mainstay.detectors.generator.truth import Fault, Truth
from mainstay.detectors.generator.world import World

FAULTS: dict[str, Fault] = {
    fault.__name__: fault
    for fault in (
        compute.slow_rank, compute.slow_start, compute.creeping, compute.intermittent, compute.migrating,
        compute.two_stragglers, compute.straggler_and_cable, compute.slow_node, compute.bad_image, compute.throttled,
        compute.rack_cooling, compute.power_brake, compute.rack_power_brake, compute.contended, compute.slowdown,
        compute.stalled_data, compute.slow_storage, compute.slow_node_storage,
        network.slow_sender, network.slow_receiver, network.slow_cable, network.slow_leaf, network.lossy_leaf,
        network.slow_spine, network.port_down,
        stop.hang, stop.stopped, stop.two_hangs, stop.partial_hang, stop.checkpoint_hang, stop.dead_link,
        stop.process_exit, stop.out_of_memory, stop.reboot, stop.lost_gpu, stop.memory_error, stop.not_a_number,
        stop.bad_batch, stop.spike, stop.silent_corruption, stop.clock_skew, stop.clock_step, stop.disk_full,
        stop.narrow_pcie,
    )
}  # fmt: skip
TRAPS: dict[str, Fault] = {
    trap.__name__: trap
    for trap in (
        traps.nothing, traps.evaluation, traps.evaluations, traps.checkpoints, traps.compilation, traps.recompilation,
        traps.long_warm_up, traps.expert_imbalance, traps.long_context, traps.data_mix, traps.one_long_sequence,
        traps.accumulation, traps.elastic_shape, traps.swing, traps.day_and_night, traps.learning_rate_restart,
        traps.garbage_collection, traps.clock_boost, traps.log_rotation, traps.quiet_neighbor, traps.stuck_timers,
        traps.frozen_sensor, traps.late_samples,
    )
}  # fmt: skip
CASES = FAULTS | TRAPS
SIZES: tuple[dict[str, Any], ...] = (
    {"dp": 2, "pp": 2, "tp": 4}, {"dp": 8, "pp": 2, "tp": 4}, {"dp": 16, "pp": 4, "tp": 4},
)  # fmt: skip
"""Of a corpus: 16, 64, and 256 ranks."""
DAMAGE = {"missing": 0.05, "skew": 0.05, "stuck": 0.01}
"""5 % of the samples lost, clocks wrong by up to 50 ms, 1 % of the compute timers stuck."""
_LEAST_LEAVES = {"slow_spine": 3}
"""With two leaves a congested spine looks like a congested leaf."""


def generate(name: str, seed: int, *, damaged: bool = False, **shape: Any) -> tuple[World, Truth]:
    """A run with the fault or trap ``name`` after two thirds of its steps; equal arguments give equal runs.

    Args:
        name: of ``CASES``.
        seed: of everything that is drawn.
        damaged: with ``DAMAGE`` in its telemetry.
        shape: fields of ``World``: ``dp``, ``pp``, ``tp``, ``steps``, and others.

    Raises:
        ValueError: no case has that name, or the shape is too small for it; the message says which.
    """
    if name not in CASES:
        raise ValueError(f"no fault or trap is called {name!r}; `mainstay generate --list` shows all")
    damage: dict[str, Any] = DAMAGE if damaged else {}
    world = World(seed=seed, **damage, **shape)
    if not fits(name, world):
        raise ValueError(f"{world.mesh.size} ranks on {len(world.nodes)} nodes are too few for {name}")
    return world, CASES[name](world, world.steps * 2 // 3, np.random.default_rng([seed, 100]))


def fits(name: str, world: World) -> bool:
    """Whether a run of this size can have the fault: two nodes and two replicas at least."""
    leaves = len({above[0] for above in world.mesh.switches})
    return len(world.nodes) >= 2 and world.dp >= 2 and leaves >= _LEAST_LEAVES.get(name, 1)
