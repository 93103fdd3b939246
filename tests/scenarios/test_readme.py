"""Every command of the README runs: here as it is written, or in the test that the table names."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.detectors.hang.test_flight_recorder import hung
from tests.detectors.hang.test_hang_cli import write
from tests.fork_server.processes import Warm

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
HERE = {
    "mainstay analyze-hang dumps/",
    "mainstay doctor",
    "mainstay run --nproc-per-node 4 train.py",
    "mainstay simulate --nodes 256 --pp 8 --node-mtbf-hours 4000 --spares 4 --sweep spares --plot simulation.svg",
}
RECORD, REPLAY = "mainstay record --since 30m --job demo rec/", "mainstay replay rec/"
"""``tests/scenarios/test_record_replay.py`` runs them as they are written."""
OTHER_TESTS = {
    RECORD: "tests/scenarios/test_record_replay.py",
    REPLAY: "tests/scenarios/test_record_replay.py",
    "mainstay up": "tests/scenarios/test_wheel.py",
    "mainstay validate --suite quick": "tests/scenarios/test_wheel.py",
}
TARGETS = {
    "make demo": "mainstay demo",
    'make demo DEMO_ARGS="--exit --json"': "mainstay demo --exit --json",
    "make docs": "mkdocs build --strict",
    "make test": "python -m tests.rerun_alone",
}
"""What each target runs. tests/scenarios/test_demo.py runs the demo, tests/test_docs.py the build of the site."""
PRELUDE = """
import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
total = 3


def train_step(_: object) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()

"""
pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(240), pytest.mark.xdist_group("control")]


def commands() -> set[str]:
    """The command lines in shell blocks and code spans."""
    blocks = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    lines = {re.sub(r"\s+#\s.*", "", line).strip() for block in blocks for line in block.splitlines()}
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", README, flags=re.DOTALL))
    lines |= {span for span in spans if re.match(r"(make|mainstay|pip|python) ", span)}
    return {line for line in lines if line} - {"mainstay run", "mainstay checkpoint"}  # names, not command lines


def run(python: Path, line: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    assert line in commands(), "the README no longer has this command"
    return subprocess.run(
        [python, "-m", *line.split()], cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True,
        timeout=200, check=False,
    )  # fmt: skip


def test_every_command_of_the_readme_has_a_test() -> None:
    installed = {line for line in commands() if line.startswith("pip install ")}
    assert commands() - installed == HERE | set(OTHER_TESTS) | set(TARGETS)
    assert all((ROOT / file).is_file() for file in OTHER_TESTS.values())


def test_every_extra_of_the_readme_exists() -> None:
    """tests/scenarios/test_wheel.py installs all of them; bench/install_size.py installs each alone."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    lines = [line for line in commands() if line.startswith("pip install ")]
    named = {name for line in lines for name in re.findall(r"^pip install 'mainstay\[([\w,]+)]'$", line)[0].split(",")}
    assert {"all", "node", "service", "train"} <= named <= set(extras)


@pytest.mark.parametrize("line", sorted(TARGETS))
def test_every_make_target_of_the_readme_runs_what_it_promises(line: str) -> None:
    assert line in commands()
    done = subprocess.run(
        ["make", "--dry-run", *shlex.split(line)[1:]], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert TARGETS[line] in done.stdout


def test_the_machine_is_examined(warm_service: Warm, tmp_path: Path) -> None:
    done = run(warm_service.python, "mainstay doctor", tmp_path)
    assert done.returncode in {0, 1}, done.stderr
    assert "python" in done.stdout.lower()


def test_the_script_of_the_readme_trains_under_mainstay_run(warm: Warm, tmp_path: Path) -> None:
    [block] = [body for body in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "mainstay.init" in body]
    (tmp_path / "train.py").write_text(f"{PRELUDE}{block}\nprint('trained', total)\n")
    line = "mainstay run --nproc-per-node 4 train.py"
    done = run(warm.python, line, tmp_path, XDG_STATE_HOME=str(tmp_path / "state"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("trained 3") == 4, done.stdout


def test_dumps_of_a_hang_are_analyzed(warm_service: Warm, tmp_path: Path) -> None:
    (tmp_path / "dumps").mkdir()
    write(tmp_path / "dumps", hung())
    done = run(warm_service.python, "mainstay analyze-hang dumps/", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Rank 2 holds up the job.")


def test_policies_are_simulated(warm_service: Warm, tmp_path: Path) -> None:
    [line] = [one for one in HERE if one.startswith("mainstay simulate")]
    done = run(warm_service.python, line, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "<svg" in (tmp_path / "simulation.svg").read_text(encoding="utf-8")
