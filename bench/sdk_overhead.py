"""What measuring a training run costs it: the same steps with all signals and with none, in turns in the same run.

Two ranks over gloo train the demo's transformer, as replicas and as a pipeline: in steps of the demo's size, and in
steps of the lengths that the targets name (220 and 80 ms), for which the batch is chosen on this machine. Every other
step is measured: wrappers, hooks, records, a launcher's socket that is being read. The one in between runs on a twin
of the model, with the same parameters and no hooks, and without wrappers. Which comes first changes with every pair.

Two methods measure the cost. The SDK counts the wall time that the training thread is inside it, and holds itself to a
hundredth by that (``mainstay.recovery.sdk.measurement_budget``); on a machine with more to do than cores the turns that
others take on the core meanwhile are in it. And the same steps with and without are compared in processor time, which
holds what no clock inside sees, and whose error is as large as the machine is busy: the interval says it.

Then each part alone, in microseconds.
"""

from __future__ import annotations

import os
import random
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch.distributed import HashStore

import mainstay
from bench.lib_job import free_port
from bench.report import Row, publish, target_file
from mainstay.recovery.examples import tiny
from mainstay.recovery.protocol.worker_messages import StepRecord
from mainstay.recovery.sdk import collective_hooks
from mainstay.recovery.sdk import launcher_client as links
from mainstay.recovery.sdk.call_tracker import CallTracker
from mainstay.recovery.sdk.clocks import ThreadClock
from mainstay.recovery.sdk.meter import Sent, StepMeter
from mainstay.recovery.sdk.numerics import gradient_norm, tensors_digest
from mainstay.recovery.sdk.progress import INTERVAL, ProgressThread
from mainstay.recovery.sdk.transfer_timer import TransferTimer

WARM_UP: Final = 10
"""The budget looks at eight steps before it thins anything."""
TARGET: Final = 0.01


class Case(NamedTuple):
    """A job that is measured."""

    name: str
    shape: tuple[int, int]
    """dp, pp"""
    batch: int
    pairs: int


CASES: Final = (
    Case("two replicas", (2, 1), 1, 48),
    Case("a pipeline of two stages", (1, 2), 1, 48),
)
AIMED: Final = ((Case("two replicas", (2, 1), 1, 40), 0.220), (Case("a pipeline of two stages", (1, 2), 1, 48), 0.080))
"""Cases whose steps shall last so many seconds."""


def aimed_at(case: Case, seconds: float) -> Case:
    """``case`` with the batch whose steps last about ``seconds`` here."""
    for _ in range(3):
        pairs = [pair for found, _ in in_turns(case._replace(pairs=16)) for pair in found]
        case = case._replace(batch=max(1, round(case.batch * seconds / usual(pairs)[1])))
    return case


@contextmanager
def launcher() -> Iterator[links.LauncherClient]:
    """A link to a process that reads all that it gets and does nothing with it."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reader = os.fork()
    if reader == 0:
        near.close()
        while far.recv(65536):
            pass
        os._exit(0)
    far.close()
    link = links.LauncherClient(near)
    link.on_orphaned = lambda: None
    yield link
    near.shutdown(socket.SHUT_RDWR)
    os.waitpid(reader, 0)


class Trainer:
    """One rank of the demo's model, and its twin that Mainstay does not watch."""

    def __init__(self, mesh: tiny.PlainMesh, words: list[str]) -> None:
        self.opts = tiny.options(words)
        self.mesh = mesh
        self.watched, self.alone = (tiny.Stage(self.opts, mesh.pp_rank) for _ in range(2))
        for one, other in zip(self.watched.modules(), self.alone.modules(), strict=True):
            other._parameters = one._parameters  # noqa: SLF001 - twins share them
        self.optimizers = [torch.optim.AdamW(self.watched.parameters(), lr=1e-3) for _ in range(2)]
        self.records: list[dict[str, float]] = []
        self.run: Any = mainstay.watch(self.watched, self.optimizers[0], on_record=self._keep)
        self.number = 0

    def _keep(self, record: Sent) -> None:
        if isinstance(record, StepRecord):
            self.records.append(record.signals)

    def step(self, *, watched: bool) -> tuple[float, float]:
        """Processor and wall seconds of one step."""
        self.number += 1
        if watched:
            collective_hooks.install()
            self.run._meter.restart()  # noqa: SLF001 - the step in between is none of this job's
        dist.barrier()
        wall, busy = time.perf_counter(), time.thread_time()
        if watched:
            with self.run.step() as report:
                report(self._train(self.watched, self.optimizers[0]))
        else:
            self._train(self.alone, self.optimizers[1])
        took = time.thread_time() - busy, time.perf_counter() - wall
        collective_hooks.uninstall()
        return took

    def _train(self, stage: tiny.Stage, optimizer: torch.optim.Optimizer) -> torch.Tensor | None:
        return tiny.train_step(self.mesh, stage, optimizer, self.number, self.opts)


