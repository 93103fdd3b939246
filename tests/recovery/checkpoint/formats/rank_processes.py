"""Ranks of a gloo group as plain processes that meet through a file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]
HERE = Path(__file__).parent
SECONDS = 400


def run_ranks(script: str, folder: Path, *words: str, ranks: int = 2) -> None:
    """Run ``script`` (beside this file) once for each rank; all must end well."""
    store = folder / f"store-{script}-{'-'.join(words)}"
    own = {"OMP_NUM_THREADS": "1", "WORLD_SIZE": str(ranks), "STORE": str(store), "PYTHONWARNINGS": "ignore"}
    own |= {"DS_ACCELERATOR": "cpu", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])}
    command = [sys.executable, str(HERE / script), str(folder), *words]
    logs = [folder / f"{script}-{'-'.join(words)}-{rank}.log" for rank in range(ranks)]
    processes = []
    for rank, log in enumerate(logs):
        env = {**os.environ, **own, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        with log.open("w") as out:
            processes.append(subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT, cwd=folder))
    try:
        codes = [process.wait(SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert codes == [0] * ranks, "\n".join(log.read_text()[-3000:] for log in logs)
