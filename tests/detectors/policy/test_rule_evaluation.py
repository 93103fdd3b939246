"""Rulings by hand: repeats, company, registers, failed actions, and how long a statement holds."""

from __future__ import annotations

from typing import Any

import pytest

from mainstay.detectors.policy.device_history import Burst, DeviceHistory
from mainstay.detectors.policy.load import load
from mainstay.detectors.policy.model import Family
from mainstay.detectors.policy.rule_evaluation import evaluate_burst, holds, leading_burst
from mainstay.probes.core_types import RecommendedAction, Severity

A = RecommendedAction
HOUR, DAY = 3600.0, 86_400.0
HEAD = 'title = "t"\ngroup = "{}"\nseverity = "{}"\nrecommended_action = "{}"\n'
GRAVE = 'severity = "critical"\nrecommended_action = "replace"\n'


def repeat(same: str, count: int = 3) -> str:
    ruling = 'severity = "warning", recommended_action = "monitor"'
    return f'repeat.r = {{ count = {count}, hours = 2, same = "{same}", {ruling} }}\n'


LIGHT = HEAD.format("firmware", "info", "restart_job")
POLICY = load(
    "[xid.800]\n" + LIGHT + repeat("device")
    + "[xid.801]\n" + LIGHT + repeat("link")
    + "[xid.802]\n" + LIGHT + repeat("place")
    + "[xid.803]\n" + LIGHT + repeat("jobs")
    + "[xid.804]\n" + LIGHT + "[xid.804.with.w]\ncodes = [805]\nminutes = 10\n" + GRAVE
    + "[xid.805]\n" + HEAD.format("log", "info", "none") + repeat("device", 2)
    + "[xid.806]\n" + LIGHT + "[xid.806.bits.b]\nregister = 1\nbits = [0, 4]\ncount = 2\n" + GRAVE
    + "[xid.807]\n" + LIGHT + "[xid.807.bits.b]\nregister = 0\nbits = [3]\nalone = true\n" + GRAVE
    + "[xid.808]\n" + HEAD.format("memory", "critical", "reset_gpu")
    + "[xid.809]\n" + HEAD.format("memory", "critical", "reboot_node") + "tries = 1\n"
    + "[xid.810]\n" + HEAD.format("link", "critical", "reset_gpu")
    + "[xid.811]\n" + HEAD.format("memory", "warning", "monitor")
    + "[xid.812]\nleads = true\n" + HEAD.format("summary", "critical", "reset_gpu")
    + "[xid.813]\n" + HEAD.format("power", "critical", "inspect_node")
    + "[xid.814]\necho = true\n" + HEAD.format("echo", "info", "none")
)  # fmt: skip


def burst(code: int, at: float, **over: Any) -> Burst:
    made = Burst(family=Family.XID, code=code, first=at, last=at, event=f"{code}-{at}")
    for name, value in over.items():
        setattr(made, name, value)
    return made


def ruled(*bursts: Burst, boots: tuple[float, ...] = (), resets: tuple[float, ...] = ()) -> Any:
    """What the last of them means."""
    return evaluate_burst(POLICY, DeviceHistory(bursts=list(bursts), resets=list(resets)), bursts[-1], boots)


def action(*bursts: Burst, **over: Any) -> RecommendedAction:
    found: RecommendedAction = ruled(*bursts, **over).ruling.recommended_action
    return found


@pytest.mark.parametrize(
    ("times", "found"),
    [
        ((0.0, 1.0, 2.0), A.MONITOR),
        ((0.0, 2.0), A.RESTART_JOB),
        ((-0.1, 1.0, 2.0), A.RESTART_JOB),
        ((0.0, 3.0, 2.0), A.RESTART_JOB),
    ],
)
def test_three_times_in_two_hours(times: tuple[float, ...], found: RecommendedAction) -> None:
    assert action(*(burst(800, hours * HOUR) for hours in times)) is found


def test_what_many_gpus_had_or_what_is_harmless_is_no_repeat() -> None:
    assert action(burst(800, 0.0), burst(800, 60.0, many=True), burst(800, 120.0)) is A.RESTART_JOB
    assert action(burst(800, 0.0), burst(800, 60.0), burst(800, 120.0, many=True)) is A.RESTART_JOB
    assert action(burst(805, 0.0), burst(805, 60.0)) is A.NONE, "it means nothing, however often"


@pytest.mark.parametrize(
    ("links", "found"),
    [(({1}, {1}, {1}), A.MONITOR), (({1}, {2}, {1}), A.RESTART_JOB), (({1}, set(), {1, 2}), A.MONITOR)],
)
def test_of_one_link(links: tuple[set[int], ...], found: RecommendedAction) -> None:
    assert action(*(burst(801, 60.0 * n, links=link) for n, link in enumerate(links))) is found


