"""Types that several threads decode are known to msgspec at import: it crashes where several are the first."""

from __future__ import annotations

import subprocess
import sys

import pytest

NOT_BUILT = """
import importlib, sys
import msgspec

def note(frame, event, _):
    if event == "call" and frame.f_code.co_name == "get_class_annotations":
        examined.append(name)

kinds = [(name, getattr(importlib.import_module(name.rpartition(".")[0]), name.rpartition(".")[2]))
         for name in sys.argv[1:]]
examined = []
for name, kind in kinds:
    sys.setprofile(note)
    try:
        msgspec.convert({}, kind)
    except msgspec.ValidationError:
        pass
    finally:
        sys.setprofile(None)
print(*dict.fromkeys(examined))
"""
"""Prints the types that msgspec examines only now. Given types in one process, as they are imported together."""


def _not_built(*names: str) -> list[str]:
    command = [sys.executable, "-c", NOT_BUILT, *(f"mainstay.{name}" for name in names)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=100).stdout.split()


def test_the_probe_sees_a_type_that_is_not_built() -> None:
    assert _not_built("probes.node_tasks._Orders") == ["mainstay.probes.node_tasks._Orders"]


@pytest.mark.parametrize("names", [
    ("probes.relay_credentials._Subject", "probes.catalog_store.Catalog", "probes.pair_tasks.BenchmarkResult"),
    ("recovery.job_request.JobRequest",),
    (
        "service.incidents.plans.RecoveryPlan",
        "service.criteria.store.Criterion",
        "service.events.repository.Event",
        "service.incidents.detector_status.JobAccount",
        "service.localization.findings.LocalizationVerdict",
    ),
], ids=["node and relay", "launcher", "service"])  # fmt: skip
def test_types_that_several_threads_decode_are_built_at_import(names: tuple[str, ...]) -> None:
    assert _not_built(*names) == []
