"""Every sampler keeps the contract: on this machine as it is, and in a world where it has something to measure.

That world is set up by the sampler's own test module, ``test_NAME_sampler.py``: its ``world(directory)`` returns the
environment variables that make it so. A sampler without one fails here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from mainstay.probes.samplers.base import SamplerConfig, registry

HERE = Path(__file__).parent


def load(path: Path) -> ModuleType:
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


checks = load(HERE / "sampler_checks.py")


@pytest.mark.parametrize("check", checks.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", registry())
def test_on_this_machine(name: str, check: Callable[[type[SamplerConfig]], object]) -> None:
    check(registry()[name])


@pytest.mark.processes
@pytest.mark.parametrize("name", registry())
def test_where_it_is_supported(name: str, tmp_path: Path) -> None:
    own = HERE / f"test_{name}_sampler.py"
    assert own.exists(), f"a sampler costs two files: {own.name} is missing"
    world = load(own).world(tmp_path)
    done = subprocess.run(
        [sys.executable, HERE / "sampler_checks.py", name],
        env={**os.environ, **world}, cwd=HERE.parents[1], capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "supported\n"


def test_the_registry_finds_the_modules() -> None:
    assert {"host", "nvml"} <= set(registry())