@pytest.mark.parametrize(
    ("places", "pids", "found"),
    [
        (((1,), (1,), (1,)), (1, 2, 3), A.MONITOR),
        (((1,), (1,), (1,)), (1, 2, 2), A.RESTART_JOB),
        (((1,), (2,), (1,)), (1, 2, 3), A.RESTART_JOB),
        (((1,), (1,), (1, 2, 3, 4)), (1, 2, 3), A.MONITOR),
        (((1,), (1,), (1, 2, 3, 4, 5)), (1, 2, 3), A.RESTART_JOB),  # a program's fault names many
    ],
)
def test_of_one_spot_by_several_processes(
    places: tuple[tuple[int, ...], ...], pids: tuple[int, ...], found: RecommendedAction
) -> None:
    made = [
        burst(802, 60.0 * n, places={(at, 0) for at in spots}, processes={pid})
        for n, (spots, pid) in enumerate(zip(places, pids, strict=True))
    ]
    assert action(*made) is found


@pytest.mark.parametrize(
    ("jobs", "found"),
    [(({"a"}, {"b"}, {"c"}), A.MONITOR), (({"a"}, {"b"}, {"a"}), A.RESTART_JOB)],
)
def test_of_several_jobs(jobs: tuple[set[str], ...], found: RecommendedAction) -> None:
    assert action(*(burst(803, 60.0 * n, jobs=job) for n, job in enumerate(jobs))) is found


@pytest.mark.parametrize(
    ("times", "pids", "found"),
    [
        ((0.0, 3600.0, 7200.0), ({1}, {2}, {3}), A.MONITOR),
        ((0.0, 3600.0, 7199.0), ({1}, {2}, {3}), A.RESTART_JOB),
        ((0.0, 3600.0, 7200.0), ({1}, {2}, {1}), A.RESTART_JOB),
    ],
)
def test_a_job_that_is_not_told_is_another_one_an_hour_later(
    times: tuple[float, ...], pids: tuple[set[int], ...], found: RecommendedAction
) -> None:
    made = [burst(803, time, processes=pid) for time, pid in zip(times, pids, strict=True)]
    assert action(*made) is found


@pytest.mark.parametrize(("apart", "found"), [(600.0, A.REPLACE), (-600.0, A.REPLACE), (601.0, A.RESTART_JOB)])
def test_company_within_minutes_means_more(apart: float, found: RecommendedAction) -> None:
    assert action(burst(805, 1000.0 + apart), burst(804, 1000.0)) is found


@pytest.mark.parametrize(
    ("first", "second", "apart", "found"),
    [
        ("(0x0, 0x1)", "(0x0, 0x10)", 60.0, A.REPLACE),
        ("(0x0, 0x1)", "(0x0, 0x10)", DAY, A.REPLACE),
        ("(0x0, 0x1)", "(0x0, 0x10)", DAY + 1.0, A.RESTART_JOB),
        ("(0x0, 0x2)", "(0x0, 0x10)", 60.0, A.RESTART_JOB),
        ("(0x11)", "(0x0, 0x10)", 60.0, A.RESTART_JOB),
    ],
)
def test_bits_of_a_register_count_twice_a_day(first: str, second: str, apart: float, found: RecommendedAction) -> None:
    assert action(burst(806, 0.0, text=first), burst(806, apart, text=second)) is found


@pytest.mark.parametrize(
    ("other", "apart", "found"),
    [(800, 300.0, A.RESTART_JOB), (800, 300.1, A.REPLACE), (814, 10.0, A.REPLACE), (807, 10.0, A.REPLACE)],
)
def test_bits_that_count_alone(other: int, apart: float, found: RecommendedAction) -> None:
    """An echo, and the same code, are no other error."""
    assert action(burst(other, 1000.0 - apart), burst(807, 1000.0, text="(0x8)")) is found


@pytest.mark.parametrize(
    ("over", "why"),
    [({"planned": True}, "during an orderly stop of the node"), ({"uptime": 299.9}, "while the node was booting"),
     ({"uptime": 300.0}, ""), ({}, "")],
)  # fmt: skip
def test_a_link_is_forgiven_at_boot_and_at_a_stop(over: dict[str, Any], why: str) -> None:
    found = ruled(burst(810, 0.0, **over))
    assert found.forgiven == why
    assert (found.ruling.severity, found.ruling.recommended_action) == (
        (Severity.INFO, A.NONE) if why else (Severity.CRITICAL, A.RESET_GPU)
    )
    assert ruled(burst(808, 0.0, **over)).forgiven == "", "memory is not"


