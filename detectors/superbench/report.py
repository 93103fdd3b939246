"""The diagnosis for people: worst last, next to the sentence that an on-call operator needs.

Pure: a diagnosis in, something that rich can print out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mainstay.detectors.cli_errors import plain_table
from mainstay.detectors.finding import join_names
from mainstay.detectors.superbench.diagnose import SuperBenchDiagnosis
from mainstay.detectors.superbench.lint import LintIssue, coverage
from mainstay.detectors.superbench.names import SHOWN, counted, plain
from mainstay.detectors.superbench.output import describe_node, not_accepted
from mainstay.probes.core_types import Verdict

MOST_ROWS: Final = 25
"""Nodes on a screen; a file has them all."""
_STYLES: Final = {Verdict.PASS: "green", Verdict.UNKNOWN: "magenta", Verdict.FAIL: "bold red"}


def verdict_of(diagnosis: SuperBenchDiagnosis) -> Verdict:
    """The fleet's: FAIL if a node fails, else UNKNOWN if one is, else PASS."""
    return next((one for one in (Verdict.FAIL, Verdict.UNKNOWN) if one in diagnosis.verdicts), Verdict.PASS)


def render(diagnosis: SuperBenchDiagnosis, findings: Sequence[LintIssue]) -> RenderableType:
    """Findings, nodes that are not accepted, and the sentence on the whole."""
    parts: list[RenderableType] = []
    if findings:
        parts += [render_findings(findings), Text("")]
    alone = [node for node in not_accepted(diagnosis) if _own(diagnosis, node)]
    if alone:
        parts += [_nodes(diagnosis, alone), Text("")]
    if diagnosis.unknown_of_all:
        parts.append(Text("No node could be judged in full: of the rules above some see nothing.", style="magenta"))
    return Group(*parts, Text(f"{plain(coverage(diagnosis))}.", style="dim"), headline(diagnosis))


def _own(diagnosis: SuperBenchDiagnosis, node: int) -> bool:
    """Whether there is something to say of this node that does not hold for all."""
    return diagnosis.verdicts[node] is Verdict.FAIL or bool(diagnosis.unknown[node])


def _nodes(diagnosis: SuperBenchDiagnosis, places: list[int]) -> Table:
    table = plain_table("verdict", "node", "category", "why", folding="why")
    if len(places) > MOST_ROWS:
        table.add_row("", f"{len(places) - MOST_ROWS} more", "", "all of them: --output FILE")
    for place in reversed(places[:MOST_ROWS]):
        said = describe_node(diagnosis, place)
        verdict = diagnosis.verdicts[place]
        is_failed = verdict is Verdict.FAIL
        why = _short(said.details) if is_failed else join_names(diagnosis.unknown[place], SHOWN)
        cells = (diagnosis.results.nodes[place], said.category if is_failed else "", why)
        table.add_row(Text(verdict.upper(), _STYLES[verdict]), *(Text(plain(cell)) for cell in cells))
    return table


def _short(details: str, most: int = 240) -> str:
    """Three lines of a terminal."""
    return details if len(details) <= most else f"{details[:most]}… ({details.count(',') + 1} in all)"


def render_findings(findings: Sequence[LintIssue]) -> RenderableType:
    """What is wrong with the rules, one a row."""
    table = plain_table("rules", "finding", "what is wrong", folding="what is wrong", style="bold yellow")
    for one in findings:
        table.add_row(Text(plain(one.rule) or "(file)"), Text(one.code, "yellow"), Text(plain(one.message)))
    return table


def headline(diagnosis: SuperBenchDiagnosis) -> Text:
    """The sentence on the fleet: how many nodes are defective, unknown, or pass."""
    counts = {verdict: len(diagnosis.nodes(verdict)) for verdict in _STYLES}
    nodes = counted(len(diagnosis.verdicts), "node")
    verdict = verdict_of(diagnosis)
    said = {
        Verdict.FAIL: f"{counts[Verdict.FAIL]} of {nodes} defective, {counts[Verdict.UNKNOWN]} unknown, "
        f"{counts[Verdict.PASS]} pass.",
        Verdict.UNKNOWN: f"{counts[Verdict.UNKNOWN]} of {nodes} could not be judged in full; none is "
        f"labeled defective, {counts[Verdict.PASS]} pass.",
        Verdict.PASS: f"All of {nodes} pass every rule.",
    }[verdict]
    return Text.assemble((verdict.upper(), _STYLES[verdict]), f"  {said}")


def as_data(diagnosis: SuperBenchDiagnosis, findings: Sequence[LintIssue]) -> dict[str, Any]:
    """The same as plain data, for ``--json``."""
    return {
        "verdict": verdict_of(diagnosis).value,
        "counts": {verdict.value: len(diagnosis.nodes(verdict)) for verdict in _STYLES},
        "nodes": [
            {
                "node": diagnosis.results.nodes[place],
                "verdict": diagnosis.verdicts[place].value,
                "category": describe_node(diagnosis, place).category,
                "details": diagnosis.details[place] if diagnosis.verdicts[place] is Verdict.FAIL else "",
                "unknown": diagnosis.unknown[place],
            }
            for place in not_accepted(diagnosis)
        ],
        "unknown_of_all": diagnosis.unknown_of_all,
        "findings": list(findings),
        "coverage": coverage(diagnosis),
    }
