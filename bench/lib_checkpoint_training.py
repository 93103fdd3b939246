"""What a training job feels of its checkpoints: a job under ``mainstay run``, and a loop that leaves them no time."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from bench.lib_checkpoint_node import Node, seconds
from bench.lib_device import dd_rate
from bench.lib_job import Job
from bench.report import Row
from mainstay.recovery.checkpoint.writer import NICE
from mainstay.recovery.controller.event_recording import read_recording
from mainstay.recovery.controller.state.events import RankMessageReceived
from mainstay.recovery.protocol.worker_messages import StepRecord

STEPS = 10
"""Between a checkpoint and the next, and as many without one."""
PAIRS, ROUNDS = 20, 40
BLOCKED = 0.005
"""Seconds that a trainer may wait for a snapshot."""
LONGER = 0.02
MIB = 1024 * 1024


def in_a_job(memory: Path, disk: Path, nbytes: int, pairs: int = PAIRS) -> list[Row]:
    """A transformer of one rank: the ten steps that begin with each write, against the ten before and after them."""
    width = max(64, int((nbytes / 12 / 48) ** 0.5) // 64 * 64)  # AdamW: three values of four bytes a parameter
    words = ["--dp", "1", "--pp", "1", "--layers", "4", "--width", str(width), "--batch", "2"]
    steps = 2 * STEPS * (pairs + 1)
    job = Job(
        directory=memory / "job", nodes=1, per_node=1, arguments=[*words, "--steps", str(steps)],
        options=[
            "--checkpoint-dir", str(disk / "checkpoints"), "--checkpoint-interval", str(2 * STEPS),
            "--protection", "none", "--record-events", str(memory / "events"),
        ],
        environment={"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    with job:
        job.wait(3600.0)
    records = _records(next((memory / "events").iterdir()))
    state = sum(part.stat().st_size for part in max((disk / "checkpoints").glob("*/step-*")).iterdir())
    beside, without = [], []
    for first in range(2 * STEPS, steps, 2 * STEPS):  # whose write begins when it is committed
        beside.append([records[first + 1 + i] for i in range(STEPS)])
        without.append([records[first + 1 + STEPS + i] for i in range(STEPS)])
    return _rows_of_job(beside, without, state)


def _records(recording: Path) -> dict[int, StepRecord]:
    """Committed steps by number."""
    found = {}
    for recorded in read_recording(recording)[1]:
        if isinstance(recorded.event, RankMessageReceived) and isinstance(recorded.event.message, StepRecord):
            found[recorded.event.message.epoch] = recorded.event.message
    return found


def _rows_of_job(
    beside: Sequence[Sequence[StepRecord]], without: Sequence[Sequence[StepRecord]], state: int
) -> list[Row]:
    took = [[sum(step.step_time for step in steps) for steps in every] for every in (beside, without)]
    longer = [2.0 * took[0][i] / (took[1][i - 1] + took[1][i]) - 1.0 for i in range(1, len(beside))]
    noise = statistics.median(abs(a - b) / min(a, b) for a, b in zip(took[1], took[1][1:], strict=False))
    step = statistics.median(took[1]) / STEPS
    figure = statistics.median(longer)
    blocked = [[step.snapshot_blocked for steps in every for step in steps] for every in (beside, without)]
    where = f"a step of {1000 * step:.0f} ms, {state / MIB:.0f} MiB written each {2 * STEPS} of them, one thread"
    return [
        Row(
            claim="ten steps of a job that begin with a checkpoint", figure=round(100 * figure, 1), unit="% longer",
            target=f"<= {100 * LONGER:g}", holds=figure <= LONGER, kind="live", n=len(longer),
            baseline="the ten steps before and after them, without one",
            note=f"{where}; median; two tens without differ by {100 * noise:.1f} %",
        ),
        Row(
            claim="longest wait of the trainer for a snapshot, beside a write", figure=round(1000 * max(blocked[0]), 2),
            unit="ms", target=f"<= {1000 * BLOCKED:g}", holds=max(blocked[0]) <= BLOCKED, kind="live",
            n=len(blocked[0]), baseline=f"{1000 * max(blocked[1]):.2f} ms in steps without a write",
            note=f"{where}; median {1000 * statistics.median(blocked[0]):.2f} ms",
        ),
    ]  # fmt: skip


def in_a_loop(memory: Path, disk: Path, nbytes: int) -> list[Row]:
    """Products of matrices with one thread: ten "steps" with a checkpoint, with ``dd``, and twice ten without, in turn.

    A checkpoint lasts half as long as its ten steps, so the device is busy half of the time.
    """
    node = Node(memory, disk, nbytes)
    for _ in (True, False):
        node.clear()
        node.write()
    torch.set_num_threads(1)
    a = torch.randn(700, 700)

    def steps() -> float:
        return seconds(lambda: [a @ a for _ in range(8 * STEPS)])

    def beside(write: Callable[[], object]) -> float:
        node.clear()
        thread = threading.Thread(target=write)
        thread.start()
        found = steps()
        thread.join()
        return found

    def copy() -> None:
        dd_rate(disk / "device-test", nbytes, nice=NICE)

    longer, least, noise, plain = [], [], [], []
    for number in range(ROUNDS):
        first = steps()
        writers = (node.write, copy) if number % 2 else (copy, node.write)
        took = {write: beside(write) for write in writers}
        second = steps()
        plain += [first, second]
        longer.append(2 * took[node.write] / (first + second) - 1.0)
        least.append(2 * took[copy] / (first + second) - 1.0)
        noise.append(abs(first - second) / min(first, second))
    node.writer.stop()
    figure = statistics.median(longer)
    return [
        Row(
            claim="a loop of products beside a checkpoint each 0.5 s", figure=round(100 * figure, 1), unit="% longer",
            target=f"<= {100 * LONGER:g}", holds=figure <= LONGER, kind="live", n=ROUNDS,
            baseline=f"{1000 * statistics.median(plain) / STEPS:.0f} ms a step without; "
            f"{100 * statistics.median(least):.1f} % longer beside dd that writes as many zeros",
            note=f"{nbytes / 2**30:g} GiB each time, one computing thread; median of rounds; "
            f"two times without differ by {100 * statistics.median(noise):.1f} %",
        )
    ]  # fmt: skip
