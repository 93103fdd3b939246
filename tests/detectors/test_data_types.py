"""Data types of the detectors cannot change, have slots, and take their fields by name except a few that are listed."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import msgspec
import pytest

PACKAGES = (
    "", "correlation", "gpu", "hang", "host", "job", "localize", "network", "policy", "recording", "selector",
    "statistics", "straggler", "superbench", "validation",
)  # fmt: skip
CHANGE = {
    "BacktestResult", "Burst", "Cox", "DeviceHistory", "Exponential", "InMemoryRecording", "KaplanMeier",
    "LocalizationStatus", "PeerLayout", "SizePosterior", "Statements", "SurvivalModel", "_Ended", "_Held", "_Memory",
    "_Node", "_NodeState", "_Occasion", "_Place", "_Port", "_Read", "_Said", "_Tick", "localize.group_testing._Known",
}  # fmt: skip
"""Estimators, counts, and what is collected in steps."""
NO_SLOTS = {
    "Cox", "Exponential", "JobMesh", "KaplanMeier", "PeerLayout", "SurvivalModel",
}  # fmt: skip
BY_PLACE = {
    "BenchmarkSet", "Bound", "Burst", "BurstEvaluation", "Cohort", "Comparison", "CovariateEncoder", "Coverage",
    "Cox", "CumulativeHazard", "DeviceHistory", "Endpoint", "Exponential", "FailureRuns", "Generated", "KaplanMeier",
    "LintIssue", "LocalizationStatus", "MetricKey", "NodeDescription", "NodePlan", "PeerLayout", "PolicyTotals",
    "RankNoise", "RateTrend", "Results", "RuleFile", "RuleLimit", "RunGrouping", "Selection", "SizePosterior", "Spells",
    "Statements", "SummaryLine", "SummaryRule", "SuperBenchCriterion", "SurvivalModel", "Table", "TrendScale",
    "XidTarget", "_Cells", "_Ended", "_Held", "_Known", "_Line", "_Memory", "_Minute", "_Node", "_NodeState",
    "_Occasion", "_Pattern", "_Place", "_Port", "_Read", "_Said", "_Tick", "_Who",
}  # fmt: skip
NO_OTHER_FIELD = {
    "Criteria", "FabricTopology", "Host", "Nic", "_Line",
}  # fmt: skip
"""What people write."""


def types() -> Iterator[tuple[str, type]]:
    for package in PACKAGES:
        folder = importlib.import_module(f"mainstay.detectors.{package}".rstrip("."))
        for module in pkgutil.iter_modules(folder.__path__):
            for name, kind in vars(importlib.import_module(f"{folder.__name__}.{module.name}")).items():
                if inspect.isclass(kind) and kind.__module__ == f"{folder.__name__}.{module.name}":
                    yield f"{package}.{module.name}.{name}".lstrip("."), kind
                    if "Config" in vars(kind):
                        yield f"{package}.{module.name}.{name}.Config".lstrip("."), vars(kind)["Config"]


DATACLASSES = {name: kind for name, kind in types() if dataclasses.is_dataclass(kind)}
STRUCTS = {name: kind for name, kind in types() if issubclass(kind, msgspec.Struct)}


def listed(name: str, names: set[str]) -> bool:
    return name in names or name.rpartition(".")[2] in names


@pytest.mark.parametrize("name", DATACLASSES)
def test_a_dataclass_is_frozen_has_slots_and_takes_names(name: str) -> None:
    kind = DATACLASSES[name]
    assert kind.__dataclass_params__.frozen is not listed(name, CHANGE)  # type: ignore[attr-defined]
    assert ("__slots__" in vars(kind)) is not listed(name, NO_SLOTS)
    assert all(field.kw_only for field in dataclasses.fields(kind)) is not listed(name, BY_PLACE)


@pytest.mark.parametrize("name", STRUCTS)
def test_a_struct_is_frozen_takes_names_and_refuses_other_fields_where_people_write_it(name: str) -> None:
    kind = STRUCTS[name]
    parameters = inspect.signature(kind).parameters.values()
    assert kind.__struct_config__.frozen is not listed(name, CHANGE)
    assert all(one.kind is one.KEYWORD_ONLY for one in parameters) is not listed(name, BY_PLACE)
    assert kind.__struct_config__.forbid_unknown_fields is listed(name, NO_OTHER_FIELD)
