"""Decisions as a table for a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from mainstay.recovery.recovery_plan import NOTHING_POSSIBLE
from mainstay.recovery.strategy_choice import StrategyDecision, StrategyOption


def show_decision(made: StrategyDecision, console: Console) -> None:
    """Every option, best first, with what it is expected to cost; then a line why each other way cannot be.

    "Automatic" says whether a running job would choose it without being told.
    """
    table = Table(title="Every recovery strategy", title_justify="left")
    for name in ("way", "expected s", "at worst s", "rate", "automatic", "where the time goes"):
        table.add_column(
            name, justify="right" if name in {"expected s", "at worst s", "rate"} else "left", overflow="fold"
        )
    for option in made.options:
        if option.feasible:
            table.add_row(*_row(option), style="bold" if option.strategies == made.chosen else "")
    if table.row_count:
        console.print(table)
    for option in made.options:
        if not option.feasible:
            console.print(f"{', then '.join(option.strategies)}: {option.reason}", highlight=False, markup=False)
    nothing = made.explanation.startswith(NOTHING_POSSIBLE)  # its reasons are above
    console.print(NOTHING_POSSIBLE if nothing else made.explanation, markup=False)


def _row(option: StrategyOption) -> list[str]:
    parts = ", ".join(f"{part} {seconds:.3g}" for part, seconds in option.parts.items())
    numbers = [f"{option.expected_s:.4g}", f"{option.worst_s:.4g}", f"{option.rate:.1%}"]
    return [", then ".join(option.strategies), *numbers, "yes" if option.executable else "no", parts]
