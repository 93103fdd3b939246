"""Bad input of ``mainstay demo``; ``test_wheel`` runs the demo itself, from the installed wheel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_bad_input_is_one_line() -> None:
    command = [sys.executable, "-m", "mainstay", "demo", "--kill-rank", "4"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines() == ["mainstay demo: --kill-rank 4: the demo has ranks 0 to 3"]