def rank_main(rank: int, port: int, case: Case, end: Connection) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "2"}
    dp, pp = case.shape
    with launcher() as link:
        links.install(link)
        words = ["--dp", str(dp), "--pp", str(pp), "--batch", str(case.batch)]
        trainer = Trainer(tiny.PlainMesh(dp, pp), words)
        for _ in range(WARM_UP):
            trainer.step(watched=True)
            trainer.step(watched=False)
        trainer.records.clear()
        found = []
        for pair in range(case.pairs):
            order = (True, False) if pair % 2 else (False, True)
            took = {watched: trainer.step(watched=watched) for watched in order}
            found.append((took[True], took[False]))
        dist.barrier()
    end.send((found, trainer.records))


def in_turns(case: Case) -> list[Any]:
    """Of each rank: its pairs of steps (processor and wall seconds on and off), and its records."""
    port = free_port()
    pids, ends = [], []
    for rank in range(2):
        near, far = Pipe()
        pid = os.fork()
        if pid == 0:
            try:
                rank_main(rank, port, case, far)
            finally:
                os._exit(0)
        pids.append(pid)
        ends.append(near)
    ranks: list[Any] = [end.recv() for end in ends]
    for pid in pids:
        os.waitpid(pid, 0)
    return ranks


def excess(on: list[float], off: list[float]) -> tuple[float, float, float]:
    """Mean of the middle half of on - off, as a share of the usual ``off``; and 95 % of what resampled pairs say.

    The quietest steps would not do: those in which something is thinned out are quieter than others.
    """
    draw = random.Random(0)
    differences, usual = [a - b for a, b in zip(on, off, strict=True)], statistics.median(off)
    found = sorted(_middle(draw.choices(differences, k=len(on))) / usual for _ in range(1000))
    return _middle(differences) / usual, found[25], found[974]


def _middle(values: list[float]) -> float:
    """Mean of the middle half."""
    quarter = len(values) // 4
    return statistics.mean(sorted(values)[quarter : len(values) - quarter])


def counted(records: list[dict[str, float]]) -> float:
    """Mean seconds a step that the SDK counted for itself; of each kind of step the median, as others use the cores."""
    kinds: dict[tuple[bool, bool], list[float]] = {}
    for signals in records:
        kind = ("gradient_norm" in signals, "forward_seconds" in signals)
        kinds.setdefault(kind, []).append(signals["measuring_seconds"])
    return sum(statistics.median(found) * len(found) for found in kinds.values()) / len(records)


def turn_rows(case: Case) -> list[Row]:
    ranks = in_turns(case)
    pairs = [(on, off) for found, _ in ranks for on, off in found]
    busy, low, high = excess([on[0] for on, _ in pairs], [off[0] for _, off in pairs])
    wall, wall_low, wall_high = excess([on[1] for on, _ in pairs], [off[1] for _, off in pairs])
    own, low_own = (max(counted(records) for _, records in ranks) / s for s in usual(pairs))
    every = max(signals["measured_every"] for _, records in ranks for signals in records)
    norms = statistics.mean("gradient_norm" in signals for _, records in ranks for signals in records)
    cpu_ms, wall_ms = (1000 * s for s in usual(pairs))
    name = f"all signals, {case.name}, steps of {wall_ms:.0f} ms"
    thinned = f"norms in {norms:.0%} of the steps" + (f", what is thinned most every {every:.0f}" if every > 1 else "")
    return [
        _turn_row(f"{name}: counted inside the SDK, of the step's wall time", low_own, len(pairs),
                  f"{1000 * low_own * wall_ms:.0f} us of {wall_ms:.1f} ms, others' turns included; {thinned}",
                  holds=True),
        _turn_row(f"{name}: the same of the step's processor time", own, len(pairs), f"of {cpu_ms:.1f} ms"),
        _turn_row(f"{name}: processor time, beside the same step without", busy, len(pairs),
                  f"95 % interval {100 * low:.2f} to {100 * high:.2f} %", holds=True),
        _turn_row(f"{name}: wall time, beside the same step without", wall, len(pairs),
                  f"95 % interval {100 * wall_low:.2f} to {100 * wall_high:.2f} %: other work shares the cores"),
    ]  # fmt: skip


def usual(pairs: list[Any]) -> tuple[float, float]:
    """Processor and wall seconds of a step that is not measured."""
    return statistics.median(off[0] for _, off in pairs), statistics.median(off[1] for _, off in pairs)


