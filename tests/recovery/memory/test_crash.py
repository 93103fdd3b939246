"""SIGKILL at any moment of a snapshot leaves a whole one behind; with a single slot it does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow]

PROGRAM = Path(__file__).with_name("crash_rounds.py")
ROUNDS = 60


@pytest.fixture
def arena_path() -> Iterator[Path]:
    path = Path(f"/dev/shm/mainstay-crash-{os.getpid()}.arena")
    yield path
    path.unlink(missing_ok=True)


def _rounds(path: Path, kind: str) -> list[dict]:
    command = [sys.executable, str(PROGRAM), str(path), str(ROUNDS), "7", kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_kill_at_any_moment_leaves_a_whole_snapshot(arena_path):
    rounds = _rounds(arena_path, "any")
    assert len(rounds) == ROUNDS
    assert sum(r["torn"] for r in rounds) == 0
    assert not any(r["lost"] for r in rounds)
    assert any(r["invalid"] for r in rounds), "no kill fell into a copy: the test proves nothing"
    newest = [max(r["committed"]) for r in rounds]
    assert newest == sorted(newest), "an epoch that was committed is gone"


def test_one_slot_would_lose_everything(arena_path):
    """The control that shows that the test above can fail."""
    rounds = _rounds(arena_path, "single")
    assert any(r["lost"] for r in rounds)
    assert sum(r["torn"] for r in rounds) == 0  # even then nothing torn is taken for whole
