"""Nodes that fetch orders and answer with made-up measurements: a sweep under way, a search for a slow node."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mainstay.service.demo.stack import Stack
from tests.web.job_timeline import report

NODES = tuple(f"val-{i}" for i in range(6))
SLOW = NODES[1]
COHORT = "h100-val"
METRIC = ("gemm", "bf16_n256")
REFERENCE = [7.0e14 * (1 + 0.002 * (i - 20) / 20) for i in range(41)]
"""FLOP/s of a healthy run, rising: within 0.2 % of 700 TFLOP/s."""
LOW = 6.9e14


def put_nodes(stack: Stack) -> None:
    for i, node in enumerate(NODES):
        stack.api.put(f"/nodes/{node}", report([f"17500000000{i:02d}"]) | {"cohort": COHORT, "rack": f"r{i // 3}"})


def put_criteria(stack: Stack) -> None:
    benchmark, metric = METRIC
    whole = {
        "reference": REFERENCE, "alpha": 0.95, "warn_alpha": 0.97, "repeatability": 0.98, "detectable": 0.021,
        "excluded": 1,
    }  # fmt: skip
    limits = {"better": "higher", "low": LOW, "high": None, "unit": "FLOP/s", "n": 41, "source": "learned"}
    of = {"cohort": COHORT, "benchmark": benchmark, "metric": metric}
    stack.api.put("/criteria", {"items": [{**of, **limits, "distribution": whole}]})


def start_sweep(stack: Stack, name: str = "acceptance") -> dict[str, Any]:
    """A sweep of one benchmark over all nodes, two at once, begun."""
    body = {"name": name, "suite": "quick", "nodes": list(NODES), "benchmarks": ["gemm", "copy"], "max_concurrent": 3}
    sweep: dict[str, Any] = stack.api.post("/sweeps", {**body, "retries": 0, "enabled": True})
    return dict(stack.api.post(f"/sweeps/{sweep['id']}:run", {}))


def tasks(stack: Stack, nodes: Sequence[str], kind: str = "validate") -> dict[str, dict[str, Any]]:
    """Node → its first task of this kind, for those that have one."""
    taken = {node: stack.api.get(f"/nodes/{node}/tasks")["items"] for node in nodes}
    return {node: found[0] for node, items in taken.items() if (found := [o for o in items if o["kind"] == kind])}


def report_progress(stack: Stack, validation: str, index: int) -> None:
    """Report the progress of the node."""
    body = {"index": index, "total": 2, "benchmark": "copy", "device": "gpu0", "state": "running", "done": ["gemm"]}
    stack.api.post(f"/validations/{validation}/progress", body)


def measured(stack: Stack, validation: str, scale: float = 1.0) -> None:
    """The node's results: gemm at a share of what is usual; its copy hung."""
    now = time.time()
    values = [scale * value for value in REFERENCE[::2]]
    gemm = {
        "benchmark": "gemm", "state": "ok", "error": None, "seconds": 8.0, "device": "gpu0", "digest": None,
        "metrics": [{"name": METRIC[1], "unit": "FLOP/s", "better": "higher", "values": values}],
    }  # fmt: skip
    items = [gemm]
    if scale < 1:
        items.append(gemm | {"benchmark": "copy", "state": "timeout", "error": "no end after 60 s", "metrics": []})
    body = {"suite": "quick", "started_at": now - 40, "finished_at": now, "benchmarks": items, "error": None}
    stack.api.post(f"/validations/{validation}/results", body)


def play_sweep(stack: Stack) -> tuple[dict[str, Any], dict[str, str]]:
    """A sweep under way: one node failed, one runs, the next have their tasks or are held. The sweep; node → id."""
    sweep = start_sweep(stack)

    def listed() -> list[dict[str, Any]]:
        return list(stack.api.get("/validations", sweep=sweep["id"], limit=50)["items"])

    stack.until(lambda: len(listed()) == len(NODES), 30.0, "the validations of the run")
    ids = {item["node"]: item["id"] for item in listed()}
    seen: dict[str, dict[str, Any]] = {}

    def first_two() -> bool:
        seen.update(tasks(stack, NODES[:3]))
        return {NODES[0], SLOW} <= set(seen)

    stack.until(first_two, 30.0, "the first tasks")
    report_progress(stack, ids[NODES[0]], 1)
    measured(stack, ids[SLOW], 0.8)
    return sweep, ids


def pairs(stack: Stack, localization: str, slow: Mapping[str, float]) -> Iterator[int]:
    """Answer the orders of a localization, as the nodes would; a pair is as fast as its slower end."""
    while stack.api.get(f"/fault-localizations/{localization}")["state"] == "running":
        found = tasks(stack, NODES, "pair")
        for node, order in found.items():
            speed = 5e10 * min(slow.get(node, 1.0), slow.get(order["peer"], 1.0))
            now = time.time()
            result = {
                "benchmark": order["benchmark"], "state": "ok", "error": None, "seconds": 1.0, "device": "",
                "digest": None, "metrics": [
                    {"name": f"bandwidth_{size}", "unit": "B/s", "better": "higher", "values": [speed] * 3}
                    for size in order["sizes"]
                ],
            }  # fmt: skip
            body = {"started_at": now - 1, "finished_at": now, "result": result}
            stack.api.post(f"/fault-localizations/tasks/{order['id']}/results", body)
        yield len(found)


def localize(stack: Stack) -> str:
    """A localization, played to its end: ``SLOW`` has 70 % of the usual speed. Its id."""
    body = {"nodes": list(NODES), "reason": "job 7 is slow and no node is at fault"}
    made = stack.api.post("/fault-localizations", body)["id"]
    deadline = time.monotonic() + 60
    for answered in pairs(stack, made, {SLOW: 0.7}):
        assert time.monotonic() < deadline, "the localization does not end"
        if not answered:
            time.sleep(0.05)
    return str(made)
