"""Every detector of the registry, held to the rules of ``detectors/base.py``: one test for each detector and rule.

A detector's own test file supplies ``example(seed)``: input in which it has something to say.
"""

from __future__ import annotations

import copy
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest

from mainstay.detectors.base import ArrayDetector, Detector, EventDetector, Samples
from mainstay.detectors.finding import Finding
from mainstay.detectors.registry import ARRAY_DETECTORS, DETECTORS, EVENT_DETECTORS
from tests.stored import assert_stored

EVERY = pytest.mark.parametrize("name", sorted(DETECTORS))
ARRAYS = pytest.mark.parametrize("name", sorted(ARRAY_DETECTORS))


@cache
def own_tests(name: str) -> ModuleType:
    """The detector's test module, which knows what its input looks like."""
    paths = list(Path(__file__).parent.glob(f"*/test_{name}.py"))
    assert len(paths) == 1, f"detector {name} needs one test_{name}.py with example(seed)"
    spec = importlib.util.spec_from_file_location(f"conformance_{name}", paths[0])
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@cache
def example(name: str, seed: int = 0) -> Any:
    """Made once, for all tests: no test may write to it."""
    data = own_tests(name).example(seed)
    if isinstance(data, Samples):
        data.x.setflags(write=False)
        data.t.setflags(write=False)
    return data


@cache
def findings_of(name: str) -> tuple[Finding, ...]:
    """What a new detector says of the whole example at once."""
    return tuple(run(DETECTORS[name](), example(name)))


def run(detector: Detector, data: Any, chunk: int = 10**9) -> list[Finding]:
    found: list[Finding] = []
    length = len(data.t) if isinstance(data, Samples) else len(data)
    for start in range(0, length, min(chunk, length)):
        stop = min(start + chunk, length)
        if isinstance(detector, ArrayDetector):
            found += detector.update(data.part(start, stop))
        else:
            assert isinstance(detector, EventDetector)
            found += detector.update(data[start:stop])
    return found


def as_bytes(findings: Sequence[Finding]) -> bytes:
    return msgspec.json.encode(findings)


def permuted(data: Samples, order: np.ndarray) -> Samples:
    return replace(
        data,
        entities=tuple(data.entities[i] for i in order),
        groups=tuple(data.groups[i] for i in order),
        x=data.x[:, :, order],
    )


@EVERY
def test_it_says_only_what_it_declares_and_says_something(name: str) -> None:
    found = findings_of(name)
    assert found, "the example must make the detector speak"
    assert {f.kind for f in found} <= DETECTORS[name].kinds
    assert {f.detector for f in found} == {name} == {DETECTORS[name].name}


@EVERY
def test_limits_and_findings_of_the_example_are_the_stored_ones(name: str) -> None:
    """A recording keeps its findings when the code changes.

    The first line holds the limits, which the documentation names. The third example has gaps.
    """
    limits = msgspec.to_builtins(DETECTORS[name].Config(), order="sorted")  # type: ignore[attr-defined]
    if "policy" in limits:  # its rules are in a file of their own
        limits["policy"] = limits["policy"]["settings"]
    examples = [example(name, 0), example(name, 1), with_gaps(example(name, 2))]
    examples += own_tests(name).others() if hasattr(own_tests(name), "others") else []
    found = [limits, *(each for data in examples for each in outcome(DETECTORS[name](), data))]
    assert_stored(Path(__file__).parent / "findings" / f"{name}.json", found)


def with_gaps(data: Any) -> Any:
    if not isinstance(data, Samples):
        return data
    return replace(data, x=np.where(np.random.default_rng(2).random(data.x.shape) < 0.03, np.nan, data.x))


def outcome(detector: Detector, data: Any) -> list[dict[str, Any]]:
    """All findings, and what the detector says of itself in the end."""
    found = [plain(finding) for finding in run(detector, data)]
    return [*found, msgspec.to_builtins(detector.status())] if isinstance(detector, ArrayDetector) else found


def plain(finding: Finding) -> dict[str, Any]:
    """A finding without the points of its charts, of which the last are kept."""
    made: dict[str, Any] = msgspec.to_builtins(finding)
    for series in made["evidence"]["series"]:
        series |= {axis: [len(series[axis]), *series[axis][-2:]] for axis in ("x", "y", "peers")}
    return made


@EVERY
def test_every_finding_can_be_shown(name: str) -> None:
    for finding in findings_of(name):
        assert finding.evidence.summary.endswith(".")
        assert 0.0 <= finding.confidence <= 1.0
        assert msgspec.json.decode(msgspec.json.encode(finding), type=Finding) == finding
        for series in finding.evidence.series:
            assert len(series.x) == len(series.y) > 0
            assert len(series.peers) in (0, len(series.x))
            assert all(np.isfinite(series.x)), "a chart's axis has no gaps"


@EVERY
def test_construction_only_stores(name: str) -> None:
    kind = DETECTORS[name]
    config = kind.Config()  # type: ignore[attr-defined]
    assert kind(config).config is config  # type: ignore[call-arg]
    assert repr(kind()) == f"{kind.__name__}({config!r})"
    with pytest.raises(AttributeError):
        setattr(config, fields(config)[0].name, 1)


@EVERY
def test_config_round_trips_through_json(name: str) -> None:
    config = DETECTORS[name].Config()  # type: ignore[attr-defined]
    assert msgspec.json.decode(msgspec.json.encode(config), type=type(config)) == config


@EVERY
def test_same_input_same_findings(name: str) -> None:
    used = DETECTORS[name]()
    run(used, example(name, seed=1))
    used.reset()
    assert as_bytes(run(used, example(name))) == as_bytes(findings_of(name)), "reset must forget everything"


