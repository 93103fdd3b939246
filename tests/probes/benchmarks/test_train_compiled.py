"""The compiled step: the same work by other kernels."""

from __future__ import annotations

import shutil

import pytest

from mainstay.probes.benchmarks.base import Device
from mainstay.probes.benchmarks.train import Train, TrainCompiled, one_step

SMALL = {"layers": 1, "width": 16, "heads": 2, "tokens": 8, "batch": 1, "vocabulary": 64}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("compiled"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"),  # torch's own
]


def tiny() -> TrainCompiled:
    return TrainCompiled(TrainCompiled.Config(budget_seconds=0.0, **SMALL))


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile on a processor needs a C++ compiler")
def test_compiled_and_eager_agree(cpu: Device) -> None:
    config = Train.Config(budget_seconds=0.0, **SMALL)
    eager, compiled = one_step(config, cpu), one_step(config, cpu, compiled=True)
    assert float(compiled().detach()) == pytest.approx(float(eager().detach()), rel=1e-4)
