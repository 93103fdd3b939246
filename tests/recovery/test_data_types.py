"""Data types of memory, cost model and strategies cannot change, have slots, and most take their fields by name."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import pytest

MODULES = ("planner_input", "strategy_choice", "recovery_plan", "cost_inputs")
PACKAGES = ("memory", "cost_model", "strategies")
BY_PLACE = {
    "CopyBatch", "CostEstimate", "Cut", "DeviceCopier", "Fit", "FreeMemory",
    "Layout", "OptionStep", "Pins", "RecordDamage", "Rerouted", "Rows", "ScalingSample",
    "SlotChoice", "StridedCopier", "TensorSpec", "_Chunk",
}  # fmt: skip


def modules() -> Iterator[str]:
    yield from (f"mainstay.recovery.{name}" for name in MODULES)
    for package in PACKAGES:
        folder = importlib.import_module(f"mainstay.recovery.{package}")
        yield from (f"{folder.__name__}.{module.name}" for module in pkgutil.iter_modules(folder.__path__))


KINDS = {
    f"{module.removeprefix('mainstay.recovery.')}.{name}": kind
    for module in modules()
    for name, kind in vars(importlib.import_module(module)).items()
    if inspect.isclass(kind) and kind.__module__ == module and dataclasses.is_dataclass(kind)
}


@pytest.mark.parametrize("name", KINDS)
def test_a_dataclass_is_frozen_has_slots_and_takes_names(name: str) -> None:
    kind = KINDS[name]
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert "__slots__" in vars(kind)
    assert all(field.kw_only for field in dataclasses.fields(kind)) is not (name.rpartition(".")[2] in BY_PLACE)


def test_every_listed_type_is_there() -> None:
    assert {name.rpartition(".")[2] for name in KINDS} >= BY_PLACE
