"""The diagnosis in SuperBench's shapes: json, jsonl, md and html, byte for byte what it writes for the same labels.

Nodes that are UNKNOWN stand behind the defective ones, with category ``Unknown``; ``compat`` leaves them out, or
accepted, as SuperBench does. Numbers are written as pandas' ``to_json`` does: ten decimals, columns of whole numbers as
integers.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np

from mainstay.detectors.base import Floats
from mainstay.detectors.superbench.baseline import rounded
from mainstay.detectors.superbench.diagnose import SuperBenchDiagnosis
from mainstay.detectors.superbench.rules import Function
from mainstay.probes.core_types import Verdict

ABSENT: Final = "N/A"
UNKNOWN: Final = "Unknown"
"""The category of a node that could not be judged."""
_JSON_NAMES: Final = {
    "Accept": "diagnosis/accept",
    "Number Of Issues": "diagnosis/issue_num",
    "Category": "diagnosis/category",
    "Defective Details": "diagnosis/issue_details",
}
_TEN: Final = 10**10
"""pandas writes ten decimals."""
_TINY: Final = 1e-15
"""Below, pandas writes ten digits and an exponent."""
_USUAL: Final = 2**53 // _TEN


class Format(StrEnum):
    """What a diagnosis can be written as."""

    JSON = "json"
    JSONL = "jsonl"
    MD = "md"
    HTML = "html"


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """What a file says of a node."""

    accepted: bool
    category: str
    details: str
    issues: int


@dataclass(frozen=True, slots=True)
class Table:
    """A head, and one row of texts a node, which begins with its name."""

    head: list[str]
    rows: Sequence[tuple[str, ...]]


def write(
    diagnosis: SuperBenchDiagnosis, form: Format, *, everything: bool = False, compat: bool = False, digits: int = 2
) -> str:
    """The text of a diagnosis file.

    Args:
        diagnosis: what to write.
        form: in which shape.
        everything: all nodes with their raw metrics, not only those that are not accepted.
        compat: without UNKNOWN, as SuperBench writes it.
        digits: decimals of md and html.
    """
    places = list(range(len(diagnosis.verdicts))) if everything else not_accepted(diagnosis, compat=compat)
    machine = form in (Format.JSON, Format.JSONL)
    table = _table(diagnosis, places, everything=everything, compat=compat, digits=None if machine else digits)
    return {Format.JSON: _json, Format.JSONL: _jsonl, Format.MD: markdown, Format.HTML: html_of}[form](table)


def not_accepted(diagnosis: SuperBenchDiagnosis, *, compat: bool = False) -> list[int]:
    """Defective nodes by category and details, descending; then the unknown ones in the order of the file."""
    failed = sorted(
        diagnosis.nodes(Verdict.FAIL),
        key=lambda node: (diagnosis.categories[node], diagnosis.details[node]),
        reverse=True,
    )
    return failed if compat else failed + diagnosis.nodes(Verdict.UNKNOWN)


def describe_node(diagnosis: SuperBenchDiagnosis, node: int, *, compat: bool = False) -> NodeDescription:
    """What to say of a node; its issues are counted as SuperBench counts them, by commas."""
    details = diagnosis.details[node]
    if diagnosis.verdicts[node] is Verdict.FAIL:
        return NodeDescription(
            accepted=False, category=diagnosis.categories[node], details=details, issues=details.count(",") + 1
        )
    if diagnosis.verdicts[node] is Verdict.UNKNOWN and not compat:
        reasons = (*diagnosis.unknown[node], *diagnosis.unknown_of_all)
        return NodeDescription(accepted=False, category=UNKNOWN, details=",".join(reasons), issues=len(reasons))
    return NodeDescription(accepted=True, category=ABSENT, details=ABSENT, issues=0)


def _table(
    diagnosis: SuperBenchDiagnosis, places: list[int], *, everything: bool, compat: bool, digits: int | None
) -> Table:
    said = [describe_node(diagnosis, place, compat=compat) for place in places]
    text = json.dumps if digits is None else str
    head = ["index"]
    columns = [[text(diagnosis.results.nodes[place]) for place in places]]
    if everything:
        head += ["Accept", "Number Of Issues"]
        columns += [[text(one.accepted) for one in said], [text(one.issues) for one in said]]
    head += ["Category", "Defective Details"]
    columns += [[text(one.category) for one in said], [text(one.details) for one in said]]
    if everything:
        head += diagnosis.results.metrics
        columns += _raw(diagnosis, digits)
    else:
        head += diagnosis.metrics
        cells = diagnosis.cells[places]
        columns += [_column(cells[:, n], diagnosis.kinds.get(m), digits) for n, m in enumerate(diagnosis.metrics)]
    return Table(head, list(zip(*columns, strict=True)))


def _raw(diagnosis: SuperBenchDiagnosis, digits: int | None) -> list[list[str]]:
    """The metrics as they were measured, with what is no number among them."""
    values = diagnosis.results.values
    columns = [_column(values[:, number], Function.VALUE, digits) for number in range(values.shape[1])]
    for (node, number), other in diagnosis.results.others.items():
        if other is not None:
            columns[number][node] = json.dumps(other) if digits is None else str(other)
    return columns


def _column(cells: Floats, kind: Function | None, digits: int | None) -> list[str]:
    return _machine(cells) if digits is None else _people(cells, kind, digits)


def _machine(cells: Floats) -> list[str]:
    """JSON texts of one column."""
    absent = np.isnan(cells)
    known = cells[~absent]
    if np.isfinite(known).all() and (np.abs(known) < 2**63).all() and (known == np.trunc(known)).all():
        return [f'"{ABSENT}"' if math.isnan(cell) else str(int(cell)) for cell in cells.tolist()]
    usual = ~absent & (np.abs(cells) < _USUAL) & ((cells == 0) | (np.abs(cells) >= _TINY))
    texts = list(map(repr, _ten_decimals_of(np.where(usual, cells, 0.0)).tolist()))
    for row in np.flatnonzero(~usual).tolist():
        texts[row] = f'"{ABSENT}"' if absent[row] else _ten_decimals(float(cells[row]))
    return texts


def _ten_decimals_of(values: Floats) -> Floats:
    """As :func:`_ten_decimals` for many: below ``_USUAL`` the digits are an integer that a float holds exactly."""
    size = np.abs(values)
    whole = np.floor(size)
    scaled = (size - whole) * 1e10
    part = np.floor(scaled)
    rest = scaled - part
    part += (rest > 0.5) | ((rest == 0.5) & ((part == 0) | (part % 2 == 1)))
    shown = (whole * _TEN + part) / _TEN
    return np.where(values < 0, -shown, shown)


def _ten_decimals(value: float) -> str:
    """A float that is not usual as pandas writes it: the halves of ``ujson``'s ``Buffer_AppendDoubleUnchecked``.

    From ``_USUAL`` on a fraction is a multiple of 2**-33: its ten decimals never round up to one.
    """
    if math.isinf(value):
        return "null"
    size = abs(value)
    if size > 1e16 - 1 or size < _TINY:
        return repr(float(f"{value:.10g}"))
    part = round((size - int(size)) * 1e10)  # half to even
    return repr(float(f"{'-' if value < 0 else ''}{int(size)}.{part:010d}"))


def _people(cells: Floats, kind: Function | None, digits: int) -> list[str]:
    """Texts of one column as people read it: variances in percent."""
    if kind is Function.VARIANCE:
        return [ABSENT if math.isnan(cell) else f"{short(cell * 100, digits)}%" for cell in cells.tolist()]
    shown = [short(cell, digits) if kind is Function.VALUE else cell for cell in cells.tolist()]
    whole = all(math.isnan(cell) or (math.isfinite(cell) and cell == int(cell)) for cell in shown)
    return [ABSENT if math.isnan(cell) else str(int(cell) if whole else cell) for cell in shown]


def short(value: float, digits: int) -> float:
    """As :func:`rounded`; unchanged with 0 digits, or where it is no finite number."""
    return rounded(value, digits) if digits and math.isfinite(value) else value


def _json(table: Table) -> str:
    if not table.rows:
        return "[]"
    keys = [f"        {json.dumps(_JSON_NAMES.get(name, name))}: " for name in table.head]
    rows = (",\n".join(map("".join, zip(keys, row, strict=True))) for row in table.rows)
    return "[\n" + ",\n".join(f"    {{\n{row}\n    }}" for row in rows) + "\n]"


def _jsonl(table: Table) -> str:
    keys = [f"{json.dumps(name)}: " for name in (*table.head[1:], "index")]
    rows = (", ".join(map("".join, zip(keys, (*row[1:], row[0]), strict=True))) for row in table.rows)
    return "".join(f"{{{row}}}\n" for row in rows)


def markdown(table: Table) -> str:
    """A table of markdown; nothing without rows. A ``|`` or line end in a cell cannot break it."""
    if not table.rows:
        return ""
    lines = [table.head, ["---"] * len(table.head), *table.rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.splitlines()).replace("|", "\\|") if "|" in text or not text.isprintable() else text


def html_of(table: Table) -> str:
    """A table of HTML; nothing without rows. Every cell is escaped: names come from nodes."""
    if not table.rows:
        return ""
    parts = ["<table>", "<thead>", *_row("th", table.head), "</thead>", "<tbody>"]
    for row in table.rows:
        parts += _row("td", row)
    return "\n".join([*parts, "</tbody>", "</table>"])


def _row(tag: str, cells: Sequence[Any]) -> list[str]:
    return ["<tr>", *(f"<{tag}>{html.escape(cell, quote=False)}</{tag}>" for cell in cells), "</tr>"]
