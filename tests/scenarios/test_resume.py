"""Everything is gone but the disk: a later start of the job continues from it, and ends as if nothing had happened."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench.lib_job import ANY_SHAPE, Job
from mainstay.recovery.checkpoint.catalog import find, runs
from mainstay.recovery.mesh_shape import MeshShape
from tests.fork_server.processes import Warm
from tests.scenarios.pace import FEW
from tests.scenarios.whole_model import parameters

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("control")]

STEPS = 30
SMALL = ["--seed", "11", "--width", "32", "--layers", "2", "--batch", "2", *FEW]
SLOW = ["--faults", "sleep:rank=0,ms=80"]
"""Steps of a small model outrun whoever wants to kill in the middle of them."""


def saved(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def whole_step(checkpoints: Path, at_least: int) -> bool:
    try:
        return find(checkpoints).manifest.epoch >= at_least
    except ValueError:  # nothing there yet
        return False


def test_all_is_killed_and_a_new_start_resumes(warm: Warm, tmp_path: Path) -> None:
    """Two nodes, two pipelines of two stages; SIGKILL of both launchers takes every process and arena with it."""
    words = ["--steps", str(STEPS), *SMALL]
    checkpoints = tmp_path / "checkpoints"
    options = ["--parity-interval", "5", "--checkpoint-interval", "5", "--checkpoint-dir", str(checkpoints)]
    first = warm.job(directory=tmp_path / "first", arguments=[*words, *SLOW], options=options)
    with first:
        first.wait_step(6)
        first.until(lambda: whole_step(checkpoints, 5), 60.0, "a whole step on disk")
        first.kill_all()
    source = find(checkpoints).manifest
    assert source.epoch % 5 == 0
    second = warm.job(
        directory=tmp_path / "second",
        arguments=[*words, "--save", str(tmp_path / "saved")],
        options=[*options, "--resume", "latest"],
    )
    with second:
        assert second.wait() == [0, 0], second.tail()
    warm.run_plain(tmp_path / "plain", [*words, "--save", str(tmp_path / "undisturbed")])
    assert saved(tmp_path / "saved") == saved(tmp_path / "undisturbed")
    assert second.state()["last_step"] == STEPS
    (started,) = second.events("job_started")
    mine = started["data"]["run"]
    assert mine > source.run
    assert [run.id for run in runs(checkpoints)] == [source.run, mine]
    assert runs(checkpoints)[1].info().resumed == (source.run, source.epoch)
    assert find(checkpoints).manifest.epoch == STEPS  # the last save, though 30 would have been one anyway


def test_stopped_on_purpose_then_resumed_then_with_fewer_replicas(warm: Warm, tmp_path: Path) -> None:
    """SIGTERM loses no step; what two replicas hold alike, one can continue with."""
    checkpoints = tmp_path / "checkpoints"
    options = ["--checkpoint-interval", "1000", "--checkpoint-dir", str(checkpoints)]
    words = ["--steps", "14", "--dp", "2", "--pp", "1", *SMALL]

    def job(name: str, arguments: list[str], *more: str, ranks: int = 2, nodes: int = 1) -> Job:
        return warm.job(
            directory=tmp_path / name,
            arguments=arguments,
            nodes=nodes,
            per_node=ranks // nodes,
            options=[*options, *more],
        )

    with job("first", [*words, *SLOW], nodes=2) as first:
        first.wait_step(5)
        for launcher in reversed(first.launchers):  # as a scheduler does, and node 1 hears it first
            launcher.send_signal(signal.SIGTERM)
        assert first.wait(60.0) == [143, 143], first.tail()
    stopped_at = find(checkpoints).manifest.epoch
    assert stopped_at >= 5
    with job("second", [*words, "--save", str(tmp_path / "saved")], "--resume", "latest") as second:
        assert second.wait() == [0], second.tail()
    warm.run_plain(tmp_path / "plain", [*words, "--save", str(tmp_path / "undisturbed")], ranks=2)
    assert saved(tmp_path / "saved") == saved(tmp_path / "undisturbed")
    assert find(checkpoints).manifest.epoch == 14
    # Nothing is left to do: what is saved is what was resumed.
    one = ["--steps", "14", "--dp", "1", "--pp", "1", *SMALL, "--save", str(tmp_path / "exclusive")]
    with job("third", one, "--resume", "auto", ranks=1) as third:
        assert third.wait() == [0], third.tail()
    assert saved(tmp_path / "exclusive")["rank-0.npz"] == saved(tmp_path / "saved")["rank-0.npz"]
    other = ["--steps", "14", "--dp", "1", "--pp", "2", *SMALL]
    with job("fourth", other, "--resume", "latest") as fourth:
        assert fourth.wait() == [1], fourth.tail()
    assert "saved with other pipeline stages, and this script's names are each stage's own" in fourth.tail(40)


def train(warm: Warm, directory: Path, steps: int, shape: tuple[int, int], *options: str) -> dict[str, bytes]:
    """The parameters after ``steps`` in this (dp, pp)."""
    words = ["--steps", str(steps), "--width", "32", "--save", str(directory / "saved")]
    shaped = ["--dp", str(shape[0]), "--pp", str(shape[1]), *options]
    one = {"nodes": 1, "per_node": shape[0] * shape[1], "options": shaped}
    with warm.job(directory=directory / "job", script=ANY_SHAPE, arguments=words, **one) as job:
        assert job.wait() == [0], job.tail()
    return parameters(directory / "saved")


def disk(checkpoints: Path) -> list[str]:
    return ["--checkpoint-interval", "1000", "--checkpoint-dir", str(checkpoints)]


@pytest.fixture(scope="module")
def two_by_two(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    """What two replicas of two stages saved in step 5, and their parameters after step 10."""
    directory = tmp_path_factory.mktemp("two-by-two")
    train(warm, directory / "first", 5, (2, 2), *disk(directory / "checkpoints"))
    assert find(directory / "checkpoints").manifest.has_model_names
    return directory / "checkpoints", train(warm, directory / "undisturbed", 10, (2, 2))


@pytest.mark.parametrize(("dp", "pp"), [(1, 4), (4, 1), (1, 3)])
def test_another_number_of_stages_goes_on_to_the_same_bits(
    warm: Warm, dp: int, pp: int, tmp_path: Path, two_by_two: tuple[Path, dict[str, bytes]]
) -> None:
    """Two replicas of two stages, then four stages, four replicas, or three stages on three ranks."""
    saved_by_four, undisturbed = two_by_two
    checkpoints = tmp_path / "checkpoints"
    shutil.copytree(saved_by_four, checkpoints)
    second = train(warm, tmp_path / "second", 10, (dp, pp), *disk(checkpoints), "--resume", "latest")
    assert find(checkpoints).manifest.shape == MeshShape(dp=dp, pp=pp)
    assert second == undisturbed


@pytest.mark.parametrize(
    ("resume", "words"),
    [("latest", r"--resume latest: .* is not a directory"), ("nonsense", r"--resume nonsense: .* is not a directory")],
)
def test_nothing_to_resume_is_one_line(tmp_path: Path, resume: str, words: str) -> None:
    script = tmp_path / "script.py"
    script.write_text("")
    options = ["--checkpoint-interval", "5", "--checkpoint-dir", str(tmp_path / "none"), "--resume", resume]
    command = [sys.executable, "-m", "mainstay", "run", "--state-dir", str(tmp_path / "state"), *options, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert re.search(words, line)
