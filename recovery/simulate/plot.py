"""A report as a picture: scalable vector graphics, written by hand (no plotting library is among the dependencies).

Three panels, one under another: the ratio of each policy with its 95 % interval; what was lost, by cause; and the ratio
over a swept value, or over time where nothing was swept. Policies are distinguished by color, dash and marker together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from mainstay.recovery.simulate.axes import PlotAxis, around, labels, marks, spread
from mainstay.recovery.simulate.failure_processes import Estimate
from mainstay.recovery.simulate.report import CAUSES, PolicyReport, Report
from mainstay.recovery.simulate.scenario import SweepOver

WIDTH, ROW, LEFT, RIGHT = 960.0, 26.0, 236.0, 184.0
"""Pixels; the left margin holds a policy's words, the right one its figures."""
LETTER = 7.0
"""Width of one, on average, in the widest of the usual interface fonts."""
CHART = 260.0
"""Height of the line chart."""
COLORS = ("#0072b2", "#d55e00", "#009e73", "#aa4499", "#7a5c00", "#333333")
"""Apart under the usual color-vision deficiencies (after Okabe and Ito), and dark enough for white paper."""
DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 4", "12 4")
INK, FAINT, GRID = "#1b2730", "#5b6d7a", "#dde3e7"
SHADES = ("#56b4e9", "#0072b2", "#e69f00", "#d55e00", "#999999")
"""Of ``CAUSES``."""
CAUSE_WORDS = {
    "saving": "saving", "downtime": "restarts and re-joins", "repeated": "work done again",
    "waiting": "waiting for a node", "degraded": "continuing degraded",
}  # fmt: skip
SWEPT = {SweepOver.MTBF_HOURS: "hours between failures of one node", SweepOver.SPARES: "spare nodes"}


@dataclass
class _Page:
    parts: list[str] = field(default_factory=list)
    y: float = 0.0
    """Where the next panel begins."""

    def text(self, x: float, y: float, said: str, *, anchor: str = "start", fill: str = INK, weight: int = 400) -> None:
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}" font-weight="{weight}">'
            f"{escape(said)}</text>"
        )

    def line(self, *points: tuple[float, float], stroke: str = GRID, width: float = 1.0, dash: str = "") -> None:
        told = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<polyline points="{told}" fill="none" stroke="{stroke}" stroke-width="{width:g}"{dashed}/>')

    def rect(self, x: float, y: float, width: float, height: float, fill: str) -> None:
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}"/>')

    def marker(self, which: int, x: float, y: float) -> None:
        """One of six shapes, 4 pixels around a point."""
        shapes = (
            "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z", "M-4-4h8v8h-8z", "M0-5l5 9h-10z", "M0-5l5 5-5 5-5-5z",
            "M0 5l5-9h-10z", "M-4-4l8 8m0-8l-8 8",
        )  # fmt: skip
        color = COLORS[which % len(COLORS)]
        self.parts.append(
            f'<path transform="translate({x:.1f} {y:.1f})" d="{shapes[which % len(shapes)]}"'
            f' fill="{color}" stroke="{color}" stroke-width="1.5"/>'
        )

    def heading(self, said: str) -> None:
        self.text(16.0, self.y + 22.0, said, weight=600)
        self.y += 38.0

    def done(self, title: str) -> str:
        height = self.y + 12.0
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0f} {height:.0f}" width="{WIDTH:.0f}"'
            f' height="{height:.0f}" font-family="system-ui, sans-serif" font-size="12.5" role="img">'
            f'<title>{escape(title)}</title><rect width="100%" height="100%" fill="#ffffff"/>'
            + "".join(self.parts)
            + "</svg>\n"
        )


