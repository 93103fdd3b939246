"""Everything that is claimed of judging runs, in one table: runs the benches of the parts one after the other.

``python -m bench.detect [--json FILE]``: half an hour. Each part can be run alone (``make bench-hangs``…) and keeps its
own results; a part that cannot run here is a row with the reason. ``bench.judgment`` plays generated runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.report import RESULTS, Row, publish, target_file

PARTS = (
    "detection_delay",  # SIGKILL of ranks, live
    "node_lost",  # SIGKILL of node daemons, live
    "hang_live",  # SIGSTOP of ranks, live
    "hangs",  # who holds up a job, simulated and replayed
    "failslow",  # slow ranks, simulated and replayed
    "comm",  # slow links, simulated
    "numeric_anomalies",  # NaN, spikes, digests, replayed
    "job_pace",  # slowdowns of a whole job, in uneven healthy runs and in published ones
    "machines",  # machines with many signals, replayed
    "detect_engine",  # a tick of 80,000 GPUs against river
    "sdk_overhead",  # what the signals cost a step, live
)
_LIMIT_SECONDS = 900.0


def part(name: str, *arguments: str, limit: float = _LIMIT_SECONDS) -> Iterator[Row]:
    """The rows of one bench, run as a user would within ``limit`` seconds; with ``arguments`` they are not kept."""
    with tempfile.TemporaryDirectory() as place:
        target = Path(place) / "rows.json"
        command = [sys.executable, "-m", f"bench.{name}", "--json", str(target), *arguments]
        try:
            done = subprocess.run(command, check=False, timeout=limit, capture_output=True, text=True)
        except subprocess.TimeoutExpired:
            yield _failed(name, f"did not end within {limit:.0f} s")
            return
        if done.returncode or not target.exists():
            yield _failed(name, (done.stderr.strip().splitlines() or ["no rows"])[-1])
            return
        text = target.read_text()
    if not arguments:
        (RESULTS / f"{name}.json").write_text(text)
    yield from (Row(**row) for row in json.loads(text))


def _failed(name: str, why: str) -> Row:
    return Row(claim=f"bench.{name}", figure=None, unit="", target="runs", holds=False, kind="live", note=why)


def main() -> None:
    """Print the whole table."""
    file = target_file("detect")
    rows: list[Row] = []
    for name in PARTS:
        rows += part(name)
        print(f"bench.{name}: done", flush=True)
    publish("detect", rows, file)


if __name__ == "__main__":
    main()