@pytest.mark.parametrize(
    ("resets", "boots", "tries", "found"),
    [
        (0, 0, 0, A.RESET_GPU),
        (1, 0, 1, A.REBOOT_NODE),  # what a reset did not help
        (0, 1, 1, A.RESET_GPU),
        (2, 0, 2, A.INSPECT_NODE),
        (1, 2, 3, A.INSPECT_NODE),
        (2, 2, 4, A.REPLACE),
    ],
)
def test_after_actions_in_vain_comes_a_stronger_one(
    resets: int, boots: int, tries: int, found: RecommendedAction
) -> None:
    """A fault each hour, and a repair half an hour after each but the last."""
    made = [burst(808, HOUR * n) for n in range(resets + boots + 1)]
    times = [HOUR * n + HOUR / 2 for n in range(resets + boots)]
    said = ruled(*made, boots=tuple(times[:boots]), resets=tuple(times[boots:]))
    assert (said.tries, said.ruling.recommended_action) == (tries, found)
    assert (said.times, said.days) == (resets + boots + 1, pytest.approx((resets + boots) / 24))


def test_tries_of_a_code_of_its_own() -> None:
    """One may fail: then inspect; the part is replaced after four, however few may fail."""
    assert action(burst(809, 0.0), burst(809, HOUR), boots=(60.0,)) is A.INSPECT_NODE
    many = [burst(809, HOUR * n) for n in range(5)]
    assert action(*many, boots=tuple(HOUR * n + 60.0 for n in range(4))) is A.REPLACE
    assert action(*many[:4], boots=tuple(HOUR * n + 60.0 for n in range(3))) is A.INSPECT_NODE


@pytest.mark.parametrize(
    ("earlier", "mark", "tries"),
    [
        (burst(808, 0.0), 60.0, 1),
        (burst(809, 0.0), 60.0, 1),  # of the same group
        (burst(810, 0.0), 60.0, 0),  # a link's
        (burst(811, 0.0), 60.0, 0),  # that called for no action
        (burst(808, 0.0), 0.0, 0),  # the fault came with the repair, not before
        (burst(808, 0.0), 7 * DAY, 1),  # the repair and the fault of now at one moment
        (burst(808, -1.0), 60.0, 0),  # more than a week ago
    ],
)
def test_which_actions_were_in_vain(earlier: Burst, mark: float, tries: int) -> None:
    assert ruled(earlier, burst(808, 7 * DAY), boots=(mark,)).tries == tries


@pytest.mark.parametrize(
    ("code", "age", "held"),
    [(800, HOUR - 1, True), (800, HOUR, False), (811, DAY - 1, True), (811, DAY, False), (808, 900 * DAY, True)],
)
def test_how_long_a_statement_holds(code: int, age: float, *, held: bool) -> None:
    one = burst(code, 0.0)
    history = DeviceHistory(bursts=[one])
    assert holds(POLICY, evaluate_burst(POLICY, history, one), history, (), age) is held
    assert (leading_burst(POLICY, history, (), age) is not None) is held
    one.closed = True
    assert leading_burst(POLICY, history, (), age) is None


@pytest.mark.parametrize(
    ("code", "resets", "boots", "held"),
    [
        (808, [1.0], (), False), (808, [0.0], (), True), (808, [], (1.0,), False), (808, [], (0.0,), True),
        (809, [1.0], (), True), (809, [], (1.0,), False), (813, [1.0], (1.0,), True),
    ],
)  # fmt: skip
def test_which_repair_ends_a_statement(code: int, resets: list[float], boots: tuple[float, ...], *, held: bool) -> None:
    one = burst(code, 0.0)
    history = DeviceHistory(bursts=[one], resets=resets)
    assert holds(POLICY, evaluate_burst(POLICY, history, one, boots), history, boots, 10.0) is held


def leader(*bursts: Burst) -> int | None:
    found = leading_burst(POLICY, DeviceHistory(bursts=list(bursts)), (), 100.0)
    return None if found is None else found.burst.code


def test_who_speaks_for_a_device() -> None:
    assert leader() is None
    assert leader(burst(811, 5.0), burst(808, 0.0), burst(800, 9.0)) == 808, "the gravest"
    assert leader(burst(809, 0.0), burst(808, 5.0)) == 809, "the stronger action"
    assert leader(burst(808, 0.0), burst(810, 5.0)) == 810, "the latest"
    assert leader(burst(814, 5.0), burst(805, 0.0)) == 805, "an echo last"
    assert leader(burst(809, 5.0), burst(812, 0.0)) == 812, "the driver's own conclusion"
    assert leader(burst(813, 0.0), burst(812, 5.0)) == 813, "but for what needs a person"
    told = leading_burst(POLICY, DeviceHistory(bursts=[burst(812, 0.0), burst(812, 50.0)]), (), 100.0)
    assert told is not None
    assert told.burst.last == 50.0, "its newest alone"
