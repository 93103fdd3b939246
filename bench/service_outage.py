"""The service stops for a minute while it ingests and while a job trains: what is lost, and does training continue?

SIGKILL of the service, one rank killed meanwhile, then a restart. Live on this machine.
``python -m bench.service_outage [--json FILE]``
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.report import Row, publish, target_file
from mainstay.service.demo.client import Json
from mainstay.service.demo.stack import JOB, NODES, Stack, free_port
from mainstay.service.telemetry.blocks import BlockKind, StoredBlock
from mainstay.service.telemetry.blocks_sqlite import SqliteBlockStore

AWAY_SECONDS = 60.0
STEPS = 100_000
"""More than fits; the job is ended when everything was seen."""
PROBE = "probe-1"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was seen."""

    steps_meanwhile: int
    recovered_meanwhile: bool
    recovered_s: float
    incident_time_error_s: float
    """How far the time of the loss on the incident, which was opened afterwards, is from the true one."""
    frames: int
    missing: int
    double: int


def events(stack: Stack) -> list[Json]:
    """What the coordinator recorded without the service."""
    file = stack.directory / f"run-{NODES[0]}" / "events.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")] if file.exists() else []


def blocks(data_dir: Path, subject: str, kind: BlockKind) -> list[StoredBlock]:
    """Everything that is stored of a subject."""
    store = SqliteBlockStore(data_dir / "blocks")
    try:
        return list(store.read(0.0, time.time() + 60.0, subject=subject, kinds=[kind]))
    finally:
        store.close()


def sequences(stored: list[StoredBlock]) -> Counter[tuple[str, int]]:
    """How often each (stream, sequence) is stored."""
    return Counter((block.stream, block.sequence) for block in stored)


def holes(stored: Counter[tuple[str, int]]) -> int:
    """Sequence numbers missing between the first and the last of each stream."""
    missing = 0
    for stream in {stream for stream, _ in stored}:
        numbers = [number for name, number in stored if name == stream]
        missing += max(numbers) - min(numbers) + 1 - len(set(numbers))
    return missing


def last_step(stack: Stack) -> int:
    jobs = {job["id"]: job for job in stack.api.get("/jobs")["items"]}
    return int((jobs.get(JOB) or {}).get("last_step") or 0)


def play(
    directory: Path, away: float, make: Callable[[Path, int, Mapping[str, str]], Stack] = Stack, step_ms: int = 50
) -> Outcome:
    """The whole story; ``away`` seconds without a service."""
    # The job trains until it is stopped: it need not take all cores meanwhile.
    stack = make(directory, free_port(), {"MAINSTAY_EXAMPLE_FAULTS": f"sleep:rank=0,step=0,ms={step_ms}"})
    try:
        stack.start_service()
        stack.start_node(PROBE)
        stack.start_job(steps=STEPS, seed=3, save=directory / "job")
        stack.until(lambda: last_step(stack) >= 10, 120.0, "ten steps")
        before, ranks = last_step(stack), stack.api.get(f"/jobs/{JOB}")["topology"]["ranks"]
        stack.children.running["service"].send_signal(signal.SIGKILL)
        stack.children.running["service"].wait(10.0)
        gone_at = time.monotonic()
        killed_at = time.time()
        os.kill(ranks[2]["pid"], signal.SIGKILL)
        stack.until(lambda: _of(stack, "recovery_verified") is not None, 60.0, "a recovery without the service")
        time.sleep(max(0.0, away - (time.monotonic() - gone_at)))
        stack.start_service()
        recovered = _of(stack, "recovery_completed")
        assert recovered is not None
        stack.until(lambda: bool(stack.api.get("/incidents", job=JOB)["items"]), 60.0, "the incident, afterwards")
        incident = stack.api.get(f"/incidents/{stack.api.get('/incidents', job=JOB)['items'][0]['id']}")
        back_at = time.time()
        for subject, kind in ((PROBE, BlockKind.TIME), (JOB, BlockKind.STEP)):
            stack.until(lambda s=subject, k=kind: _caught_up(stack, s, k, back_at), 60.0, f"the frames of {subject}")  # type: ignore[misc]
        stack.until(lambda: last_step(stack) > before, 60.0, "the job to report again")
        meanwhile = last_step(stack) - before
    finally:
        stack.close()
    return _outcome(stack, meanwhile, recovered["time"] - killed_at, incident["findings"][0]["time"] - killed_at)


def _of(stack: Stack, kind: str) -> Json | None:
    return next((e for e in events(stack) if e["kind"] == kind), None)


def _caught_up(stack: Stack, subject: str, kind: BlockKind, back_at: float) -> bool:
    """Frames are sent in order, so one measured after the return says that all before it were delivered or lost."""
    return any(block.stop > back_at for block in blocks(stack.data_dir, subject, kind))


def _outcome(stack: Stack, steps: int, recovered_s: float, time_error_s: float) -> Outcome:
    stored = sequences(blocks(stack.data_dir, PROBE, BlockKind.TIME) + blocks(stack.data_dir, JOB, BlockKind.STEP))
    return Outcome(
        steps_meanwhile=steps,
        recovered_meanwhile=True,
        recovered_s=recovered_s,
        incident_time_error_s=time_error_s,
        frames=len(stored),
        missing=holes(stored),
        double=sum(count - 1 for count in stored.values()),
    )


def main() -> None:
    file = target_file("service_outage")
    with tempfile.TemporaryDirectory(prefix="mainstay-bench-") as directory:
        seen = play(Path(directory), AWAY_SECONDS)
    rows = [
        Row(claim=f"frames missing after {AWAY_SECONDS:.0f} s without the service", figure=seen.missing, unit="frames",
            target="0", holds=seen.missing == 0, kind="live", n=seen.frames),
        Row(claim="frames stored twice", figure=seen.double, unit="frames", target="0", holds=seen.double == 0,
            kind="live", n=seen.frames),
        Row(claim="steps committed while the service was away", figure=seen.steps_meanwhile, unit="steps",
            target="> 0", holds=seen.steps_meanwhile > 0, kind="live"),
        Row(claim="SIGKILL of a rank → next step, service away", figure=seen.recovered_s, unit="s", target="<= 3",
            holds=seen.recovered_s <= 3, kind="live"),
        Row(claim="the incident opened afterwards tells the true time of the loss, error", unit="s", target="<= 1",
            figure=seen.incident_time_error_s, holds=abs(seen.incident_time_error_s) <= 1, kind="live"),
    ]  # fmt: skip
    publish("service_outage", rows, file)


if __name__ == "__main__":
    main()
