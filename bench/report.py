"""How a bench reports: one row a claim, printed as a table and written as JSON beside the others.

A bench exits 0 when it could measure, for any figures: a claim that does not hold is a row that records it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured claim."""

    claim: str
    figure: float | str | None
    unit: str
    target: str
    """What was promised, as people say it: ``<= 80``, ``bit-equal``."""
    holds: bool | None
    """None when there is no promise to hold."""
    kind: Literal["simulated", "replayed", "live"]
    baseline: str = ""
    """What it was measured against in the same run, with its figure."""
    n: int = 1
    """How many times it was measured."""
    note: str = ""


def target_file(name: str, argv: Sequence[str] | None = None) -> Path:
    """Where the results of bench ``name`` go: ``--json FILE``, or its place in ``bench/results``."""
    parser = argparse.ArgumentParser(prog=f"python -m bench.{name}")
    parser.add_argument("--json", type=Path, default=RESULTS / f"{name}.json", metavar="FILE")
    return Path(parser.parse_args(argv).json)


def publish(name: str, rows: Sequence[Row], file: Path | None = None) -> None:
    """Print the rows and write them to ``file`` (``bench/results/NAME.json`` if not given)."""
    _print(name, rows)
    file = file or RESULTS / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


def _print(name: str, rows: Sequence[Row]) -> None:
    table = Table("claim", "figure", "target", "holds", "n", "against", title=f"bench.{name}")
    for row in rows:
        holds = "-" if row.holds is None else "[green]yes[/]" if row.holds else "[red]no[/]"
        figure = f"{_figure(row.figure)} {row.unit}"
        table.add_row(escape(row.claim), escape(figure), escape(row.target), holds, str(row.n), escape(row.baseline))
    console = Console()
    console.print(table)
    for row in rows:
        if row.note:
            console.print(f"{row.claim}: {row.note}", markup=False, highlight=False)


def _figure(figure: float | str | None) -> str:
    return f"{figure:.4g}" if isinstance(figure, float) else str(figure)
