"""The main job, as a newcomer runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(300)
@pytest.mark.xdist_group("control")
def test_demo_kills_a_rank_and_ends_bit_equal() -> None:
    command = [sys.executable, "-m", "mainstay", "demo", "--exit", "--json", "--port", "0", "--steps", "45"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout)
    assert summary["finished"]
    assert summary["bit_equal"]
    assert summary["verified"]
    assert summary["survivors_restarted"] == []
    assert summary["steps_lost"] <= 1
    assert summary["strategy"] in {"local_slot", "peer_copy", "parity_rebuild"}
    assert summary["detected_s"] > 0


def test_bad_input_is_one_line() -> None:
    command = [sys.executable, "-m", "mainstay", "demo", "--kill-rank", "4"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines() == ["mainstay demo: --kill-rank 4: the demo has ranks 0 to 3"]
