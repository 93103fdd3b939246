"""A short check names the bad node wherever it stands, and blames no node for a slow path or for other slow nodes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection

import msgspec
import pytest

from mainstay.detectors.localize.model import DeviceCheck, PairOutcome, PairResult
from mainstay.detectors.localize.preflight import (
    PreflightFindings,
    compare_devices,
    compare_pairs,
    next_pairs,
)
from mainstay.detectors.localize.topology import Endpoint

GOOD = DeviceCheck(device="cuda:0", cohort="H100", digest="a", rate=600e12)
USUAL = 2e9
HANGS = 0.0
Speed = Callable[[str, str], float | None]
"""Of a pair in B/s; None: missing."""


def measured(count: int, speed: Speed) -> tuple[list[PairResult], PreflightFindings]:
    """All rounds of ``count`` nodes, and what they say."""
    names, results = [f"node-{number}" for number in range(count)], list[PairResult]()
    for turn in itertools.count(1):
        pairs = next_pairs(names, results)
        assert len({node for pair in pairs for node in pair}) == 2 * len(pairs), "no node measures twice at a time"
        if not pairs:
            return results, compare_pairs(results)
        results += [result(a, b, speed(a, b), turn) for a, b in pairs]
    raise AssertionError


def result(a: str, b: str, speed: float | None, turn: int = 1) -> PairResult:
    outcome = PairOutcome.OK if speed else PairOutcome.HUNG if speed == HANGS else PairOutcome.MISSING
    note = "" if speed else f"{b} never came"
    return PairResult(
        a=Endpoint(a), b=Endpoint(b), outcome=outcome, round=turn, note=note, bandwidth={"1": speed} if speed else {}
    )


def slow(nodes: Collection[str], speed: float | None) -> Speed:
    return lambda a, b: speed if {a, b} & set(nodes) else USUAL


@pytest.mark.parametrize(("count", "rounds"), [(0, 0), (1, 0), (2, 1), (3, 3), (4, 2), (5, 3), (8, 2)])
def test_healthy_nodes_need_two_partners_each(count: int, rounds: int) -> None:
    results, found = measured(count, lambda a, b: USUAL)
    assert max((one.round for one in results), default=0) == rounds
    partners = [sum(f"node-{number}" in (one.a.node, one.b.node) for one in results) for number in range(count)]
    assert all(seen >= min(2, count - 1) for seen in partners)
    assert found == PreflightFindings()


@pytest.mark.parametrize("speed", [HANGS, USUAL / 100])
@pytest.mark.parametrize("count", [3, 4, 5, 8])
def test_one_bad_node_is_named_in_every_position(count: int, speed: float) -> None:
    for number in range(count):
        _, found = measured(count, slow([f"node-{number}"], speed))
        assert found.bad.keys() == {f"node-{number}"}
        assert found.remarks == []


def test_the_reason_names_the_partners_and_what_was_measured() -> None:
    assert measured(3, slow(["node-2"], 1e8))[1].bad == {
        "node-2": "transfers with node-1, node-0 reach at most 5% of the usual 2000 MB/s"
    }
    assert measured(3, slow(["node-2"], HANGS))[1].bad == {
        "node-2": "transfers with node-1, node-0 do not work (node-2 never came)"
    }


@pytest.mark.parametrize("count", [3, 4, 5, 8])
def test_a_slow_path_is_blamed_on_no_node(count: int) -> None:
    names = [f"node-{number}" for number in range(count)]
    for pair in itertools.combinations(names, 2):
        results, found = measured(count, lambda a, b, pair=pair: 1e8 if {a, b} == set(pair) else USUAL)
        assert not found.bad
        met = any({one.a.node, one.b.node} == set(pair) for one in results)
        assert len(found.remarks) == met
        assert all(f"the path between {pair[0]} and {pair[1]} (100 MB/s) is slow" in text for text in found.remarks)


@pytest.mark.parametrize("speed", [HANGS, 1e6])
def test_of_two_nodes_none_can_be_named(speed: float) -> None:
    _, found = measured(2, lambda a, b: speed)
    assert not found.bad
    assert len(found.remarks) == 1
    assert "node-0 and node-1" in found.remarks[0]
    assert "one of the nodes or the path" in found.remarks[0]
    assert measured(2, lambda a, b: 1e8)[1] == PreflightFindings(), "with one pair there is nothing to compare"


def test_bad_nodes_that_only_met_each_other_blame_no_third_one() -> None:
    for bad in itertools.combinations([f"node-{number}" for number in range(8)], 2):
        _, found = measured(8, slow(bad, 1e7))
        assert found.bad.keys() <= set(bad)
    assert measured(4, lambda a, b: HANGS)[1].bad == {}, "the network is down"


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8])
def test_a_busy_machine_is_no_bad_node(count: int) -> None:
    """Pairs scatter tenfold, but none is slow; and one that was slow once is measured again."""
    for seed in range(50):
        steps = itertools.count(seed)
        assert measured(count, lambda a, b, steps=steps: 250e6 * (1 + next(steps) * 7 % 10))[1] == PreflightFindings()
        once = itertools.count()
        results, found = measured(count, lambda a, b, once=once: 5e6 if next(once) == 0 else USUAL)
        assert found == PreflightFindings()
        assert len(results) == len(measured(count, lambda a, b: USUAL)[0]) + 1


def test_slow_networks_are_compared_with_themselves() -> None:
    assert measured(4, lambda a, b: 1e8)[1] == PreflightFindings()
    assert measured(4, slow(["node-1"], 3e7))[1].bad.keys() == {"node-1"}


def test_what_is_missing_is_no_evidence() -> None:
    assert measured(4, slow(["node-1"], None))[1] == PreflightFindings()


def test_many_paths_make_one_short_line() -> None:
    (line,) = measured(40, lambda a, b: HANGS)[1].remarks
    assert "and 32 more is slow" in line or ", and 32 more" in line
    assert len(line) < 800


# Devices


def changed(**fields: object) -> DeviceCheck:
    return msgspec.structs.replace(GOOD, **fields)


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        (changed(digest="b"), "cuda:0 computes other bits than 3 of 4 devices of its kind"),
        (changed(repeats=False), "cuda:0: the same computation gives different bits"),
        (changed(rate=200e12), "cuda:0 multiplies matrices at 33% of the usual speed"),
        (changed(problem="it gave no result"), "cuda:0: it gave no result"),
    ],
)
def test_a_bad_device_names_its_node(device: DeviceCheck, reason: str) -> None:
    for position in range(4):
        checks = {f"node-{number}": (device if number == position else GOOD,) for number in range(4)}
        assert compare_devices(checks) == PreflightFindings(bad={f"node-{position}": reason})


def test_healthy_devices_differ_a_little_and_other_kinds_by_more() -> None:
    other = changed(cohort="H200", digest="c", rate=100e12)
    checks = {"a": (GOOD, changed(rate=400e12)), "b": (GOOD,), "c": (other,), "d": (changed(rate=0.0),)}
    assert compare_devices(checks) == PreflightFindings()


def test_too_few_that_agree_name_no_device() -> None:
    found = compare_devices({"a": (GOOD,), "b": (changed(digest="b"),)})
    assert not found.bad
    assert found.remarks == ["devices of one kind compute different bits, and too few agree to name one: a, b"]


def test_all_devices_of_a_node_are_named() -> None:
    late = [changed(device=f"cuda:{number}", problem="it gave no result") for number in range(2)]
    assert compare_devices({"a": late}).bad == {"a": "cuda:0: it gave no result; cuda:1: it gave no result"}
