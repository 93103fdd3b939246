"""What the example scripts share: a small model, its data, a fault that strikes once, and the final parameters."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

WIDTH = 32


@dataclass(frozen=True, slots=True)
class Options:
    """The command line."""

    steps: int
    save: Path
    die_at: int
    die_rank: int


def options(words: Sequence[str] | None = None) -> Options:
    """Read the command line of an example."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--save", type=Path, required=True, help="directory for the final parameters of every rank")
    parser.add_argument("--die-at", type=int, default=-1, help="the step in which one rank kills itself, once")
    parser.add_argument("--die-rank", type=int, default=0)
    return Options(**vars(parser.parse_args(words)))


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def build_model() -> nn.Module:
    """The same on every rank; with dropout, so that lost random numbers show."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * WIDTH, 1))


def batch(step: int, part: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs [16, WIDTH] and targets [16, 1]: functions of step and part alone."""
    source = torch.Generator().manual_seed(step * 1009 + part)
    x = torch.randn(16, WIDTH, generator=source)
    return x, x.sum(1, keepdim=True).tanh()


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, opts: Options) -> None:
    """Forward, backward, update with this rank's batch."""
    perhaps_die(step, opts)
    x, y = batch(step, rank())
    optimizer.zero_grad()
    loss: torch.Tensor = functional.mse_loss(model(x), y)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


class Rows(Dataset[dict[str, torch.Tensor]]):
    """Any number of rows: row i is a function of i."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if index >= self._count:
            raise IndexError(index)
        x, y = batch(index, 0)
        return {"x": x[0], "labels": y[0]}


def perhaps_die(step: int, opts: Options) -> None:
    """SIGKILL to ourselves in the step that was named, the first time that it is reached."""
    struck = opts.save / "struck"
    if step == opts.die_at and rank() == opts.die_rank and not struck.exists():
        opts.save.mkdir(parents=True, exist_ok=True)
        struck.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def note_start(step: int, opts: Options) -> None:
    """Say with which step this process began."""
    opts.save.mkdir(parents=True, exist_ok=True)
    with (opts.save / f"starts-{rank()}").open("a") as file:
        file.write(f"{step}\n")


def write(parameters: Iterable[tuple[str, torch.Tensor]], opts: Options) -> None:
    """Write ``rank-R.npz``: the same parameters give the same bytes."""
    opts.save.mkdir(parents=True, exist_ok=True)
    arrays = {name: tensor.detach().cpu().numpy() for name, tensor in parameters}
    np.savez(opts.save / f"rank-{rank()}.npz", **arrays)  # type: ignore[arg-type]
