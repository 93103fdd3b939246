"""Run pytest with these arguments, then run the few tests that failed once more, alone.

``python -m tests.rerun_alone -n 3 -m "not exclusive"``

A test that fails beside others on a loaded machine and passes alone depends on time. It is named, because it needs a
fix, and it does not refuse the whole run. A test that fails alone too, more than ``AT_MOST`` failures, and a run that
did not come to its end are failures.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

AT_MOST: Final = 10
LAST_FAILED: Final = Path(".pytest_cache/v/cache/lastfailed")


def run(arguments: list[str]) -> int:
    """Run pytest as a process of its own and return its exit status."""
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode


def alone(arguments: list[str]) -> list[str]:
    """The same selection, without workers: what runs beside a test is what made it fail."""
    found = list(arguments)
    for option in ("-n", "--dist"):
        if option in found:
            at = found.index(option)
            del found[at : at + 2]
    return [*found, "--last-failed", "--last-failed-no-failures", "none"]


def main(arguments: list[str]) -> int:
    LAST_FAILED.unlink(missing_ok=True)
    status = run(arguments)
    if status != pytest.ExitCode.TESTS_FAILED:
        return status
    failed = sorted(json.loads(LAST_FAILED.read_text(encoding="utf-8"))) if LAST_FAILED.exists() else []
    if not failed:  # it was none of the tests: a warning outside them, for instance
        return status
    if len(failed) > AT_MOST:
        print(f"{len(failed)} tests failed: more than {AT_MOST} are not run again")
        return status
    status = run(alone(arguments))
    if status == pytest.ExitCode.OK:
        print("Failed beside other tests and passed alone; make them independent of time:", *failed, sep="\n  ")
    return status


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
