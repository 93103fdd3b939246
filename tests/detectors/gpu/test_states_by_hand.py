"""Driver states and links of a few cards, reading by reading: counts, boundaries and sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mainstay.detectors.base import Samples
from mainstay.detectors.finding import Entity, Finding
from mainstay.detectors.gpu.device_state import DeviceStateDetector
from mainstay.detectors.gpu.nvlink import COUNTERS, NvlinkDetector
from mainstay.probes.core_types import RecommendedAction, Severity

A, S = RecommendedAction, Severity
NAN = math.nan
ECC, ACTION, UPTIME = "gpu_ecc_uncorrected_total", "gpu_recovery_action", "uptime_seconds"
FABRIC, MASK = "gpu_fabric_state", "gpu_fabric_health_mask"


def readings(of: dict[str, Any], step: float = 10.0) -> Samples:
    """Signal -> its readings; each a number of the only card, or one a card."""
    cards = max(len(one) if isinstance(one, Sequence) else 1 for line in of.values() for one in line)
    x = np.array([[np.broadcast_to(one, cards) for one in line] for line in of.values()], np.float32)
    return Samples(
        entities=tuple(Entity(node="n", device=f"g{i}") for i in range(cards)),
        groups=("c",) * cards,
        signals=tuple(of),
        t=step * np.arange(x.shape[1], dtype=np.float64),
        x=x.transpose(1, 0, 2),
    )


def summaries(found: Sequence[Finding]) -> list[tuple[float, str]]:
    return [(one.time, one.evidence.summary.removeprefix("n g0 ")) for one in found]


def states(of: dict[str, Any], step: float = 10.0) -> list[Finding]:
    return DeviceStateDetector().update(readings(of, step))


# what the driver says


@pytest.mark.parametrize(
    ("code", "text", "action"),
    [
        (1, "a reset of the GPU", A.RESET_GPU),
        (2, "a reboot of the node", A.REBOOT_NODE),
        (3, "peer-to-peer traffic to be drained", A.RESTART_JOB),
        (4, "the GPU to be drained and reset", A.RESET_GPU),
        (5, "a recovery of the IMEX domain", A.MONITOR),
        (6, "a reset of the bus", A.RESET_GPU),
        (7, "a reboot of the system", A.REBOOT_NODE),
    ],
)
def test_what_a_driver_asks_for(code: int, text: str, action: RecommendedAction) -> None:
    found = states({ACTION: [code, code, 0, 0]})
    assert found[0].evidence.summary == f"n g0 asks for {text} (the driver's recovery action {code})."
    assert found[0].evidence.numbers == {"state": float(code)}
    grave = code not in {3, 5}
    assert [(one.severity, one.recommended_action) for one in found[:-1]] == (
        [(S.WARNING, A.MONITOR), (S.CRITICAL, action)] if grave else [(S.INFO if code == 5 else S.WARNING, action)]
    )
    assert (found[-1].time, found[-1].active) == (30.0, False)
    assert found[-1].evidence.summary == "n g0 is read as healthy again: gpu recovery action is over."
    assert [one.confidence for one in found] == [1.0] * len(found)


def test_readings_of_an_action_are_counted() -> None:
    def severities(*values: float) -> list[Severity]:
        return [one.severity for one in states({ACTION: values}) if one.active]

    assert severities(1, 2, 1) == [S.WARNING] * 3, "another one begins again"
    assert severities(1, 0, 1) == [S.WARNING, S.CRITICAL], "one healthy reading ends nothing"
    assert severities(1, NAN, 1) == [S.WARNING, S.CRITICAL]
    assert severities(0, 0, 8) == severities(NAN) == []
    assert severities(1, 0, 0, 1) == [S.WARNING, S.WARNING]


@pytest.mark.parametrize(
    ("load", "severities"),
    [([1, 1, 1], [S.INFO, S.WARNING]), ([1, 1, 0, 1, 1], [S.INFO]), ([0.4] * 5, [S.INFO]), ([1, 1, NAN, 1], [S.INFO])],
)
def test_a_sick_imex_domain_matters_at_the_third_reading_under_load(
    load: list[float], severities: list[Severity]
) -> None:
    found = states({ACTION: [5] * len(load), "gpu_utilization_ratio": load})
    assert [one.severity for one in found] == severities


@pytest.mark.parametrize(
    ("rates", "numbers"), [([0.4, 0, 0], 1), ([1.4, 0, 1.2], 3), ([0, 2, 0.5], 2), ([0, 2, 0.6], 3)]
)
def test_memory_errors_are_counted(rates: list[float], numbers: int) -> None:
    """Rates of a second. The later ones repeat the sentence only when they change what follows: nothing does."""
    detector = DeviceStateDetector()
    (first,) = detector.update(readings({ECC: rates, ACTION: [0, NAN, NAN]}, 1.0))
    assert first.recommended_action is A.RESTART_JOB
    assert first.evidence.numbers["errors"] == pytest.approx(next(rate for rate in rates if rate))
    (again,) = detector.update(
        Samples(
            entities=detector.rows.entities, groups=("c",), signals=("gpu_sram_threshold_exceeded",),
            t=np.array([3.0, 4.0]), x=np.ones((2, 1, 1), np.float32),
        )
    )  # fmt: skip
    assert again.evidence.numbers["errors"] == pytest.approx(sum(rates))
    assert max(1, round(sum(rates))) == numbers
    assert again.evidence.summary == (
        "n g0 has passed the vendor's threshold of uncorrectable SRAM errors: it should be replaced."
    )
    assert (again.severity, again.recommended_action) == (S.CRITICAL, A.REPLACE)


@pytest.mark.parametrize(("asked", "action"), [(0.0, A.RESTART_JOB), (NAN, A.RESET_GPU)])
def test_where_a_driver_names_no_action_an_error_asks_for_a_reset(asked: float, action: RecommendedAction) -> None:
    (found,) = states({ECC: [0, 2.6], ACTION: [asked, NAN]})
    text = "n g0 had 3 memory error(s) that could not be corrected"
    more = "; the driver's recovery action says whether more is needed" if action is A.RESTART_JOB else ""
    assert (found.evidence.summary, found.recommended_action) == (f"{text}{more}.", action)
    assert found.severity is (S.WARNING if action is A.RESTART_JOB else S.CRITICAL)


@pytest.mark.parametrize(("seconds", "over"), [(3599.0, False), (3600.0, True)])
def test_an_error_is_news_for_an_hour(seconds: float, *, over: bool) -> None:
    found = states({ECC: [1, 0]}, seconds)
    assert [one.active for one in found] == ([True, False] if over else [True])
    assert [one.active for one in states({ECC: [1, NAN]}, seconds)] == [True], "a silent counter says nothing"


@pytest.mark.parametrize(("uptime", "over"), [(99.0, False), (98.9, True), (NAN, False)])
def test_a_reboot_ends_it(uptime: float, *, over: bool) -> None:
    found = states({ECC: [1, NAN], UPTIME: [100.0, uptime]})
    assert [one.active for one in found] == ([True, False] if over else [True])


WAITS = "has memory rows that wait for its next reset to be remapped."
CANNOT = "could not remap a row of its memory: it should be replaced."


@pytest.mark.parametrize(
    ("name", "values", "times"),
    [
        ("gpu_remap_pending", [1, 0, 0], [(0, WAITS), (20, "")]),
        ("gpu_remap_failed", [1, 1, 0, 0], [(10, CANNOT), (30, "")]),
        ("gpu_remap_failed", [1, 0, 1, 0], []),
        ("gpu_remap_pending", [1, 0, 1, 0], [(0, WAITS)]),
    ],
)
def test_rows_of_memory(name: str, values: list[float], times: list[tuple[float, str]]) -> None:
    found = summaries(states({name: values}))
    over = "is read as healthy again: row remap is over."
    assert found == [(float(time), text or over) for time, text in times]


@pytest.mark.parametrize(
    ("readings_", "uptime", "found"),
    [([3, *[2] * 12], 1e6, True), ([3, *[2] * 11], 1e6, False), ([2] * 12, 1e6, True), ([3, *[1] * 12], 1e6, True),
     ([1] * 20, 1e6, False), ([0] * 20, 1e6, False), ([2] * 12, 600.0, True), ([2] * 12, 599.0, False)],
)  # fmt: skip
def test_a_fabric_has_two_minutes_to_train(readings_: list[float], uptime: float, *, found: bool) -> None:
    findings = states({FABRIC: readings_, UPTIME: [uptime] * len(readings_)})
    assert [one.evidence.summary for one in findings] == ["n g0 has not finished joining its NVLink fabric."] * found


@pytest.mark.parametrize(("trained", "told"), [(8, True), (7, False)])
def test_a_card_that_never_joined_misses_what_half_of_its_peers_have(trained: int, *, told: bool) -> None:
    """Of sixteen."""
    line = [[3.0] * trained + [1.0] * (16 - trained)] * 12
    assert bool(states({FABRIC: line})) is told


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (0b01, "bandwidth is degraded"),
        (0b01_00, "a route is being recovered"),
        (0b01_00_00, "a route is unhealthy"),
        (0b01_00_00_00, "an access timed out"),
        (2 << 8, "its fabric is misconfigured"),
        (15 << 8 | 0b01_00_00_01, "bandwidth is degraded; an access timed out; its fabric is misconfigured"),
        (1 << 8, ""),
        (0b10_10_10_10, ""),
        (0b11, ""),
        (1 << 12, ""),
    ],
)
def test_a_fabric_says_what_is_wrong(mask: int, text: str) -> None:
    found = states({MASK: [mask] * 3})
    assert summaries(found) == ([(20.0, f"reports about its fabric: {text}.")] if text else [])
    assert states({MASK: [mask] * 2}) == []
    assert [one.active for one in states({MASK: [mask] * 3 + [0, 0]})] == ([True, False] if text else [])


# NVLink

ACTIVE, SUPPORTED, WORST = "gpu_nvlinks_active", "gpu_nvlinks_supported", "gpu_nvlink_worst_link"


def links(of: dict[str, Any], step: float = 10.0) -> list[Finding]:
    return NvlinkDetector().update(readings(of, step))


@pytest.mark.parametrize(
    ("counter", "rise", "burst", "text"),
    [
        (COUNTERS[0], 1.0, 10.0, "errors of the worst link"),
        (COUNTERS[1], 0.5, 1.0, "link recoveries"),
        (COUNTERS[2], 10.0, 10.0, "replays"),
        (COUNTERS[3], 10.0, 10.0, "CRC errors"),
    ],
)
def test_a_burst_is_two_of_three_readings(counter: object, rise: float, burst: float, text: str) -> None:
    name = getattr(counter, "name", "")
    assert (getattr(counter, "rise", None), getattr(counter, "burst", None)) == (rise, burst)
    for values, times in (
        ([burst, burst], [10.0]), ([burst, 0, burst], [20.0]), ([burst, 0, 0, burst], []), ([0.99 * burst] * 3, []),
    ):  # fmt: skip
        found = links({name: values})
        assert [one.time for one in found] == times
        for one in found:
            assert one.evidence.summary == f"NVLinks of n g0: {burst:g} {text} a second."
            assert one.evidence.numbers == {f"{text.replace(' ', '_')}_per_second": burst}
            assert (one.severity, one.confidence) == (S.WARNING, 0.95)


def test_a_burst_ends_after_sixty_readings_below_it() -> None:
    name = COUNTERS[3].name
    assert [one.active for one in links({name: [10.0, 10.0] + [9.0] * 59})] == [True]
    begins, ends = links({name: [10.0, 12.5] + [9.0] * 60, WORST: [NAN, 3.0] + [NAN] * 60})
    assert begins.evidence.summary == "NVLinks of n g0: 12.5 CRC errors a second; the worst is link 3."
    assert begins.evidence.numbers["worst_link"] == 3.0
    assert (ends.time, ends.evidence.summary) == (610.0, "The NVLinks of n g0 are as they should be.")


@pytest.mark.parametrize(
    ("values", "uptime", "found"),
    [
        ([18, 17, 17, 17], 1e6, [(30.0, "17 up, of 18 before")]),
        ([18, 17, 17, 18, 17], 1e6, []),
        ([18, 17, NAN, 17, 17], 1e6, [(40.0, "17 up, of 18 before")]),
        ([18, 17, 17, 17], 599.0, []),
        ([18, 17, 17, 17], 600.0, [(30.0, "17 up, of 18 before")]),
        ([16, 18, 17, 17, 17], 1e6, [(40.0, "17 up, of 18 before")]),
    ],
)
def test_links_that_went_down(values: list[float], uptime: float, found: list[tuple[float, str]]) -> None:
    told = links({ACTIVE: values, UPTIME: [uptime] * len(values)})
    assert [(one.time, one.evidence.summary) for one in told] == [
        (time, f"NVLinks of n g0: {text}.") for time, text in found
    ]
    for one in told:
        assert one.evidence.numbers == {"links_active": 17.0, "links_best": 18.0}


@pytest.mark.parametrize(("seconds", "gone"), [(300.0, True), (299.0, False)])
def test_a_card_without_any_link_for_five_minutes_is_taken_out(seconds: float, *, gone: bool) -> None:
    detector = NvlinkDetector()
    assert len(detector.update(readings({ACTIVE: [18, 0, 0, 0]}))) == 1
    later = readings({ACTIVE: [0]})
    found = detector.update(replace(later, t=np.array([30.0 + seconds])))
    assert [(one.severity, one.recommended_action, one.evidence.summary) for one in found] == (
        [(S.CRITICAL, A.RESET_GPU, "NVLinks of n g0: 0 up, of 18 before, for 300 s.")] if gone else []
    )


@pytest.mark.parametrize(("cards", "more", "told"), [(10, 8, True), (10, 7, False), (9, 8, True), (8, 7, False)])
def test_links_that_nearly_all_peers_have(cards: int, more: int, *, told: bool) -> None:
    """Four fifths of more than eight have all eighteen."""
    line = [[18.0] * more + [12.0] * (cards - more)] * 3
    found = links({ACTIVE: line, SUPPORTED: [18.0] * 3})
    assert {one.entity.device for one in found} == ({f"g{i}" for i in range(more, cards)} if told else set())
    for one in found:
        assert one.evidence.summary.endswith(": 12 up, and more at nearly all peers.")
    assert links({ACTIVE: line, SUPPORTED: [12.0] * 3}) == [], "it has what it can have"


def test_an_imex_domain_alone_is_judged_by_its_load() -> None:
    """A reset that is asked for under load stays what it is, and so does a fabric that never was unwell."""
    busy = {"gpu_utilization_ratio": [1.0] * 4}
    assert [one.evidence.numbers["state"] for one in states({ACTION: [4] * 4} | busy)] == [4.0, 4.0]
    line = [2.0] * 12 + [NAN, NAN]
    found = states({FABRIC: line, MASK: [NAN] * 12 + [0.0, 1.0]})
    assert summaries(found) == [(110.0, "has not finished joining its NVLink fabric.")]
