"""What measuring a training run costs it: the same steps with all signals and with none, in turns in the same run.

Two ranks over gloo train the demo's transformer, as replicas and as a pipeline. Every other step is measured: wrappers,
hooks, records, a launcher's socket that is being read. The one in between runs on a twin of the model, with the same
parameters and no hooks, and without wrappers. Which comes first changes with every pair. The machine's other work
disturbs wall time by tens of percent, so the claim is held against processor time of the training thread, where all of
it happens but two messages of progress a second; wall time stands beside it. Of both, the quietest tenth is compared.

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
from typing import Any, Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

import mainstay
from bench.lib_job import free_port
from bench.report import Row, publish, target_file
from recovery.examples import tiny
from recovery.sdk import link as links
from recovery.sdk import wrappers
from recovery.sdk.clocks import ThreadClock
from recovery.sdk.links import Links
from recovery.sdk.meter import StepMeter
from recovery.sdk.progress import INTERVAL, ProgressThread
from recovery.sdk.traffic import Traffic
from recovery.sdk.values import gradient_norm, tensors_digest

PAIRS: Final = 80
"""How well the median of so many pairs is known depends on what else the machine does; the rows say it."""
WARM_UP: Final = 6
TARGET: Final = 0.01


@contextmanager
def launcher() -> Iterator[links.Link]:
    """A link to a process that reads all that it gets and does nothing with it."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reader = os.fork()
    if reader == 0:
        near.close()
        while far.recv(65536):
            pass
        os._exit(0)
    far.close()
    link = links.Link(near)
    link.on_orphaned = lambda: None
    yield link
    near.shutdown(socket.SHUT_RDWR)
    os.waitpid(reader, 0)


class Trainer:
    """One rank of the demo's model, and its twin that nobody watches."""

    def __init__(self, mesh: tiny.PlainMesh, words: list[str]) -> None:
        self.opts = tiny.options(words)
        self.mesh = mesh
        self.watched, self.alone = (tiny.Stage(self.opts, mesh.pp_rank) for _ in range(2))
        for one, other in zip(self.watched.modules(), self.alone.modules(), strict=True):
            other._parameters = one._parameters  # noqa: SLF001 - twins share them
        self.optimizers = [torch.optim.AdamW(self.watched.parameters(), lr=1e-3) for _ in range(2)]
        self.run = mainstay.watch(self.watched, self.optimizers[0])
        self.number = 0

    def step(self, *, watched: bool) -> tuple[float, float]:
        """Processor and wall seconds of one step."""
        self.number += 1
        if watched:
            wrappers.install()
        dist.barrier()
        wall, busy = time.perf_counter(), time.thread_time()
        if watched:
            with self.run.step() as report:
                report(self._train(self.watched, self.optimizers[0]))
        else:
            self._train(self.alone, self.optimizers[1])
        took = time.thread_time() - busy, time.perf_counter() - wall
        wrappers.uninstall()
        return took

    def _train(self, stage: tiny.Stage, optimizer: torch.optim.Optimizer) -> torch.Tensor | None:
        return tiny.train_step(self.mesh, stage, optimizer, self.number, self.opts)


def rank_main(rank: int, port: int, shape: tuple[int, int], end: Connection) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "2"}
    dp, pp = shape
    with launcher() as link:
        links.install(link)
        trainer = Trainer(tiny.PlainMesh(dp, pp), ["--dp", str(dp), "--pp", str(pp)])
        for _ in range(WARM_UP):
            trainer.step(watched=True)
            trainer.step(watched=False)
        found = []
        for pair in range(PAIRS):
            order = (True, False) if pair % 2 else (False, True)
            took = {watched: trainer.step(watched=watched) for watched in order}
            found.append((took[True], took[False]))
        dist.barrier()
    end.send(found)


def in_turns(shape: tuple[int, int]) -> list[tuple[float, float, float, float]]:
    """Of each pair of steps, over both ranks: processor seconds on and off, wall seconds on and off."""
    port = free_port()
    pids, ends = [], []
    for rank in range(2):
        near, far = Pipe()
        pid = os.fork()
        if pid == 0:
            try:
                rank_main(rank, port, shape, far)
            finally:
                os._exit(0)
        pids.append(pid)
        ends.append(near)
    ranks: list[Any] = [end.recv() for end in ends]
    for pid in pids:
        os.waitpid(pid, 0)
    return [
        (on[0][0] + on2[0][0], on[1][0] + on2[1][0], max(on[0][1], on2[0][1]), max(on[1][1], on2[1][1]))
        for on, on2 in zip(*ranks, strict=True)
    ]


