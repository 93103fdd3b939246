"""Verdicts for people: a table, worst first, and the one sentence that an on-call operator needs.

Pure: verdicts in, something that rich can print out. A verdict is always a word; color only repeats it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mainstay.detectors.cli_errors import plain_table
from mainstay.detectors.validation.criteria import BADNESS, HOW_TO_LEARN
from mainstay.detectors.validation.verdict import Criteria, Criterion, MetricVerdict, SuiteVerdict
from mainstay.probes.benchmarks.result import Better, format_value
from mainstay.probes.core_types import Verdict

_STYLES = {Verdict.PASS: "green", Verdict.WARN: "yellow", Verdict.UNKNOWN: "magenta", Verdict.FAIL: "bold red"}

LISTED = 8
"""Metrics left out that a report names; a native suite has fewer, a SuperBench file hundreds."""


def render(judged: SuiteVerdict) -> RenderableType:
    """A suite's verdicts, with the verdict on the whole at the end, where the eye is when the command returns."""
    parts: list[RenderableType] = [table(judged.verdicts)] if judged.verdicts else []
    parts.append(headline(judged))
    if judged.verdicts and all(verdict.criterion is None for verdict in judged.verdicts):
        parts.append(Text(f"\n{HOW_TO_LEARN}"))
    return Group(*parts)


def table(verdicts: Iterable[MetricVerdict]) -> Table:
    """One row a metric; what must be acted on comes last, next to the headline."""
    rows = sorted(verdicts, key=lambda verdict: BADNESS[verdict.verdict])  # stable: the suite's order within
    same = len({row.reason for row in rows}) == 1  # then the headline says it once
    names = ("verdict", "benchmark", "device", "metric", "measured", *(() if same else ("why",)))
    columns = plain_table(*names, right={"measured"}, folding="why")
    for row in rows:
        value = "-" if row.value is None else format_value(row.value, row.unit)
        why = () if same else (row.reason,)
        columns.add_row(_word(row.verdict), row.benchmark, row.device, row.metric, value, *why)
    return columns


def headline(judged: SuiteVerdict) -> Text:
    """``FAIL  worker-7, suite quick, 12 s: 1 of 18 metrics failed: …``."""
    seconds = judged.finished_at - judged.started_at
    text = Text.assemble(
        "\n", _word(judged.verdict), f"  {judged.host} ({judged.device}), suite {judged.suite}, {seconds:.0f} s\n"
    )
    text.append(f"{judged.reason[:1].upper()}{judged.reason[1:]}.")
    if judged.left_out:
        told = [f"{name} ({why})" for name, why in judged.left_out.items()]
        more = f"; and {len(told) - LISTED} more" if len(told) > LISTED else ""
        text.append(f"\nLeft out: {'; '.join(told[:LISTED])}{more}.")
    return text


def _word(verdict: Verdict) -> Text:
    return Text(verdict.value.upper(), style=_STYLES[verdict])


def criteria_table(criteria: Criteria) -> Table:
    """What was learned and what was refused, one row a metric."""
    numbers = ("typical", "warns beyond", "fails beyond", "runs", "sessions", "finds from")
    columns = plain_table("cohort", "benchmark", "metric", *numbers, "judged by", right=numbers, folding="judged by")
    for one in criteria.criteria:
        limit = one.low if one.better is Better.HIGHER else one.high
        edges = (_shown(one.center, one), _shown(one.warn, one), _shown(limit, one))
        columns.add_row(one.cohort, one.benchmark, one.metric, *edges, str(one.n), _sessions(one), *_judged_by(one))
    for none in criteria.refused:
        columns.add_row(none.cohort, none.benchmark, none.metric, f"none: {none.reason}")
    return columns


def _sessions(one: Criterion) -> str:
    """How many, and by how much they differ."""
    known = one.sessions
    if known is None:
        return "-"
    return str(known.count) if known.between is None else f"{known.count} ±{known.between:.1%}"


def _judged_by(one: Criterion) -> tuple[str, str]:
    """The slowdown of which 95 % are found, where that is known, and what decides."""
    kept = one.distribution
    if kept is None:
        return "-", "value" if one.better is Better.EQUAL else "median"
    left_out = f", {kept.excluded} slow runs left out" if kept.excluded else ""
    return f"{kept.detectable:.1%}", f"median, similarity {kept.alpha:.3f}{left_out}"


def _shown(value: float | None, criterion: Criterion) -> str:
    return "-" if value is None else format_value(value, criterion.unit)


def rows_table(names: Sequence[str], rows: Iterable[Iterable[str]]) -> Table:
    """Plain columns; the last one folds."""
    columns = plain_table(*names, folding=names[-1])
    for row in rows:
        columns.add_row(*row)
    return columns
