"""The bench that kills writers, for a few moments: no step may claim to be whole and not be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300)]


def test_no_step_is_false_or_lost_after_a_fault(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    command = [sys.executable, "-m", "bench.checkpoint_faults", "--points", "30", "--stride", "60", "--json", str(file)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=240, capture_output=True)
    rows = json.loads(file.read_text())
    assert rows[0]["n"] == 30
    assert [(row["figure"], row["note"].partition("; ")[2]) for row in rows] == [(0, "")] * len(rows)
