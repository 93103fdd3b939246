"""Reports of a job's coordinator and of node daemons to the service."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from mainstay.probes.ids import uuid7
from mainstay.recovery.recovery_plan import Alternative, RankRestore, RecoveryPlan, RestoreSource, RestoreStrategyName
from mainstay.service.demo.stack import Stack

JOB = "llama"


def put_job(stack: Stack, state: str = "running", nodes: Sequence[str] = ("node-a",)) -> None:
    """Report a job of four ranks on these nodes in turn."""
    ranks = [
        {
            "rank": r, "dp": r // 2, "pp": r % 2, "tp": 0,
            "node": nodes[r % len(nodes)], "device": None, "pid": 100 + r, "state": "running",
        }
        for r in range(4)
    ]  # fmt: skip
    stack.api.put(
        f"/jobs/{JOB}",
        {
            "name": JOB, "state": state, "generation": 1, "command": ["train.py"],
            "topology": {"dp": 2, "pp": 2, "tp": 1, "world_size": 4, "ranks": ranks},
            "protection": {
                "slots": 3, "parity_every": 5, "parity_group": 2, "disk_every": None, "state_bytes": [1 << 20] * 4,
            },
            "steps_total": 100, "last_step": 41, "started_at": time.time() - 60, "finished_at": None,
        },
    )  # fmt: skip


def send(stack: Stack, kind: str, *, data: dict[str, Any], rank: int | None = None, generation: int = 1) -> None:
    """Send one event of the job."""
    event = {
        "id": uuid7(), "time": time.time(), "kind": kind, "node": "node-a", "device": None, "job": JOB, "rank": rank,
        "generation": generation, "data": data,
    }  # fmt: skip
    stack.api.post("/events", {"items": [event]})


def kill(stack: Stack, rank: int) -> None:
    send(stack, "process_exit", rank=rank, data={"pid": 100 + rank, "signal": 9, "exit_code": None, "expected": False})


def plan(rank: int) -> dict[str, Any]:
    """Return a plan with a chosen, a more expensive, and an infeasible strategy."""
    restores = tuple(RankRestore(rank=r, node="node-a", source=RestoreSource.LOCAL_SLOT) for r in range(4))
    local = Alternative(
        strategy=RestoreStrategyName.LOCAL_SLOT, feasible=True, reason="The node still holds the slot.", epoch=41,
        seconds=0.4, steps_lost=0, cost_seconds=0.4,
        parts={"fence": 0.1, "load": 0.1, "regroup": 0.2}, restores=restores,
    )  # fmt: skip
    peer = Alternative(
        strategy=RestoreStrategyName.PEER_COPY, feasible=True, reason="A replica is running.", epoch=41, seconds=0.9,
        steps_lost=0,
        cost_seconds=0.9, parts={"fence": 0.1, "fetch": 0.6, "regroup": 0.2}, restores=restores,
    )  # fmt: skip
    disk = Alternative(strategy=RestoreStrategyName.DISK_RESTART, feasible=False, reason="No checkpoint is on disk.")
    chosen = RecoveryPlan(
        id=uuid7(), job=JOB, generation=2, failed_ranks=(rank,), alternatives=(local, peer, disk),
        chosen=RestoreStrategyName.LOCAL_SLOT, explanation="The local slot is the cheapest recovery strategy.",
    )  # fmt: skip
    return asdict(chosen)


GPU_NODE = "gpu-node"
OTHER_NODE = "gpu-other"
SERIAL = "1650000000042"


def report(serials: list[str]) -> dict[str, Any]:
    """Return the report of a node with these GPUs and one network port."""
    nothing = {"serial": None, "uuid": None, "memory_bytes": None}
    host = {"id": "host", "index": 0, "kind": "host", "model": "EPYC", **nothing}
    port = {"id": "nic:mlx5_0:1", "index": 0, "kind": "nic", "model": "ConnectX-7", **nothing}
    gpus = [
        {
            "id": f"gpu{i}", "index": i, "kind": "gpu", "model": "NVIDIA H100", "serial": serial,
            "uuid": f"GPU-{serial}", "memory_bytes": 85_899_345_920, "facts": {"driver_version": "580.95.05"},
        }
        for i, serial in enumerate(serials)
    ]  # fmt: skip
    now = time.time()
    return {
        "hostname": "h", "os": "Linux", "kernel": "6.12", "version": "0.1.0", "boot_id": "b", "cohort": "h100",
        "cpu_count": 8, "memory_bytes": 1 << 36, "devices": [host, *gpus, port],
        "catalog": {"narrow": [], "wide": []}, "started_at": now - 900, "booted_at": now - 86_400, "rack": "r1",
    }  # fmt: skip


def put_gpu_nodes(stack: Stack) -> None:
    """Report two nodes with GPUs. One GPU moved from the other node."""
    stack.api.put(f"/nodes/{OTHER_NODE}", report([SERIAL, "1650000000077"]))
    stack.api.put(f"/nodes/{OTHER_NODE}", report(["1650000000077"]))
    stack.api.put(f"/nodes/{GPU_NODE}", report([SERIAL, "1650000000043"]))


def fall_off_the_bus(stack: Stack, node: str = GPU_NODE, device: str = "gpu0") -> None:
    """Send the driver event of a lost GPU."""
    event = {
        "id": uuid7(), "time": time.time(), "kind": "xid", "node": node, "device": device, "job": None, "rank": None,
        "generation": None,
        "data": {"code": 79, "source": "nvml", "text": "GPU has fallen off the bus", "uptime": 86_400},
    }  # fmt: skip
    stack.api.post("/events", {"items": [event]})
