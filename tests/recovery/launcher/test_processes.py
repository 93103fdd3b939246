"""``mainstay run`` as a process: scripts that know nothing of Mainstay, scripts that fail, launchers that die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from bench.lib_job import descendants
from tests.fork_server.processes import Warm

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.xdist_group("control")]
SMALL = ["--width", "32", "--layers", "1", "--batch", "1"]

PLAIN = """
import os, sys
import torch, torch.distributed as dist
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.init_process_group("gloo")
x = torch.ones(1)
dist.all_reduce(x)
print(f"sum {x.item():g} in attempt {attempt}, arguments {sys.argv[1:]}", flush=True)
if dist.get_rank() == 1 and attempt < int(sys.argv[1]):
    raise ValueError(f"attempt {attempt} fails")
dist.barrier()
dist.destroy_process_group()
"""


def run(
    warm: Warm, directory: Path, code: str, *words: str, options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    script = directory / "script.py"
    script.write_text(code)
    flags = ["--nproc-per-node", "2", "--state-dir", str(directory / "state"), "--job-id", f"t{os.getpid()}", *options]
    command = [str(warm.python), "-m", "mainstay", "run", *flags, str(script), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def events(directory: Path, kind: str) -> list[dict]:
    lines = (directory / "state" / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["kind"] == kind]


def test_a_script_without_the_sdk_is_restarted_whole(warm: Warm, tmp_path: Path) -> None:
    """As torchrun does it; and each attempt meets in a store that knows nothing of the one before."""
    done = run(warm, tmp_path, PLAIN, "1", "--nnodes", "9")
    assert done.returncode == 0, done.stderr
    assert "[rank 0] sum 2 in attempt 1, arguments ['1', '--nnodes', '9']" in done.stdout
    (exited,) = [e for e in events(tmp_path, "process_exit") if e["rank"] == 1 and not e["data"]["expected"]]
    assert exited["data"]["error"] == "ValueError: attempt 0 fails"
    assert exited["data"]["exit_code"] == 1
    assert "ValueError" in exited["data"]["traceback"]
    assert exited["data"]["stderr"][-1] == "ValueError: attempt 0 fails"
    assert exited["data"]["peak_bytes"] > 2**26  # torch alone has more
    assert "out_of_memory" not in exited["data"]


def test_a_script_that_always_fails_ends_the_job_with_its_code(warm: Warm, tmp_path: Path) -> None:
    done = run(warm, tmp_path, "import sys; sys.exit(7)")
    assert done.returncode == 7
    last = done.stderr.strip().splitlines()[-1]
    assert "exit code 7" in last
    assert "failed 3 times in a row" in last
    (finished,) = events(tmp_path, "job_finished")
    assert (finished["data"]["state"], finished["data"]["exit_code"]) == ("failed", 7)


def test_a_script_that_exits_with_a_text_says_it(warm: Warm, tmp_path: Path) -> None:
    done = run(warm, tmp_path, "import sys; sys.exit('the reason')", options=("--max-restarts", "0"))
    assert done.returncode == 1
    assert "[rank 0] the reason" in done.stderr


def test_a_module_that_cannot_be_preloaded(warm: Warm, tmp_path: Path) -> None:
    done = run(warm, tmp_path, "pass", options=("--preload", "no_such_module"))
    assert done.returncode == 1
    assert "no_such_module" in done.stderr


def test_two_runs_of_the_same_name(warm: Warm, tmp_path: Path) -> None:
    """The second one must not see fences and snapshots of the first."""
    arguments = ["--steps", "60", *SMALL, "--dp", "2", "--pp", "1"]
    for number in (1, 2):
        with warm.job(directory=tmp_path / "job", arguments=arguments, nodes=1, per_node=2) as job:
            job.wait_step(4)
            job.kill(0)
            assert job.wait(100.0) == [0], job.tail()
            assert len(job.events("recovery_completed")) == number
    assert "DEGRADED" not in job.tail()


def test_a_stopped_rank_is_seen_and_replaced_without_any_service(warm: Warm, tmp_path: Path) -> None:
    """The coordinator's own detector, real ranks, real stacks; SIGKILL reaches a process that SIGSTOP has frozen."""
    faults = "sleep:rank=0,ms=25;sleep:rank=1,ms=25"  # so that the job is still there when its period is learned
    words = ["--steps", "140", *SMALL, "--dp", "2", "--pp", "1", "--faults", faults]
    with warm.job(
        directory=tmp_path / "job", arguments=words, nodes=1, per_node=2, options=["--on-hang", "recover"]
    ) as job:  # fmt: skip
        job.wait_step(80)
        before = job.pids()
        job.kill(1, signal.SIGSTOP)
        recovered = job.wait_recoveries(1, 60.0)
        assert recovered["data"]["steps_lost"] <= 1
        after = job.pids()
        assert after[0] == before[0]
        assert after[1] != before[1]
        (suspect,) = [event for event in job.events("stack_dump") if event["data"]["suspect"]]
        assert suspect["rank"] == 1
        assert suspect["data"]["process"] == "stopped"
        (recorder,) = job.events("flight_recorder")
        assert (recorder["data"]["ranks_read"], recorder["data"]["ranks_missing"]) == (1, [1])
        assert [culprit["rank"] for culprit in recorder["data"]["culprits"]] == [1]
        assert not recorder["data"]["certain"], "a stopped rank leaves no dump"
        assert job.wait(100.0) == [0], job.tail()
    assert len(job.events("recovery_completed")) == 1


def test_nothing_outlives_a_launcher_that_is_killed(warm: Warm, tmp_path: Path) -> None:
    arguments = ["--steps", "10000", *SMALL, "--dp", "2", "--pp", "1"]
    with warm.job(directory=tmp_path / "job", arguments=arguments, nodes=1, per_node=2) as job:
        job.wait_step(2)
        below = descendants(job.launchers[0].pid)
        assert len(below) >= 5  # fork server, store, agent, two ranks, a standby
        job.launchers[0].send_signal(signal.SIGKILL)
        job.launchers[0].wait()
        deadline = time.monotonic() + 60.0
        while left := [words for pid, words in below.items() if Path(f"/proc/{pid}").exists()]:
            assert time.monotonic() < deadline, left
            time.sleep(0.02)
