"""The long diagnostic: the same program, longer; see ``test_dcgm.py``."""

from __future__ import annotations

from mainstay.probes.benchmarks.dcgm import DcgmDeep
from tests.probes.benchmarks.tools import GPUS


def tiny() -> DcgmDeep:
    return DcgmDeep(DcgmDeep.Config())


def test_it_judges_more_than_the_short_one() -> None:
    names = [metric.name for metric in tiny().metrics(GPUS)]
    assert names == ["software", "pcie", "memory", "diagnostic", "memory_bandwidth", "targeted_stress",
                     "targeted_power", "all"]  # fmt: skip
