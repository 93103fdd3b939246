"""Every figure that node health promises, in one table: live, replayed and simulated. See ``lib_health_*.py``.

``python -m bench.health [--json FILE]``; ``MAINSTAY_BENCH_GPUS`` and ``MAINSTAY_BENCH_HOURS`` make the simulated fleet
smaller than 10,000 GPUs for 24 h. About a quarter of an hour on two cores, most of it the simulated day.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench import lib_health_kernel, lib_health_live, lib_health_scenarios, lib_healthy_fleet
from bench.report import Row, publish, target_file

_ROOT = Path(__file__).resolve().parents[1]


def other(name: str, *claims: str) -> list[Row]:
    """Rows of another bench, run as a process of its own, whose claim begins with one of ``claims``."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "rows.json"
        command = [sys.executable, "-m", f"bench.{name}", "--json", str(file)]
        subprocess.run(command, cwd=_ROOT, check=True, stdout=subprocess.DEVNULL)
        rows = [Row(**row) for row in json.loads(file.read_text())]
    return [row for row in rows if row.claim.startswith(claims)]


def measure() -> list[Row]:
    gpus = int(os.environ.get("MAINSTAY_BENCH_GPUS", "10000"))
    hours = float(os.environ.get("MAINSTAY_BENCH_HOURS", "24"))
    rows = lib_health_live.rows()
    rows += other("sampler_cost", "processor of the sampler", "XID in the driver")
    rows += other("node_daemon", "memory of", "processor of")
    rows += lib_health_kernel.rows()
    rows += lib_health_scenarios.rows()
    return rows + lib_healthy_fleet.rows(gpus, hours, os.cpu_count() or 1)


if __name__ == "__main__":
    file = target_file("health")
    publish("health", measure(), file)