@EVERY
@pytest.mark.parametrize("chunk", [1, 7])
def test_chunks_do_not_matter(name: str, chunk: int) -> None:
    assert as_bytes(run(DETECTORS[name](), example(name), chunk)) == as_bytes(findings_of(name))


@EVERY
def test_input_is_not_changed(name: str) -> None:
    data = example(name)
    before = copy.deepcopy(data)
    run(DETECTORS[name](), data)
    if isinstance(data, Samples):
        np.testing.assert_array_equal(data.x, before.x)
    else:
        assert data == before


@EVERY
def test_memory_is_bounded(name: str) -> None:
    config = DETECTORS[name].Config()  # type: ignore[attr-defined]
    if name in EVENT_DETECTORS:
        config = replace(config, remembered=3)  # so that a few events fill it
    detector = DETECTORS[name](config)  # type: ignore[call-arg]
    data = example(name)
    sizes = []
    for repetition in range(3):
        run(detector, own_tests(name).later(data, repetition) if hasattr(own_tests(name), "later") else data)
        sizes.append(deep_size(detector))
    assert sizes[-1] <= sizes[0] * 1.1, f"state grew: {sizes}"


def deep_size(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, dict):
        return sum(deep_size(k) + deep_size(v) for k, v in value.items()) + 64
    if isinstance(value, list | tuple | set | frozenset):
        return sum(map(deep_size, value)) + 64
    return (
        deep_size(vars(value)) if hasattr(value, "__dict__") and not isinstance(value, type) else sys.getsizeof(value)
    )


@ARRAYS
def test_missing_samples_are_survived_and_prove_nothing(name: str) -> None:
    data = example(name)
    rng = np.random.default_rng(5)
    holes = replace(data, x=np.where(rng.random(data.x.shape) < 0.05, np.nan, data.x))
    run(ARRAY_DETECTORS[name](), holes)
    nothing = replace(data, x=np.full_like(data.x, np.nan))
    assert run(ARRAY_DETECTORS[name](), nothing) == [], "no data is unknown, not a fault"


@ARRAYS
def test_silence_does_not_clear_a_finding(name: str) -> None:
    data = example(name)
    detector = ARRAY_DETECTORS[name]()
    stop = first_alarm(name) + 1
    held = {f.key for f in run(detector, data.part(0, stop)) if f.active}
    rest = data.part(stop, len(data.t))
    after = run(detector, replace(rest, x=np.full_like(rest.x, np.nan)))
    assert held
    assert not [f for f in after if not f.active], "missing samples are never healthy"


@cache
def first_alarm(name: str) -> int:
    detector, data = ARRAY_DETECTORS[name](), example(name)
    for k in range(len(data.t)):
        if detector.update(data.part(k, k + 1)):
            return k
    raise AssertionError("the example must make the detector speak")


@ARRAYS
def test_order_of_entities_does_not_matter(name: str) -> None:
    data = example(name)
    order = np.random.default_rng(3).permutation(len(data.entities))
    plain = findings_of(name)
    turned = run(ARRAY_DETECTORS[name](), permuted(data, order))
    assert sorted(map(str, turned)) == sorted(map(str, plain))
    half = len(data.t) // 2  # and it may change on the way
    detector = ARRAY_DETECTORS[name]()
    mixed = run(detector, data.part(0, half)) + run(detector, permuted(data.part(half, len(data.t)), order))
    assert sorted(f.key for f in mixed) == sorted(f.key for f in plain)


@ARRAYS
def test_who_leaves_is_forgotten_and_what_was_said_is_withdrawn(name: str) -> None:
    data = example(name)
    detector = ARRAY_DETECTORS[name]()
    stop = first_alarm(name) + 1
    held = {f.key: f for f in run(detector, data.part(0, stop)) if f.active}
    blamed = next(iter(held.values())).entity
    everybody = blamed not in data.entities  # it is about the whole job, which ends when all its ranks have left
    stay = np.array([i for i, e in enumerate(data.entities) if e != blamed and not everybody], np.intp)
    without = permuted(data.part(stop, len(data.t)), stay)
    after = run(detector, without)
    withdrawn = [f for f in after if not f.active and f.entity == blamed]
    assert {f.key for f in withdrawn} == {k for k, f in held.items() if f.entity == blamed}
    assert detector.rows.entities == without.entities
    assert detector.update(replace(without.part(0, 0), entities=(), groups=(), x=without.x[:0, :, :0])) == []


@ARRAYS
def test_nobody_at_all_is_fine(name: str) -> None:
    data = example(name)
    nobody = replace(data, entities=(), groups=(), x=data.x[:, :, :0])
    detector = ARRAY_DETECTORS[name]()
    assert run(detector, nobody) == []
    run(detector, data.part(0, first_alarm(name) + 1))
    assert [f for f in run(detector, nobody) if f.active] == [], "all have left"


@ARRAYS
def test_nonsense_is_refused_by_name(name: str) -> None:
    data = example(name)
    with pytest.raises(ValueError, match="shape"):
        replace(data, x=data.x[:, :, :-1])
    with pytest.raises(ValueError, match="group labels"):
        replace(data, groups=data.groups[:-1])
    with pytest.raises(ValueError, match="not finite"):
        replace(data, t=np.full_like(data.t, np.nan))
    twice = replace(data, entities=(data.entities[1], *data.entities[1:]))
    with pytest.raises(ValueError, match="stands twice"):
        ARRAY_DETECTORS[name]().update(twice)


def test_the_table_names_every_detector_by_its_own_name() -> None:
    assert DETECTORS.keys() == ARRAY_DETECTORS.keys() | EVENT_DETECTORS.keys()
    assert all(kind.name == name and kind.kinds for name, kind in DETECTORS.items())
