"""Decisions as a table for a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from recovery.decide import Decision, Option


def show_decision(made: Decision, console: Console) -> None:
    """Every option, best first, with what it is expected to cost; then a line why each other way cannot be.

    "By itself" says whether a running job would choose it without being told.
    """
    table = Table(title="Every way of recovering", title_justify="left")
    for name in ("way", "expected s", "at worst s", "rate", "by itself", "where the time goes"):
        table.add_column(
            name, justify="right" if name in {"expected s", "at worst s", "rate"} else "left", overflow="fold"
        )
    for option in made.options:
        if option.feasible:
            table.add_row(*_row(option), style="bold" if option.ways == made.chosen else "")
    if table.row_count:
        console.print(table)
    for option in made.options:
        if not option.feasible:
            console.print(f"{', then '.join(option.ways)}: {option.reason}", highlight=False, markup=False)
    console.print(made.explanation if made.chosen else "Nothing brings the job back by itself.", markup=False)


def _row(option: Option) -> list[str]:
    parts = ", ".join(f"{part} {seconds:.3g}" for part, seconds in option.parts.items())
    numbers = [f"{option.expected_s:.4g}", f"{option.worst_s:.4g}", f"{option.rate:.1%}"]
    return [", then ".join(option.ways), *numbers, "yes" if option.executable else "no", parts]
