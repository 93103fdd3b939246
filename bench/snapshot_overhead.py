"""What one snapshot an iteration costs, beside other ways to save each iteration: blocks in turns, in one process.

A transformer with AdamW trains in iterations of 200 ms and more. In each round every way of saving has an iteration,
in an order that is drawn again, so that other load on the machine meets all of them alike: adjacent rounds are
compared. A save that began at the end of the iteration before runs beside the timed one, as in a steady run. The
overhead is the difference from the iteration without saving in the same round, as a share of it: the mean without the
lowest and highest fifth of the rounds (another user of a shared machine that takes a core for a second is in one of
them), and its 95 % interval from resampling rounds.
All of them write into memory (/dev/shm), so that no disk is compared.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from torch.distributed import HashStore

from bench.lib_baselines import DcpAsync, Mainstay, Nothing, Saver, SingleBuffer, TorchSave
from bench.report import RESULTS, Row, publish
from bench.snapshot_path import agents
from mainstay.recovery.agent.client import AgentClient
from mainstay.recovery.examples import tiny
from mainstay.recovery.memory.slot_copy import COPY_ENVIRONMENT

SEED: Final = 9
ITERATION: Final = 0.2
"""Seconds at least."""
ROUNDS: Final = 150
TRIMMED: Final = 0.2
"""Of the rounds at either end."""
TARGET: Final = 0.01
WIDTH: Final = 256
LAYERS: Final = 6
MIB: Final = 1024 * 1024


class Trainer:
    """Forward, backward, update; as many micro-batches as make an iteration last."""

    def __init__(self, place: Path, nodes: Sequence[AgentClient]) -> None:
        words = ["--dp", "1", "--pp", "1", "--width", str(WIDTH), "--layers", str(LAYERS), "--batch", "4"]
        self.opts = tiny.options(words)
        self.model = tiny.Stage(self.opts, 0)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.micro_batches, self.number = 1, 0
        self.iterate(Nothing())
        mine = Mainstay(nodes[:1], self.model, self.optimizer)
        self.state_bytes = mine.nbytes
        self.savers: dict[str, Saver] = {
            "none": Nothing(),
            "mainstay": mine,
            "two copies": Mainstay(nodes[1:], self.model, self.optimizer),
            "single buffer": SingleBuffer(place, self.model, self.optimizer),
            "torch.save": TorchSave(place, self.model, self.optimizer),
            "dcp.async_save": DcpAsync(place, self.model, self.optimizer),
        }

    def iterate(self, saver: Saver) -> None:
        self.number += 1
        self.optimizer.zero_grad()
        for number in range(self.micro_batches):
            data = tiny.tokens(self.opts, self.number, number)
            out = self.model(data[:, :-1])
            torch.nn.functional.cross_entropy(out.flatten(0, 1), data[:, 1:].flatten()).backward()  # type: ignore[no-untyped-call]
        saver.before()
        self.optimizer.step()
        saver.after()

    def timed(self, name: str) -> float:
        """Seconds of an iteration in a steady run: the save of the one before is under way when it begins."""
        saver = self.savers[name]
        saver.after()
        begun = time.perf_counter()
        self.iterate(saver)
        seconds = time.perf_counter() - begun
        saver.flush()
        return seconds

    def stretch(self) -> None:
        """More micro-batches until an iteration is as long as it must be."""
        while statistics.median(self.timed("none") for _ in range(3)) < 1.2 * ITERATION:
            self.micro_batches += 1


def measure(trainer: Trainer, rounds: int) -> dict[str, list[float]]:
    """Saver -> seconds of its iteration in each round."""
    chance = random.Random(SEED)
    for name in (*trainer.savers, *trainer.savers):
        trainer.timed(name)
    trainer.stretch()
    found: dict[str, list[float]] = {name: [] for name in trainer.savers}
    for _ in range(rounds):
        for name in chance.sample(list(found), len(found)):
            found[name].append(trainer.timed(name))
    for saver in trainer.savers.values():
        saver.close()
    return found


def overhead(on: list[float], off: list[float]) -> tuple[float, float, float]:
    """Trimmed mean of the shares, and its 95 % interval by resampling rounds."""
    shares, draw = [a / b - 1.0 for a, b in zip(on, off, strict=True)], random.Random(0)
    means = sorted(trimmed_mean(draw.choices(shares, k=len(shares))) for _ in range(2000))
    return trimmed_mean(shares), means[50], means[1949]


def trimmed_mean(values: list[float]) -> float:
    """Without ``TRIMMED`` of the values at either end."""
    cut = int(TRIMMED * len(values))
    return statistics.mean(sorted(values)[cut : len(values) - cut])


def rows(trainer: Trainer, found: dict[str, list[float]]) -> list[Row]:
    base = statistics.median(found["none"])
    note = (
        f"iteration {1000 * base:.0f} ms, state {trainer.state_bytes / MIB:.0f} MiB, trimmed means; "
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )
    made = []
    for name, seconds in found.items():
        if name == "none":
            continue
        mean, low, high = overhead(seconds, found["none"])
        ours = name == "mainstay"
        made.append(
            Row(
                claim=f"one snapshot an iteration, {name}", figure=round(100 * mean, 2), unit="%",
                target="<= 1" if ours else "-", holds=mean <= TARGET and base >= ITERATION if ours else None,
                kind="live", baseline="the same iterations without saving, in turns", n=len(seconds),
                note=f"95 % interval {100 * low:.2f} to {100 * high:.2f} %; {note}",
            )
        )  # fmt: skip
    return made


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.snapshot_overhead")
    parser.add_argument("--json", type=Path, default=RESULTS / "snapshot_overhead.json", metavar="FILE")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--quick", action="store_true", help="8 rounds: no figure to keep")
    options = parser.parse_args(argv)
    if any(os.environ.get(name) != value for name, value in COPY_ENVIRONMENT.items()):  # read when a process starts
        command = [sys.executable, "-m", "bench.snapshot_overhead", *(argv or sys.argv[1:])]
        os.execve(sys.executable, command, os.environ | COPY_ENVIRONMENT)  # noqa: S606 - ourselves
    rounds = 8 if options.quick else options.rounds
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    place = Path(tempfile.mkdtemp(prefix="mainstay-bench-", dir="/dev/shm"))
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)  # dcp.async_save wants one
    try:
        with agents(3, place) as found:
            trainer = Trainer(place, [client for _, client in found])
            publish("snapshot_overhead", rows(trainer, measure(trainer, rounds)), options.json)
    finally:
        dist.destroy_process_group()
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
