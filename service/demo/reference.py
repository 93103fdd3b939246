"""The undisturbed run to compare with: the plain script, no launcher of ours, no snapshots, no fault."""

from __future__ import annotations

import filecmp
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import mainstay.recovery
from mainstay.recovery.node.fork_server import preload
from mainstay.service.demo.processes import Children

WORLD_SIZE = 4


def examples_dir() -> Path:
    """Where the example training scripts are installed."""
    return Path(mainstay.recovery.__path__[0]) / "examples"


def start_reference(
    children: Children, directory: Path, *, port: int, steps: int, seed: int, words: Sequence[str] = ()
) -> str:
    """Start the plain script on every rank with the environment that torchrun would give; return the child's name."""
    directory.mkdir(parents=True, exist_ok=True)
    environment = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(WORLD_SIZE), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    arguments = ["--steps", str(steps), "--seed", str(seed), "--save", str(directory), *words]
    children.start("reference", [sys.executable, "-m", "mainstay.service.demo.reference", *arguments], environment)
    return "reference"


def main() -> None:
    """Train on ``WORLD_SIZE`` ranks: one process imports torch, which takes most of the time, and forks them."""
    preload(["mainstay.recovery.examples.train_plain"])
    from mainstay.recovery.examples import train_plain  # noqa: PLC0415 - the service runs without torch

    ranks = {os.fork() or _train(rank, train_plain.main) for rank in range(WORLD_SIZE)}
    while ranks:
        pid, status = os.wait()
        ranks.remove(pid)
        if status:
            for other in ranks:
                os.kill(other, signal.SIGKILL)
            sys.exit(1)


def _train(rank: int, train: Callable[[], None]) -> NoReturn:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    train()
    sys.exit()


def compare_parameters(one: Path, other: Path) -> list[str]:
    """Names of saved files that differ between two directories, or that only one of them has."""
    names = {p.name for p in one.iterdir()} | {p.name for p in other.iterdir()}
    if not names:
        return ["nothing was saved"]
    _, differing, missing = filecmp.cmpfiles(one, other, names, shallow=False)
    return sorted(differing + missing)


if __name__ == "__main__":
    main()
