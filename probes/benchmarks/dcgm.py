"""NVIDIA's own diagnostic, ``dcgmi diag``: pass or fail of each of its tests, by limits that it brings along."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from mainstay.probes.benchmarks.base import BenchmarkReadings, Clock, Device, Effort, SuiteTier
from mainstay.probes.benchmarks.defects import Defect
from mainstay.probes.benchmarks.external_tool import ExternalToolBenchmark
from mainstay.probes.benchmarks.result import Better, Metric

_STATUS = {"pass": 1.0, "warn": 0.5, "fail": 0.0}
"""What each status counts as; a test that was skipped or not run counts as nothing."""
_DEPLOYMENT = "software"
_WHOLE = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmOutcome:
    """One test on one entity, as dcgmi reports it."""

    test: str
    """``pcie``, ``memory``, ``targeted_power`` …; every deployment check is ``software``."""
    status: str
    """``pass``, ``warn``, ``fail``, ``skip`` or what else it said, in small letters."""
    entity: str
    """``GPU 3``, or ``GPU 0,1,2`` for a check of the machine."""
    words: str


class Dcgm(ExternalToolBenchmark):
    """``dcgmi diag -r 2``: some two minutes of software, PCIe and GPU memory tests.

    Each metric is the worst of its test over all GPUs: 1 passed, 0.5 with a warning, 0 failed; ``all`` counts tests too
    that have no metric here. Which GPU failed, and why, stands in the result's remark.
    """

    name: ClassVar[str] = "dcgm"
    catches: ClassVar[str] = "what NVIDIA's diagnostic finds: software, permissions, PCIe, GPU memory, row remapping"
    defects: ClassVar[tuple[Defect, ...]] = (Defect.GPU_MEMORY, Defect.SOFTWARE, Defect.HOST_LINK)
    tier: ClassVar[SuiteTier] = SuiteTier.STANDARD
    programs: ClassVar[tuple[str, ...]] = ("dcgmi",)
    run_seconds: ClassVar[float] = 130.0
    options: ClassVar[tuple[str, ...]] = ("-r", "2")
    tests: ClassVar[tuple[str, ...]] = (_DEPLOYMENT, "pcie", "memory")

    def tuned(self, effort: Effort) -> Self:
        """Return it unchanged: dcgmi repeats its own tests."""
        del effort
        return self

    def metrics(self, device: Device) -> tuple[Metric, ...]:
        del device
        return tuple(Metric(name=name, unit="", better=Better.EQUAL) for name in (*self.tests, _WHOLE))

    def measure(self, device: Device, clock: Clock) -> BenchmarkReadings:
        del device, clock
        return summed(read(self.output("dcgmi", "diag", *self.options, "-j", failure_is_an_answer=True)), self.tests)


class DcgmDeep(Dcgm):
    """``dcgmi diag -r 3``, its stress tests a minute or two each instead of up to three, so that it fits the suite."""

    name: ClassVar[str] = "dcgm_deep"
    catches: ClassVar[str] = "what NVIDIA's diagnostic finds under stress: power, thermal, arithmetic, memory bandwidth"
    defects: ClassVar[tuple[Defect, ...]] = (Defect.THERMAL, Defect.COMPUTE, Defect.GPU_MEMORY, Defect.HOST_LINK)
    tier: ClassVar[SuiteTier] = SuiteTier.DEEP
    run_seconds: ClassVar[float] = 560.0
    options: ClassVar[tuple[str, ...]] = (
        "-r", "3", "-p",
        "diagnostic.test_duration=120;targeted_stress.test_duration=60;targeted_power.test_duration=60",
    )  # fmt: skip
    tests: ClassVar[tuple[str, ...]] = (
        *Dcgm.tests, "diagnostic", "memory_bandwidth", "targeted_stress", "targeted_power",
    )  # fmt: skip


def read(text: str) -> list[DcgmOutcome]:
    """The outcomes in what ``dcgmi diag -j`` printed, of DCGM 2 to 4; lines around the document are passed over.

    Raises:
        ValueError: there is no document, it reports an error of its own, or it holds no test.
    """
    document = _document(text)
    for part in (document, *(value for value in document.values() if isinstance(value, dict))):
        for key in ("runtime_error", "Error"):
            if part.get(key):
                raise ValueError(f"dcgmi: {part[key]}"[:300])
    found = [outcome for category, test in _tests(document) for outcome in _outcomes(category, test)]
    if not found:
        raise ValueError("dcgmi ran no test")
    return found


def summed(outcomes: Sequence[DcgmOutcome], tests: Sequence[str]) -> BenchmarkReadings:
    """Return the worst status of each test and of the whole run; every status that is not a pass has its reason."""
    readings = BenchmarkReadings()
    for name in (*tests, _WHOLE):
        own = [one for one in outcomes if name in (one.test, _WHOLE)]
        counted = [_STATUS[one.status] for one in own if one.status in _STATUS]
        if counted:
            readings.values[name] = [min(counted)]
        if why := "; ".join(_said(own if name != _WHOLE else [one for one in own if one.test not in tests])):
            readings.problems[name] = why
        elif not counted:
            readings.problems[name] = "dcgmi did not run it"
    return readings


def _said(outcomes: Iterable[DcgmOutcome]) -> Iterator[str]:
    """Those that did not pass, worst first, in words."""
    amiss = [one for one in outcomes if one.status != "pass"]
    for one in sorted(amiss, key=lambda one: _STATUS.get(one.status, 2.0))[:4]:
        yield " ".join(filter(None, (one.entity, one.test, one.status, one.words)))


def _document(text: str) -> dict[str, Any]:
    decoder = json.JSONDecoder()
    at = text.find("{")
    while at >= 0:
        try:
            document, _ = decoder.raw_decode(text, at)
        except (json.JSONDecodeError, RecursionError):
            at = text.find("{", at + 1)
            continue
        if isinstance(document, dict):
            return document
    last = [line for line in text.splitlines() if line.strip()][-1:] or ["nothing"]
    raise ValueError(f"dcgmi printed no JSON: {last[0].strip()[:200]}")


def _tests(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(category, test): DCGM 2 and 3 nest them below "DCGM GPU Diagnostic", 4 below "DCGM Diagnostic" or at the top."""
    for part in (document, *(value for value in document.values() if isinstance(value, dict))):
        for category in _dicts(part.get("test_categories")):
            for test in _dicts(category.get("tests")):
                yield str(category.get("category", "")), test
        for test in _dicts(part.get("tests")):
            yield "", test


def _outcomes(category: str, test: dict[str, Any]) -> Iterator[DcgmOutcome]:
    name = str(test.get("name", "")).strip().lower().replace(" ", "_")
    name = _DEPLOYMENT if category.lower() == "deployment" else name.removeprefix("gpu_")
    for result in _dicts(test.get("results")):
        entity = result.get("gpu_ids", result.get("gpu_id", result.get("entity_id", "")))
        yield DcgmOutcome(
            test=name,
            status=str(result.get("status", "not run")).lower().removesuffix("ed"),
            entity=f"{result.get('entity_group', 'GPU')} {entity}".strip(),
            words=" ".join(_words(result.get("warnings")) or _words(result.get("info")))[:200],
        )


def _words(said: Any) -> list[str]:
    """Warnings are strings or objects, alone or in a list, as the version pleases."""
    many = said if isinstance(said, list) else [said] if said else []
    return [str(one.get("warning", one)) if isinstance(one, dict) else str(one) for one in many]


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
