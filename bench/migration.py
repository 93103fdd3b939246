"""How long training stands still while a rank moves to another node, against state / bandwidth + 1 s.

Each run is a real job of two nodes in a pipeline: the advice to leave node 1 is put down while it trains, a standby on
node 0 takes the rank. The bandwidth is that of one TCP stream over loopback, measured in the same run.

    python -m bench.migration --runs 5
"""

from __future__ import annotations

import argparse
import socket
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

from bench.lib_job import Job
from bench.report import RESULTS, Row, publish
from mainstay.recovery.job_request import JobRequest, RequestKind, write_request

WIDTHS: Final = {"small": "64", "large": "1024"}
"""Of the model: a state of about a MB, and of some 150 MB a rank."""
SLACK_SECONDS: Final = 1.0
_BYTES: Final = 256 * 1024 * 1024


def bandwidth() -> float:
    """Bytes a second of one TCP stream over loopback, user memory to user memory."""
    buffer = bytearray(1 << 20)
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = threading.Thread(target=_send, args=(server.getsockname()[1], bytes(len(buffer))))
        sender.start()
        peer, _ = server.accept()
        got, begun = 0, time.perf_counter()
        with peer:
            while got < _BYTES:
                got += peer.recv_into(buffer)
        sender.join()
    return got / (time.perf_counter() - begun)


def _send(port: int, piece: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port)) as sock:
        for _ in range(_BYTES // len(piece)):
            sock.sendall(piece)


def move(directory: Path, width: str) -> dict[str, Any]:
    """One migration of a living rank: what the coordinator told of it, and the bytes of the rank's state."""
    arguments = ["--steps", "100000", "--width", width, "--batch", "1", "--dp", "1", "--pp", "2", "--layers", "2"]
    job = Job(directory=directory / "job", arguments=arguments, nodes=2, per_node=1, options=["--standbys", "1"])
    with job:
        job.wait_step(5)
        write_request(
            job.directory / "node-0",
            JobRequest(id="away", kind=RequestKind.MIGRATE, node="node-1", reason="a bench"),
        )
        (finished,) = job.until(lambda: job.events("migration_finished"), 120.0, "the end of the migration")
        state = max(job.state()["protection"]["state_bytes"])
        job.wait_step(job.step() + 2)
    return {**finished["data"], "state_bytes": int(state)}


def rows(runs: int = 5) -> list[Row]:
    """Two rows a size of state: seconds stood still, and steps lost."""
    return [row for name in WIDTHS for row in _measured(name, runs)]


def _measured(name: str, runs: int) -> list[Row]:
    told = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory(prefix="mainstay-migration-") as directory:
            told.append({**move(Path(directory), WIDTHS[name]), "bandwidth": bandwidth()})
    moved = [one for one in told if one["ok"]]
    size = told[0]["state_bytes"]
    limit = size / statistics.median(one["bandwidth"] for one in told) + SLACK_SECONDS
    what = f"a living rank with {size / 1e6:.0f} MB of state moves to another node"
    if not moved:
        return [_row(what, None, "s", f"<= {limit:.2f}", holds=False, n=runs, note=str(told[0])[:200])]
    # The first new step is training again, at the time that a step takes.
    still = [float(one["phases"]["total"]) - float(one["phases"]["first_step"]) for one in moved]
    first = statistics.median(float(one["phases"]["first_step"]) for one in moved)
    worst, middle = max(still), statistics.median(still)
    lost = max(int(one["steps_lost"]) for one in moved)
    failed = f"; {runs - len(moved)} of {runs} did not move" if len(moved) < runs else ""
    note = f"median {middle:.2f} s; the first new step took {first:.2f} s more{failed}"
    return [
        _row(f"{what}: training stands still, the longest", worst, "s", f"<= state/bandwidth + 1 s = {limit:.2f}",
             holds=worst <= limit and not failed, n=len(moved), note=note),
        _row(f"{what}: steps lost, at most", lost, "steps", "<= 1", holds=lost <= 1, n=len(moved)),
    ]  # fmt: skip


def _row(claim: str, figure: float | None, unit: str, target: str, *, holds: bool, n: int, note: str = "") -> Row:
    baseline = "one TCP stream over loopback in the same run"
    return Row(
        claim=claim, figure=figure, unit=unit, target=target, holds=holds, kind="live", baseline=baseline, n=n,
        note=note,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=RESULTS / "migration.json", metavar="FILE")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one run of each size")
    given = parser.parse_args()
    publish("migration", rows(1 if given.quick else given.runs), given.json)


if __name__ == "__main__":
    main()
