"""The package ``mainstay`` does not collide with modules of the training site."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SITE_MODULES = ("service", "recovery", "detectors", "probes")
MAIN_MODULES = (
    "mainstay.recovery.node.main",
    "mainstay.recovery.agent.server",
    "mainstay.recovery.sdk",
    "mainstay.probes.daemon",
    "mainstay.detectors.base",
)


def _run(directory: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` with ``directory`` in front of the module search path."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(directory), str(ROOT)])}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=90, check=False
    )


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A directory with modules of the site that fail when they are imported."""
    for name in SITE_MODULES:
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the module of the site was imported')\n")
    return tmp_path


@pytest.mark.slow
def test_the_package_never_imports_modules_of_the_site(site: Path) -> None:
    imports = "; ".join(f"import {name}" for name in MAIN_MODULES)
    done = _run(site, f"import mainstay; mainstay.init; {imports}; print('imported')")
    assert done.stdout == "imported\n", done.stderr


@pytest.mark.slow
@pytest.mark.processes
def test_a_protected_script_uses_the_modules_beside_it(tmp_path: Path) -> None:
    """The script, its ranks and their agent run in one folder with modules of the names of the layers."""
    for name in SITE_MODULES:
        (tmp_path / f"{name}.py").write_text(f"ORIGIN = {name!r}\n")
    script = """
        import torch, mainstay, service, recovery, detectors, probes
        model = torch.nn.Linear(2, 2)
        mainstay.init(dp=2)
        run = mainstay.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for step in run.steps(2):
            with run.step():
                pass
        print("trained with", service.ORIGIN, recovery.ORIGIN, detectors.ORIGIN, probes.ORIGIN, flush=True)
    """
    (tmp_path / "train.py").write_text(textwrap.dedent(script))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(tmp_path / "state")}
    done = subprocess.run(
        [sys.executable, "-m", "mainstay", "run", "--nproc-per-node", "2", "train.py"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("trained with service recovery detectors probes") == 2, done.stdout


@pytest.mark.parametrize("name", SITE_MODULES)
def test_the_site_can_import_its_own_modules(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("ORIGIN = 'site'\n")
    done = _run(tmp_path, f"import mainstay.probes.core_types, {name}; print({name}.ORIGIN)")
    assert done.stdout == "site\n", done.stderr