def svg(report: Report) -> str:
    """The whole picture as text."""
    page = _Page()
    scenario = report.scenario
    runs = "1 run" if scenario.seeds == 1 else f"{scenario.seeds:,} runs"
    title = f"What {scenario.gpus:,} GPUs keep of {report.days:g} days with {report.failures:,.0f} failures, {runs}"
    page.text(16.0, 28.0, title, weight=600)
    page.y = 36.0
    followed = [(number, told) for number, told in enumerate(report.policies) if told.ettr is not None]
    if followed:
        _ratios(page, followed)
        _losses(page, followed)
        _lines(page, report, followed)
    for told in report.policies:
        if told.impossible:
            page.text(16.0, page.y + 18.0, f"{told.policy.description}: not possible: {told.impossible}", fill=FAINT)
            page.y += 22.0
    return page.done(title)


def _ratios(page: _Page, followed: Sequence[tuple[int, PolicyReport]]) -> None:
    page.heading("Effective training time ratio, 95 % interval")
    found = [(number, told, told.ettr) for number, told in followed if told.ettr is not None]
    low, high = around([edge for _, _, e in found for edge in (e.low, e.high)], least_span=0.01, most=1.0)
    axis = PlotAxis(low, high, LEFT, WIDTH - RIGHT)
    bottom = page.y + ROW * len(found)
    _below(page, axis, page.y, bottom, "share of the time that became training")
    for place, (number, told, ratio) in enumerate(found):
        y = page.y + ROW * (place + 0.5)
        page.text(LEFT - 12.0, y + 4.0, told.policy.description, anchor="end")
        _whisker(page, number, (axis.at(ratio.low), y), (axis.at(ratio.high), y))
        page.marker(number, axis.at(ratio.mean), y)
        page.text(WIDTH - RIGHT + 14.0, y + 4.0, _interval(ratio), fill=FAINT)
    page.y = bottom + 48.0


def _interval(ratio: Estimate) -> str:
    return f"{ratio.mean:.4f}" + (f" ({ratio.low:.4f}-{ratio.high:.4f})" if ratio.runs > 1 else "")


def _whisker(page: _Page, number: int, start: tuple[float, float], stop: tuple[float, float]) -> None:
    """An interval with caps across its ends."""
    color = COLORS[number % len(COLORS)]
    page.line(start, stop, stroke=color, width=1.5)
    across = (0.0, 4.0) if start[1] == stop[1] else (4.0, 0.0)
    for x, y in (start, stop):
        page.line((x - across[0], y - across[1]), (x + across[0], y + across[1]), stroke=color, width=1.5)


def _losses(page: _Page, followed: Sequence[tuple[int, PolicyReport]]) -> None:
    page.heading("GPU-hours lost in a run, by cause")
    totals = [sum(told.lost_gpu_hours.values()) for _, told in followed]
    axis = PlotAxis(0.0, max(*totals, 1.0) * 1.02, LEFT, WIDTH - RIGHT)
    bottom = page.y + ROW * len(followed)
    _below(page, axis, page.y, bottom, "GPU-hours")
    for place, ((_, told), total) in enumerate(zip(followed, totals, strict=True)):
        y, begin = page.y + ROW * place, 0.0
        page.text(LEFT - 12.0, y + ROW / 2 + 4.0, told.policy.description, anchor="end")
        for cause, shade in zip(CAUSES, SHADES, strict=True):
            hours = told.lost_gpu_hours[cause]
            page.rect(axis.at(begin), y + 5.0, axis.at(begin + hours) - axis.at(begin), ROW - 10.0, shade)
            begin += hours
        page.text(WIDTH - RIGHT + 14.0, y + ROW / 2 + 4.0, f"{total:,.0f}", fill=FAINT)
    page.y = bottom + 40.0
    _cause_legend(page)


def _cause_legend(page: _Page) -> None:
    x = LEFT
    for cause, shade in zip(CAUSES, SHADES, strict=True):
        page.rect(x, page.y + 4.0, 11.0, 11.0, shade)
        page.text(x + 16.0, page.y + 14.0, CAUSE_WORDS[cause], fill=FAINT)
        x += 28.0 + LETTER * len(CAUSE_WORDS[cause])
    page.y += 28.0


