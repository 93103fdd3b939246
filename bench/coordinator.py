"""Processor time of a coordinator for the step record of one rank, in a job of few and of many ranks, and for a plan.

``python -m bench.coordinator [--json FILE]``. A real coordinator in this process gets the records of every rank for
some steps; nothing is sent, and no service is there. If a record costs more the more ranks a job has, a step costs the
square of their number: so the limit is a ratio, not a number of microseconds. Then the job is fenced, and the
coordinator plans the loss of a rank from what all agents and ranks have reported.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.report import Row, publish, target_file
from mainstay.recovery.agent.messages import Inventory, SlotInfo, TransferRates
from mainstay.recovery.checkpoint.listed_files import PartFile
from mainstay.recovery.controller.coordinator import Coordinator
from mainstay.recovery.controller.event_recording import EventRecorder
from mainstay.recovery.controller.launcher_connection import LauncherConnection
from mainstay.recovery.controller.state.events import (
    LauncherMessageReceived,
    NodeJoined,
    RankMessageReceived,
    RanksAssigned,
)
from mainstay.recovery.options import parse
from mainstay.recovery.planner import plan_recovery
from mainstay.recovery.protocol.messages import Fenced, FromRank, LauncherHello, WorkerUp
from mainstay.recovery.protocol.worker_messages import Attached, Joined, Ready, Resumed, StepRecord

NAME: Final = "coordinator"
FEW, MANY, PER_NODE = 64, 16_384, 8
STEPS: Final = 5
STEP, LOSSES, PLAN_MS = 41, 16, 20.0
PP, TP = 16, 8
START: Final = 512
GROWTH: Final = 2.0
"""Times that a record may cost more among many ranks: their tables do not fit the processor's caches."""


class NoReporter:
    """In the place of ``Reporter``: the reporter has a thread of its own, which does not count."""

    def __getattr__(self, _: str) -> Any:
        return lambda *_, **__: None


