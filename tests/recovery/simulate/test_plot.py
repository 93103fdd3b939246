"""The picture of a report: well-formed, true to the figures, and no two texts on top of one another."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from xml.etree import ElementTree as ET

import pytest

from mainstay.recovery.simulate.axes import PlotAxis, around, labels, marks, spread
from mainstay.recovery.simulate.plot import svg
from mainstay.recovery.simulate.report import Report, simulate
from mainstay.recovery.simulate.scenario import POLICIES, Scenario, SweepOver

JOB = Scenario(
    nodes=24, gpus_per_node=8, dp=6, pp=4, tp=8, mtbf_hours=240.0, repair_hours=6.0, spares=2, days=10.0, seeds=5,
    policies=tuple(POLICIES.values()),
)  # fmt: skip
NAMESPACE = "{http://www.w3.org/2000/svg}"
WIDE = 6.9
"""Pixels of a letter at 12.5 px in the widest of the usual interface fonts, on average."""


def texts(picture: str) -> list[tuple[float, float, float, float, str]]:
    """(left, top, right, bottom, words) of every text."""
    found = []
    for text in ET.fromstring(picture).iter(f"{NAMESPACE}text"):
        said, x, y = text.text or "", float(text.get("x", "0")), float(text.get("y", "0"))
        width = WIDE * len(said)
        left = {"start": x, "middle": x - width / 2.0, "end": x - width}[text.get("text-anchor", "start")]
        found.append((left, y - 10.0, left + width, y + 3.0, said))
    return found


@pytest.fixture(scope="module", params=["time", "spares", "mtbf", "one run", "no failure", "nothing possible"])
def report(request: pytest.FixtureRequest) -> Report:
    return simulate(
        {
            "time": JOB,
            "spares": replace(JOB, sweep_over=SweepOver.SPARES, sweep_values=(0, 1, 2, 3, 4, 5, 50, 100)),
            "mtbf": replace(JOB, sweep_over=SweepOver.MTBF_HOURS),
            "one run": replace(JOB, seeds=1),
            "no failure": replace(JOB, mtbf_hours=1e8, days=0.1),
            "nothing possible": replace(JOB, dp=1, pp=24, policies=tuple(p for p in JOB.policies if p.from_peer)),
        }[request.param]
    )


def test_it_is_a_picture_with_a_title(report: Report) -> None:
    root = ET.fromstring(svg(report))
    assert root.tag == f"{NAMESPACE}svg"
    assert "192 GPUs" in (root.findtext(f"{NAMESPACE}title") or "")


def test_no_two_texts_meet_and_none_leaves_the_page(report: Report) -> None:
    picture = svg(report)
    _, _, width, height = map(float, str(ET.fromstring(picture).get("viewBox")).split())
    found = texts(picture)
    for left, top, right, bottom, said in found:
        assert left >= 0.0, said
        assert top >= 0.0, said
        assert right <= width, said
        assert bottom <= height, said
    for one, other in combinations(found, 2):
        apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
        assert apart, f"{one[4]!r} and {other[4]!r} meet"


def test_every_policy_stands_with_its_figure_or_its_reason(report: Report) -> None:
    said = [text for *_, text in texts(svg(report))]
    for row in report.policies:
        if row.ettr is None:
            assert any(row.policy.description in text and "no live peer" in text for text in said)
        else:
            assert row.policy.description in said
            assert any(text.startswith(f"{row.ettr.mean:.4f}") for text in said)


def test_descriptions_are_escaped() -> None:
    strange = replace(POLICIES[next(iter(POLICIES))], description="a < b & c")
    picture = svg(simulate(replace(JOB, policies=(strange,), seeds=1)))
    assert "a &lt; b &amp; c" in picture
    ET.fromstring(picture)


def test_an_axis_leads_from_values_to_places() -> None:
    assert [PlotAxis(0.0, 10.0, 100.0, 200.0).at(v) for v in (0.0, 5.0, 10.0)] == [100.0, 150.0, 200.0]
    up = PlotAxis(1.0, 100.0, 90.0, 10.0, logarithmic=True)
    assert up.at(10.0) == pytest.approx(50.0)
    assert PlotAxis(3.0, 3.0, 0.0, 10.0).at(3.0) == 5.0


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.0, 1.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]), (0.87, 1.0, [0.9, 0.95, 1.0])],
)
def test_marks_are_round_and_inside(low, high, expected) -> None:
    assert marks(low, high, 6) == pytest.approx(expected)


def test_labels_are_as_short_as_tells_them_apart() -> None:
    assert labels([0.0, 0.5, 1.0]) == ["0.0", "0.5", "1.0"]
    assert labels([1500.0, 3000.0]) == ["1,500", "3,000"]
    assert labels([0.9975, 0.998]) == ["0.9975", "0.9980"]


def test_bounds_hold_all_values_and_no_impossible_ones() -> None:
    low, high = around([0.9979, 0.9981], least_span=0.01, most=1.0)
    assert low < 0.9979
    assert 0.9981 < high <= 1.0
    assert high - low >= 0.01
    low, high = around([0.1, 0.9], least_span=0.01, most=1.0)
    assert (low, high) == pytest.approx((0.06, 0.94))


def test_labels_that_would_meet_are_left_out() -> None:
    axis = PlotAxis(0.0, 100.0, 0.0, 200.0)
    assert spread([0, 1, 30, 40, 100], axis, 50.0) == [0, 30, 100]
