"""The strategies that a coordinator evaluated at a failure."""

from __future__ import annotations

from typing import Any


def option(strategies: list[str], expected_s: float | None, reason: str, **parts: float) -> dict[str, Any]:
    """Return one option of an event; without a cost it is infeasible."""
    return {
        "strategies": strategies, "feasible": expected_s is not None,
        "executable": strategies[0] not in {"just_in_time", "morph"},
        "reason": reason, "expected_s": expected_s, "gpu_seconds": None if expected_s is None else 4 * expected_s,
        "rate": None if expected_s is None else 0.57 if strategies[0] == "drop_and_heal" else 1.0, "parts": parts,
    }  # fmt: skip


def decision() -> dict[str, Any]:
    """Return the evaluation of a lost process; dropping its replica costs less than a warm standby."""
    return {
        "act": True, "chosen": ["drop_and_heal"], "fault": "process", "lost": [1, 0], "seconds": 0.0008, "ready": True,
        "explanation": "drop_and_heal: Training continues at 57.1% of its rate after 0.21 s, until 0.3 s have passed.",
        "options": [
            option(["drop_and_heal"], 0.59, "At 57.1% until 0.3 s have passed.", downtime=0.21, degraded=0.13,
                   repeated=0.05, rejoin=0.2),
            option(["drop_and_heal", "standby_swap"], 0.7, "Then swapped.", downtime=0.21, degraded=0.3, rejoin=0.19),
            option(["local_slot"], 0.75, "Training continues at full rate after 0.7 s.", downtime=0.7, repeated=0.05),
            option(["just_in_time"], 3.1, "Training continues at full rate after 3.05 s.", downtime=3.1),
            option(["disk_restart"], None, "No checkpoint is on disk."),
            option(["morph"], None, "The training program cannot continue at another (dp, pp)."),
        ],
    }  # fmt: skip


def outcome() -> dict[str, Any]:
    """Return an outcome that took a third longer than predicted."""
    return {
        "strategy": "local_slot",
        "predicted_s": 0.8,
        "measured_s": 1.06,
        "error": 0.325,
        "excess_cost_s": 0.47,
    }