def make_coordinator(ranks: int) -> Coordinator:
    """A coordinator of a job that has just begun, all of whose ranks have a process."""
    alone = parse(["--nproc-per-node", str(PER_NODE), "--node-name", "node-0", "--job-id", "job", "-m", "train"])
    options = replace(alone, nnodes=ranks // PER_NODE)
    made = Coordinator(options, NoReporter())  # type: ignore[arg-type]
    for number in range(options.nnodes):
        hello = LauncherHello(
            job="job", node=f"node-{number}", node_rank=number, nnodes=options.nnodes, nproc=PER_NODE,
            spares=0, standbys=0, pid=1, agent_endpoint="",
        )  # fmt: skip
        made.job.connections[hello.node] = LauncherConnection(None, 0.0)  # nothing is sent
        made.job.apply(NodeJoined(hello=hello))
    made.job.apply(RanksAssigned(homes=made.job.members.homes(ranks), started_at=time.time()))
    for rank in range(ranks):
        up = WorkerUp(rank=rank, pid=1000 + rank)
        made.job.apply(LauncherMessageReceived(node=f"node-{rank // PER_NODE}", message=up))
    return made


async def microseconds(coordinator: Coordinator) -> float:
    """Processor time of one step record; the smallest of ``STEPS`` steps."""
    ranks, best = len(coordinator.job.members.ranks), float("inf")
    nodes = list(coordinator.job.members.nodes.values())
    for epoch in range(1, STEPS + 1):
        records = [
            FromRank(
                rank=rank, pid=1000 + rank,
                message=StepRecord(
                    generation=1, epoch=epoch, step_time=1.0, compute_time=0.9, snapshot_blocked=0.0, end_ns=1
                ),
            )
            for rank in range(ranks)
        ]  # fmt: skip
        begun = time.process_time()
        for record in records:
            await coordinator.handle_message(nodes[record.rank // PER_NODE], record)
        best = min(best, time.process_time() - begun)
    return best / ranks * 1e6


async def formation_microseconds(ranks: int) -> float:
    """Processor time for each rank from its process to its first step, which says that replicas are equal."""
    coordinator = make_coordinator(ranks)
    nodes, generation = list(coordinator.job.members.nodes.values()), coordinator.job.state.generation
    rounds: list[Any] = [
        Joined(generation=generation, dp=ranks // (PP * TP), pp=PP, tp=TP),
        Attached(state_bytes=10**10, slots=2, protected=True),
        Resumed(generation=generation, epoch=0, source=None, seconds=0.0, nbytes=0, ok=True),
        StepRecord(
            generation=generation, epoch=1, step_time=1.0, compute_time=0.9, snapshot_blocked=0.0, end_ns=1, digest=7,
            buffers=7,
        ),
    ]  # fmt: skip
    begun = time.process_time()
    for rank in range(ranks):
        await coordinator.handle_message(nodes[rank // PER_NODE], WorkerUp(rank=rank, pid=1000 + rank))
    for message in rounds:
        for rank in range(ranks):
            said = FromRank(rank=rank, pid=1000 + rank, message=message)
            await coordinator.handle_message(nodes[rank // PER_NODE], said)
    assert coordinator.job.state.formed_once
    assert coordinator.job.state.replicated
    seconds = time.process_time() - begun
    await coordinator.close()
    return seconds / ranks * 1e6


async def measure() -> tuple[float, float, float]:
    """Microseconds of a record among few ranks, among many, and among many with a recording."""
    few, many = [await microseconds(make_coordinator(ranks)) for ranks in (FEW, MANY)]
    recorded = make_coordinator(MANY)
    with tempfile.TemporaryDirectory(prefix="mainstay-bench-") as directory:
        recorder = EventRecorder(Path(directory), recorded.job.options, 1, recorded.job.state)
        recorded.job.record = recorder.record
        with_recording = await microseconds(recorded)
        recorder.close()
    return few, many, with_recording


def fence(coordinator: Coordinator, *, disks: bool) -> None:
    """Every rank holds the step in its tensors, every agent its ranks' snapshots; ``disks``: an older step too."""
    job, now = coordinator.job, time.time()
    ranks, generation = len(job.members.ranks), job.state.generation
    for rank in range(ranks):
        messages = (
            Joined(generation=generation, dp=ranks // (PP * TP), pp=PP, tp=TP),
            Attached(state_bytes=10**10, slots=2, protected=True),
            Resumed(generation=generation, epoch=STEP, source=None, seconds=0.1, nbytes=0, ok=True),
            Ready(generation=generation, live_epoch=STEP, newest_epoch=STEP),
        )
        for message in messages:
            job.apply(RankMessageReceived(rank=rank, message=message, at=now))
    for number, node in enumerate(job.members.nodes):
        here = range(number * PER_NODE, (number + 1) * PER_NODE)
        slots = tuple(
            SlotInfo(rank=rank, epoch=STEP, generation=generation, nbytes=10**10, verified=True) for rank in here
        )
        files = [PartFile(rank=rank, epoch=STEP - 1, nbytes=10**10, generation=generation) for rank in here]
        disk = tuple(files if disks else ())
        held = Inventory(node=node, slots=slots, parity=(), disk=disk, rates=TransferRates(), degraded=())
        job.apply(LauncherMessageReceived(node=node, message=Fenced(generation=generation + 1, inventory=held)))


async def plan_milliseconds(*, disks: bool) -> tuple[float, float]:
    """Medians over lost ranks: to collect what is known into the planner's input, and to plan."""
    coordinator = make_coordinator(MANY)
    fence(coordinator, disks=disks)
    took: list[tuple[float, float]] = []
    for rank in range(0, MANY, MANY // LOSSES):
        begun = time.process_time()
        situation = coordinator.inputs.situation({rank})
        collected = time.process_time()
        plan_recovery(situation)
        took.append((collected - begun, time.process_time() - collected))
    collect, plan = (median(seconds) * 1e3 for seconds in zip(*took, strict=True))
    return collect, plan


def plan_row(held: str, *, disks: bool) -> Row:
    collect, plan = asyncio.run(plan_milliseconds(disks=disks))
    return Row(
        claim=f"processor time from fenced to the plan of a rank's loss, {MANY:,} ranks, {held}",
        figure=collect + plan,
        unit="ms",
        target=f"<= {PLAN_MS:g}",
        holds=collect + plan <= PLAN_MS,
        kind="live",
        n=LOSSES,
        note=f"medians: {collect:.1f} ms to collect what agents and ranks reported, {plan:.1f} ms to plan",
    )


def main() -> None:
    few, many, recorded = asyncio.run(measure())
    few_start, start = (asyncio.run(formation_microseconds(ranks)) for ranks in (START, MANY))
    rows = [
        Row(
            claim=f"processor time of a step record among {MANY:,} ranks",
            figure=many,
            unit="µs",
            target=f"<= {GROWTH:g} times that among {FEW}",
            holds=many <= GROWTH * few,
            kind="live",
            baseline=f"{few:.1f} µs among {FEW} ranks",
            n=STEPS,
            note=f"{many * MANY / 1e6:.3f} s of processor time for one step of all ranks",
        ),
        Row(
            claim="the same with --record-events",
            figure=recorded,
            unit="µs",
            target="",
            holds=None,
            kind="live",
            baseline=f"{many:.1f} µs without",
            n=STEPS,
        ),
        Row(
            claim=f"processor time of a rank's start, from its process to its first step, among {MANY:,} ranks",
            figure=start,
            unit="µs",
            target=f"<= {GROWTH:g} times that among {START}",
            holds=start <= GROWTH * few_start,
            kind="live",
            baseline=f"{few_start:.0f} µs among {START} ranks",
            n=MANY,
            note=f"{start * MANY / 1e6:.1f} s of processor time until all ranks have made the first step",
        ),
        plan_row("snapshots in memory", disks=False),
        plan_row("the same, and a checkpoint of each rank on its node's disk", disks=True),
    ]
    publish(NAME, rows, target_file(NAME))


if __name__ == "__main__":
    main()