def excess(on: list[float], off: list[float]) -> tuple[float, float, float]:
    """By how much the quietest tenth of ``on`` exceeds that of ``off``, and 95 % of what resampled pairs say.

    Neighbours only ever lengthen a step, so the quiet ones are the ones to compare.
    """
    draw = random.Random(0)
    places = range(len(on))
    found = sorted(_excess(on, off, draw.choices(places, k=len(on))) for _ in range(1000))
    return _excess(on, off, list(places)), found[25], found[974]


def _excess(on: list[float], off: list[float], places: list[int]) -> float:
    return _quiet([on[place] for place in places]) / _quiet([off[place] for place in places]) - 1.0


def _quiet(values: list[float]) -> float:
    return statistics.quantiles(values, n=10)[0]


def turn_rows(name: str, shape: tuple[int, int]) -> list[Row]:
    pairs = in_turns(shape)
    on, off, wall_on, wall_off = (list(column) for column in zip(*pairs, strict=True))
    busy, low, high = excess(on, off)
    wall, wall_low, wall_high = excess(wall_on, wall_off)
    step = _quiet(off) / 2
    added = 1e6 * busy * step
    note = (
        f"95 % interval {100 * low:.2f} to {100 * high:.2f} %; {added:.0f} us of {1000 * step:.1f} ms a rank and step"
    )
    return [
        Row(
            claim=f"all signals, {name}: processor time of a step beside the same step without",
            figure=round(100 * busy, 2),
            unit="%",
            target="<= 1",
            holds=busy <= TARGET,
            kind="live",
            baseline="the same steps, not measured, in turns",
            n=len(pairs),
            note=note,
        ),
        Row(
            claim=f"all signals, {name}: wall time of a step beside the same step without",
            figure=round(100 * wall, 2),
            unit="%",
            target="-",
            holds=None,
            kind="live",
            baseline="the same steps, not measured, in turns",
            n=len(pairs),
            note=f"95 % interval {100 * wall_low:.2f} to {100 * wall_high:.2f} %: other work shares the cores",
        ),
    ]


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


def hooks_microseconds() -> float:
    """What hooks add to one forward and one backward pass."""
    inputs = torch.zeros(1, 1)
    plain, hooked = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    meter = StepMeter(hooked)
    with_hooks = microseconds(lambda: hooked(inputs).sum().backward(), 1000)
    without = microseconds(lambda: plain(inputs).sum().backward(), 1000)
    meter.close()
    return with_hooks - without


def part_rows() -> list[Row]:
    torch.set_num_threads(1)
    clock = ThreadClock()
    bare = Traffic(clock)
    opts = tiny.options([])
    stage = tiny.Stage(opts, 0)
    tokens = torch.zeros(4, 64, dtype=torch.int64)
    stage(tokens).sum().backward()
    parameters = list(stage.parameters())
    meter = StepMeter(stage)
    near, far = Links("bench", 1, 0), Links("bench", 1, 1)

    def call() -> None:
        place: Any = group
        work: Any = bare.issue("allreduce", lambda *_: _NoWork(), place, (), {})
        bare.wait(lambda w: w.wait(), work, (), {})

    def transfer() -> None:
        near.sent(1, 0, 1.0)
        far.received(0, 0, 1.0, 2.0, 8, exact=True)

    def record() -> None:
        meter.begin(1)
        meter.end(1, 1, digests=False)
        meter.take()

    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    group = dist.group.WORLD
    assert group is not None
    bare.enter(0, {"dp": [0, 1], "pp": [0, 1], "world": [0, 1]}, (group,))
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
        costs.insert(-1, ("the hooks of one forward and one backward pass", hooks_microseconds(), 1000))
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
    rows = [*turn_rows("two replicas", (2, 1)), *turn_rows("a pipeline of two stages", (1, 2)), *part_rows()]
    wrappers.uninstall()
    publish("sdk_overhead", rows, file)


if __name__ == "__main__":
    main()
