"""A running job is asked for another number of tensor-parallel ranks and back, and resumes at another one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from bench.lib_job import Job
from mainstay.recovery.job_request import JobRequestResult, RequestKind, RequestState
from tests.fork_server.processes import Warm
from tests.scenarios.pace import finish, pausing

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("training")]

SCRIPT = Path(__file__).with_name("tensor_parallel.py")
SHARDING = {"blocks.*.up.weight": 0, "blocks.*.up.bias": 0, "blocks.*.down.weight": 1}
STEPS = 30
ROUNDING = 1e-12
"""Absolute, of parameters and moments below 3 in float64: 30 updates that add in another order differ by 1e-15 each."""
Tensors = dict[str, npt.NDArray[Any]]


def whole(directory: Path, name: str, shape: str) -> Tensors:
    """The tensors of the whole model that the ranks of a job of ``shape`` wrote; replicas must agree to the bit."""
    tp = int(shape.rpartition("tp")[2])
    ranks = [dict(np.load(path)) for path in sorted(directory.glob(f"{name}-{shape}-rank*.npz"), key=_rank)]
    assert len(ranks) == int(shape[2 : shape.index("-")]) * tp, (name, shape)
    replicas = [_joined(ranks[first : first + tp]) for first in range(0, len(ranks), tp)]
    for other in replicas[1:]:
        assert bits(other) == bits(replicas[0]), (name, shape)
    return replicas[0]


def _rank(path: Path) -> int:
    return int(re.findall(r"rank(\d+)", path.name)[0])


def _joined(ranks: list[dict[str, Any]]) -> Tensors:
    """Pieces put together by hand, not by the code under test; other tensors are the same on all ranks."""
    made: Tensors = {}
    for name, first in ranks[0].items():
        cut = [dim for pattern, dim in SHARDING.items() if fnmatchcase(name, f"*.{pattern}*")]
        if cut and first.shape:  # ``step`` of AdamW is a number
            made[name] = np.concatenate([rank[name] for rank in ranks], cut[0])
        else:
            assert all(rank[name].tobytes() == first.tobytes() for rank in ranks), name
            made[name] = first
    return made


def bits(tensors: Tensors) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in tensors.items()}


def apart(a: Tensors, b: Tensors) -> float:
    assert a.keys() == b.keys()
    return max(float(np.abs(a[name] - b[name]).max()) for name in a)


def reshape(job: Job, **shape: int) -> JobRequestResult:
    given = job.request(RequestKind.RESHAPE, **shape)
    assert given.state is RequestState.COMPLETED, (given, job.tail())
    assert given.steps_lost in {0, 1}
    return given


def test_another_tp_and_back_and_resumed_at_a_third(warm: Warm, tmp_path: Path) -> None:
    checkpoints, said, alone = tmp_path / "checkpoints", tmp_path / "said", tmp_path / "alone"
    disk = ["--checkpoint-interval", "1000", "--checkpoint-dir", str(checkpoints)]
    two: dict[str, Any] = {"script": SCRIPT, "nodes": 1}
    shape = ["--dp", "2", "--pp", "1"]
    with warm.job(
        directory=tmp_path / "job", arguments=[str(STEPS), str(said)], options=[*shape, *disk],
        environment=pausing(tmp_path / "job"), **two,
    ) as job:  # fmt: skip
        job.wait_step(2)
        command = [sys.executable, "-m", "mainstay", "job", "reshape", job.name, "--dp", "1", "--tp", "2", "--json"]
        command += ["--state-dir", str(job.directory / "node-0"), "--timeout", "240"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, (done.stdout, done.stderr, job.tail())
        first = json.loads(done.stdout)["step"]
        assert first >= 2
        topology = job.state()["topology"]
        assert [topology[key] for key in ("dp", "pp", "tp")] == [1, 1, 2]
        job.wait_step(first + 2)
        second = reshape(job, dp=2, tp=1).step
        assert second is not None
        assert finish(job) == [0], job.tail()
        assert job.state()["last_step"] == STEPS
    words = [str(STEPS), str(alone)]
    with warm.job(directory=tmp_path / "undisturbed", arguments=words, options=shape, **two) as job:
        assert job.wait() == [0], job.tail()

    # Right after each change: equal to the bit.
    assert bits(whole(said, f"start-{first}", "dp1-tp2")) == bits(whole(said, f"after-{first}", "dp2-tp1"))
    assert bits(whole(said, f"start-{second}", "dp2-tp1")) == bits(whole(said, f"after-{second}", "dp1-tp2"))
    # Each step once, and equal to those of a job that keeps its shape, up to the order of additions.
    for step in range(1, STEPS + 1):
        found = whole(said, f"after-{step}", "dp1-tp2" if first < step <= second else "dp2-tp1")
        difference = apart(found, whole(alone, f"after-{step}", "dp2-tp1"))
        assert difference <= (0.0 if step <= first else ROUNDING), step

    # From disk: more ranks, other cuts, none.
    step, before = STEPS, "dp2-tp1"
    for dp, tp in ((2, 2), (1, 4), (1, 1)):
        words = ["--dp", str(dp), "--pp", "1", "--tp", str(tp), *disk, "--resume", "latest"]
        resumed = warm.job(
            directory=tmp_path / f"dp{dp}-tp{tp}", arguments=[str(step + 2), str(said)], options=words,
            per_node=dp * tp, **two,
        )  # fmt: skip
        with resumed as job:
            assert job.wait() == [0], job.tail()
        after = f"dp{dp}-tp{tp}"
        assert bits(whole(said, f"start-{step}", after)) == bits(whole(said, f"after-{step}", before)), after
        step, before = step + 2, after
