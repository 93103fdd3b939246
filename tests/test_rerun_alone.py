"""``tests.rerun_alone``: only what passes alone is forgiven, and it is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FAILS_ONCE = """
def test_passes(): pass
def test_fails_once():
    from pathlib import Path
    seen = Path("seen")
    first = not seen.exists()
    seen.touch()
    assert not first
"""


def run(folder: Path, source: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(source)
    (folder / "pytest.ini").write_text("[pytest]\n")
    only = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p xdist"}  # the others take a second to import
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **only}
    command = [sys.executable, "-m", "tests.rerun_alone", "-n", "1"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "status", "said"),
    [
        pytest.param("def test_passes(): pass", 0, "1 passed", id="all pass"),
        pytest.param(
            FAILS_ONCE, 0, "passed alone; make them independent of time:\n  test_it.py::test_fails_once", id="once"
        ),
        pytest.param("def test_fails(): assert False", 1, "1 failed", id="fails alone too"),
        pytest.param("import nothing_of_that_name", 2, "1 error", id="collection error"),
        pytest.param("def test_fails():\n    import os\n    os._exit(1)", 1, "crashed", id="kills the worker"),
        pytest.param(
            "import pytest\n@pytest.mark.parametrize('k', range(11))\ndef test_it(k): assert False",
            1,
            "11 tests failed: more than 10 are not run again",
            id="too many",
        ),
    ],
)
def test_only_what_passes_alone_is_forgiven(tmp_path: Path, source: str, status: int, said: str) -> None:
    done = run(tmp_path, source)
    assert said in done.stdout, done.stdout + done.stderr
    assert done.returncode == status
