"""The same script under plain python and under torchrun's environment: ordinary groups, an ordinary loop."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.lib_job import EXAMPLES, free_port
from tests.fork_server.processes import Warm

pytestmark = [pytest.mark.slow, pytest.mark.processes]
SMALL = ["--steps", "3", "--width", "32", "--batch", "1", "--seed", "5"]


def start(
    python: str | Path, saved: Path, rank: int | None, meeting: tuple[int, int], *words: str
) -> subprocess.Popen[bytes]:
    environment = {k: v for k, v in os.environ.items() if k not in {"RANK", "WORLD_SIZE"}} | {"OMP_NUM_THREADS": "1"}
    if rank is not None:
        world, port = meeting
        environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [str(python), str(EXAMPLES / words[0]), *SMALL, *words[1:], "--save", str(saved)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        _, said = process.communicate(timeout=100)
        assert process.returncode == 0, said.decode()


def test_plain_python_is_one_rank(tmp_path: Path) -> None:
    finish([start(sys.executable, tmp_path, None, (1, 0), "train.py", "--dp", "1", "--pp", "1")])
    assert (tmp_path / "rank-0.npz").exists()


def test_torchruns_environment_gives_what_plain_torch_gives(warm: Warm, tmp_path: Path) -> None:
    words = ("--dp", "2", "--pp", "1")
    for script in ("train.py", "train_plain.py"):
        port = free_port()
        finish([start(warm.python, tmp_path / script, rank, (2, port), script, *words) for rank in range(2)])
    for rank in range(2):
        name = f"rank-{rank}.npz"
        assert (tmp_path / "train.py" / name).read_bytes() == (tmp_path / "train_plain.py" / name).read_bytes()


def test_a_mesh_of_another_size_is_refused(warm: Warm, tmp_path: Path) -> None:
    process = start(warm.python, tmp_path, None, (1, 0), "train.py", "--dp", "2", "--pp", "2")
    _, said = process.communicate(timeout=100)
    assert process.returncode == 1
    assert b"dp=2 x pp=2 x tp=1 needs 4 ranks, this job has 1" in said