def _lines(page: _Page, report: Report, followed: Sequence[tuple[int, PolicyReport]]) -> None:
    over = report.scenario.sweep_over
    page.heading("Ratio over the swept value, 95 % intervals" if over else "Ratio since the start, mean of the runs")
    series = _series(report, followed)
    every = [edge for points in series.values() for _, *edges in points for edge in edges]
    if not every:
        return
    low, high = around(every, least_span=0.01, most=1.0)
    xs = sorted({x for points in series.values() for x, *_ in points})
    logarithmic = over is SweepOver.MTBF_HOURS
    across = PlotAxis(xs[0] if over else 0.0, xs[-1], LEFT - 140.0, WIDTH - RIGHT, logarithmic=logarithmic)
    up = PlotAxis(low, high, page.y + CHART, page.y)
    _beside(page, up, across)
    _below(page, across, page.y, page.y + CHART, SWEPT[over] if over else "days", at=xs if over else None)
    for number, points in series.items():
        color, dash = COLORS[number % len(COLORS)], DASHES[number % len(DASHES)]
        page.line(*((across.at(x), up.at(mean)) for x, mean, *_ in points), stroke=color, width=1.8, dash=dash)
        if over:
            for x, mean, least, most in points:
                _whisker(page, number, (across.at(x), up.at(least)), (across.at(x), up.at(most)))
                page.marker(number, across.at(x), up.at(mean))
    page.y += CHART + 46.0
    _policy_legend(page, followed)


def _series(
    report: Report, followed: Sequence[tuple[int, PolicyReport]]
) -> dict[int, list[tuple[float, float, float, float]]]:
    """Policy → (x, mean, low, high) of its points; over time there is no interval."""
    if report.scenario.sweep_over is None:
        return {
            number: [(x, y, y, y) for x, y in zip(report.curve_days, told.curve, strict=True)]
            for number, told in followed
        }
    return {
        number: [
            (point.value, found.mean, found.low, found.high)
            for point in report.sweep
            if (found := point.ettr.get(told.policy.name)) is not None
        ]
        for number, told in followed
    }


def _policy_legend(page: _Page, followed: Sequence[tuple[int, PolicyReport]]) -> None:
    """Two columns: words never meet."""
    for place, (number, told) in enumerate(followed):
        x, y = LEFT - 140.0 + (place % 2) * 320.0, page.y + 20.0 * (place // 2) + 8.0
        color, dash = COLORS[number % len(COLORS)], DASHES[number % len(DASHES)]
        page.line((x, y), (x + 34.0, y), stroke=color, width=1.8, dash=dash)
        page.marker(number, x + 17.0, y)
        page.text(x + 42.0, y + 4.0, told.policy.description)
    page.y += 20.0 * ((len(followed) + 1) // 2) + 12.0


def _below(
    page: _Page, axis: PlotAxis, top: float, bottom: float, name: str, *, at: Sequence[float] | None = None
) -> None:
    """An axis along the bottom with marks that do not meet, and its name under them."""
    values = (
        marks(axis.low, axis.high, 6) if at is None else spread(at, axis, 14.0 + LETTER * max(map(len, labels(at))))
    )
    for value, told in zip(values, labels(values), strict=True):
        page.line((axis.at(value), top), (axis.at(value), bottom + 4.0))
        page.text(axis.at(value), bottom + 18.0, told, anchor="middle", fill=FAINT)
    page.line((axis.start, bottom), (axis.stop, bottom), stroke=FAINT)
    page.text((axis.start + axis.stop) / 2.0, bottom + 35.0, name, anchor="middle", fill=FAINT)


def _beside(page: _Page, up: PlotAxis, across: PlotAxis) -> None:
    """An axis along the left."""
    values = marks(up.low, up.high, 6)
    for value, told in zip(values, labels(values), strict=True):
        page.line((across.start, up.at(value)), (across.stop, up.at(value)))
        page.text(across.start - 8.0, up.at(value) + 4.0, told, anchor="end", fill=FAINT)
