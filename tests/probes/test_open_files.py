"""The soft limit of open files grows as far as it may, in a process of its own: a limit cannot be given back."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import resource, logging, sys
from mainstay.probes.open_files import raise_open_file_limit
soft, hard, needed = map(int, sys.argv[1:])
logging.basicConfig(format="%(message)s", stream=sys.stdout)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
raise_open_file_limit(*([needed] if needed else []))
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("limits", "needed", "expected"),
    [
        ((256, 512), 0, "512 512"),
        ((256, 512), 300, "300 512"),
        ((256, 512), 100, "256 512"),
        ((512, 512), 512, "512 512"),
    ],
)
def test_it_grows_as_far_as_is_needed_and_allowed(limits: tuple[int, int], needed: int, expected: str) -> None:
    words = [sys.executable, "-c", SCRIPT, *map(str, (*limits, needed))]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip() == expected


def test_a_hard_limit_that_is_too_low_is_said() -> None:
    words = [sys.executable, "-c", SCRIPT, "256", "512", "4000"]
    told, limits = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    assert told == "4000 open files may be needed, and the hard limit is 512: raise it (ulimit -Hn)"
    assert limits == "512 512"