def _turn_row(claim: str, share: float, n: int, note: str, *, holds: bool = False) -> Row:
    return Row(
        claim=claim,
        figure=round(100 * share, 2),
        unit="%",
        target="<= 1" if holds else "-",
        holds=share <= TARGET if holds else None,
        kind="live",
        baseline="the same steps, not measured, in turns",
        n=n,
        note=note,
    )


def microseconds(work: Callable[[], object], number: int) -> float:
    """Of processor time, the least of five rounds."""
    rounds = []
    for _ in range(5):
        begun = time.thread_time()
        for _ in range(number):
            work()
        rounds.append(1e6 * (time.thread_time() - begun) / number)
    return min(rounds)


class _NoWork:
    def wait(self) -> bool:
        return True


def hooks_microseconds() -> tuple[float, float]:
    """What hooks add to one forward and one backward pass, and how much of that is torch's own."""
    inputs = torch.zeros(1, 1)
    plain, hooked, empty = (torch.nn.Linear(1, 1) for _ in range(3))
    meter = StepMeter(hooked)
    at_end = Variable._execution_engine.queue_callback  # noqa: SLF001 - as mainstay.recovery.sdk.hooks
    empty.register_forward_pre_hook(lambda *_: None)
    empty.register_forward_hook(lambda _, __, y: y.register_hook(lambda _: at_end(lambda: None)) and None)
    costs = [microseconds(lambda m=m: m(inputs).sum().backward(), 1000) for m in (plain, hooked, empty)]  # type: ignore[misc]
    meter.close()
    return costs[1] - costs[0], costs[2] - costs[0]


def part_rows() -> list[Row]:
    torch.set_num_threads(1)
    clock = ThreadClock()
    bare = CallTracker(clock)
    opts = tiny.options([])
    stage = tiny.Stage(opts, 0)
    tokens = torch.zeros(4, 64, dtype=torch.int64)
    stage(tokens).sum().backward()
    parameters = list(stage.parameters())
    meter = StepMeter(stage)
    near, far = TransferTimer("bench", 1, 0), TransferTimer("bench", 1, 1)

    def call() -> None:
        place: Any = group
        work: Any = bare.issue("allreduce", lambda *_: _NoWork(), place, (), {})
        bare.wait("wait", lambda w: w.wait(), work, (), {})

    def transfer() -> None:
        near.sent(1, 0, 1.0)
        far.received(0, 0, 1.0, 2.0, 8, exact=True)

    def record() -> None:
        meter.begin_step(1)
        meter.end(1, 1, digests=False)
        meter.collect()

    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    group = dist.group.WORLD
    assert group is not None
    bare.enter({"dp": [0, 1], "pp": [0, 1], "world": [0, 1]}, (group,))
    with launcher() as link:
        progress = ProgressThread(link, meter, lambda: (1, 1))
        parts: list[tuple[str, Callable[[], object], int]] = [
            ("reading the thread's own clock", clock.own, 20_000),
            ("counting one call and its wait", call, 5_000),
            ("timing one transfer, both ends together", transfer, 5_000),
            (f"norm of {sum(p.numel() for p in parameters):,} gradients", lambda: gradient_norm(parameters), 200),
            ("digest of as many parameters, every 50th step", lambda: tensors_digest(parameters), 50),
            ("beginning and ending a step, its record made", record, 2_000),
            ("encoding and sending a record", lambda: link.send_if_free(progress.now()), 2_000),
        ]
        costs = [(name, microseconds(work, number), number) for name, work, number in parts]
        progress.stop()
        ours, torchs = hooks_microseconds()
        costs.insert(-1, ("the hooks of one forward and one backward pass", ours, 1000))
        costs.insert(-1, ("torch's part of that, with hooks that do nothing", torchs, 1000))
    dist.destroy_process_group()
    meter.close()
    return [_part_row(*cost) for cost in costs[:-1]] + [_progress_row(*costs[-1][1:])]


def _part_row(name: str, cost: float, n: int) -> Row:
    return Row(
        claim=f"processor for {name}", figure=round(cost, 2), unit="us", target="-", holds=None, kind="live", n=n
    )


def _progress_row(cost: float, n: int) -> Row:
    return Row(
        claim="processor for one message of progress, made, encoded and sent",
        figure=round(cost, 2),
        unit="us",
        target="-",
        holds=None,
        kind="live",
        n=n,
        note=f"two a second: {100 * cost / 1e6 / INTERVAL:.4f} % of a core",
    )


def main() -> None:
    file = target_file("sdk_overhead")
    cases = [*CASES, *(aimed_at(*aim) for aim in AIMED)]
    rows = [row for case in cases for row in turn_rows(case)] + part_rows()
    collective_hooks.uninstall()
    publish("sdk_overhead", rows, file)


if __name__ == "__main__":
    main()
