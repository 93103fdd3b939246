"""The undisturbed run to compare with: the plain script, no launcher of ours, no snapshots, no fault."""

from __future__ import annotations

import filecmp
import sys
from pathlib import Path

import mainstay.recovery
from mainstay.service.demo.processes import Children

WORLD_SIZE = 4


def examples_dir() -> Path:
    """Where the example training scripts are installed."""
    return Path(mainstay.recovery.__path__[0]) / "examples"


def start_reference(children: Children, directory: Path, *, port: int, steps: int, seed: int) -> list[str]:
    """Start the plain script on every rank with the environment that torchrun would give it; return the child names."""
    directory.mkdir(parents=True, exist_ok=True)
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(WORLD_SIZE)}
    arguments = ["--steps", str(steps), "--seed", str(seed), "--save", str(directory)]
    names = [f"reference-{rank}" for rank in range(WORLD_SIZE)]
    for rank, name in enumerate(names):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(examples_dir() / "train_plain.py"), *arguments]
        children.start(name, command, {**shared, **own})
    return names


def compare_parameters(one: Path, other: Path) -> list[str]:
    """Names of saved files that differ between two directories, or that only one of them has."""
    names = {p.name for p in one.iterdir()} | {p.name for p in other.iterdir()}
    if not names:
        return ["nothing was saved"]
    _, differing, missing = filecmp.cmpfiles(one, other, names, shallow=False)
    return sorted(differing + missing)
