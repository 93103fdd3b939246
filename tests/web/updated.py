"""Nodes that were measured under one driver and again under the next: the effect of an update."""

from __future__ import annotations

import time

from mainstay.service.demo.stack import Stack
from tests.web.job_timeline import report

HARDWARE = "b200-upd"
DRIVERS = ("570.10", "580.20")
NODES = tuple(f"upd-{i}" for i in range(4))
GPUS = 4
SLOWER = 0.95
"""What the newer driver leaves of every card's speed."""
STANDS_OUT, OF_IT = (NODES[2], "gpu1"), 0.8


def put_nodes(stack: Stack, driver: str) -> None:
    for i, node in enumerate(NODES):
        sent = report([f"16500000000{i}{gpu}" for gpu in range(GPUS)]) | {"cohort": HARDWARE, "rack": "u1"}
        for device in sent["devices"]:
            device["facts"] = {"driver": driver}
        stack.api.put(f"/nodes/{node}", sent)


def measure(stack: Stack, node: str, scale: float, slow: float = 1.0) -> str:
    """One validation of a node, played to its end; its id."""
    made = str(stack.api.post("/validations", {"node": node, "suite": "quick", "benchmarks": ["gemm"]})["id"])
    stack.api.get(f"/nodes/{node}/tasks")
    now = time.time()
    benchmarks = []
    for gpu in range(GPUS):
        level = 1.4e15 * scale * (1 + 0.002 * gpu + 0.001 * NODES.index(node))
        level *= slow if (node, f"gpu{gpu}") == STANDS_OUT else 1.0
        values = [level * (1 + 0.001 * (i - 5)) for i in range(11)]
        metric = {"name": "bf16_n256", "unit": "FLOP/s", "better": "higher", "values": values}
        benchmarks.append(
            {
                "benchmark": "gemm", "state": "ok", "error": None, "seconds": 2.0, "device": f"gpu{gpu}",
                "digest": None, "metrics": [metric],
            }
        )  # fmt: skip
    body = {"suite": "quick", "started_at": now - 9, "finished_at": now, "benchmarks": benchmarks, "error": None}
    stack.api.post(f"/validations/{made}/results", body)
    return made


def update(stack: Stack) -> dict[str, str]:
    """All nodes before and after; node → its validation after."""
    put_nodes(stack, DRIVERS[0])
    for node in NODES:
        measure(stack, node, 1.0)
    put_nodes(stack, DRIVERS[1])
    return {node: measure(stack, node, SLOWER, OF_IT) for node in NODES}
