"""``mainstay select``: choose benchmarks for nodes before a job, and backtest a policy on past decisions.

This module reads the files; the rest of the package is pure. Exit codes: 0 done, 2 invalid input.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cyclopts import App, Parameter

from mainstay.detectors.cli_errors import BAD_INPUT, AsJson, InputError, one_line, print_json, read_json
from mainstay.detectors.finding import join_names

if TYPE_CHECKING:  # commands import what they need when they run
    from rich.table import Table

    from mainstay.detectors.selector.audit import BenchmarkReason, PlanRecord
    from mainstay.detectors.selector.backtest import BacktestResult, SelectionDecision
    from mainstay.detectors.selector.fleet_history import FleetHistory, SelectionPolicy

_NODES_LISTED: Final = 8

select = App(name="select", help="Choose benchmarks for nodes.")
_one_line = one_line("mainstay select", {ValueError: BAD_INPUT})


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What the benchmarks must achieve."""

    target_risk: float | None = None
    """Limit the risk of an incident in the job, 0 to 1; the default without --keep is 0.1."""
    keep: float | None = None
    """Set, instead of a risk, the ratio of current defects that the selection must still find, 0 to 1."""
    spare_nodes: bool = True
    """Skip nodes of low risk."""
    uniform: bool = False
    """Use one set of benchmarks for all checked nodes; the default is one set per node."""
    worth: float | None = None
    """Set the value of an averted incident in node-hours; a benchmark that costs more than it averts does not run."""


@select.command
@_one_line
def plan(
    history: Path,
    /,
    goal: Goal = Goal(),
    *,
    nodes: str | None = None,
    hours: float = 24.0,
    at: float | None = None,
    as_json: AsJson = False,
) -> int:
    """Choose the benchmarks to run before a job, on which nodes, and explain each choice.

    Parameters
    ----------
    history
        Read the history of the fleet, as JSON (docs/how-to/selector.md, "The history file").
    nodes
        Set the nodes of the job, separated by commas; the default is all nodes of the history.
    hours
        Set the duration of the job in hours.
    at
        Set the start of the job in Unix seconds; the default is the end of the history.
    as_json
        Print only JSON on standard output.
    """
    from mainstay.detectors.selector.backtest import decide, learn_from
    from mainstay.detectors.selector.fleet_history import ValidationOpportunity

    past, wanted = _past(history), _wanted(goal)
    names = tuple(h.node for h in past.nodes) if nodes is None else tuple(n.strip() for n in nodes.split(","))
    start = max((h.until for h in past.nodes), default=0.0) if at is None else at
    if not hours > 0:
        raise InputError(f"--hours is {hours:g}: a job takes more than 0")
    so_far = past.until(start + 1e-3)
    occasion = ValidationOpportunity(at=start, nodes=names, job_hours=hours)
    decision = decide(so_far, learn_from(so_far), occasion, wanted)
    if as_json:
        print_json(decision)
    else:
        _show(decision)
    return 0


@select.command
@_one_line
def backtest(
    history: Path,
    /,
    goal: Goal = Goal(),
    *,
    as_json: AsJson = False,
) -> int:
    """Backtest a policy: decide each past opportunity again with only the knowledge of that time.

    Parameters
    ----------
    history
        Read the history of the fleet with its opportunities, as JSON (docs/how-to/selector.md, "The history file").
    as_json
        Print only JSON on standard output.
    """
    from mainstay.detectors.selector.backtest import replay

    past, wanted = _past(history), _wanted(goal)
    if not past.occasions:
        raise InputError(f"{history}: no occasion to decide again")
    outcome = replay(past, wanted)
    if as_json:
        print_json(outcome)
    else:
        print(_summary(outcome))
    return 0


def _past(file: Path) -> FleetHistory:
    from mainstay.detectors.selector.fleet_history import FleetHistory

    past = read_json(file, FleetHistory)
    if not past.benchmarks or not past.nodes:
        raise InputError(f"{file}: {'no benchmark' if not past.benchmarks else 'no node'} in it")
    return past


def _wanted(goal: Goal) -> SelectionPolicy:
    from mainstay.detectors.selector.fleet_history import SelectionPolicy

    for name, value in (("--target-risk", goal.target_risk), ("--keep", goal.keep)):
        if value is not None and not 0 <= value <= 1:
            raise InputError(f"{name} is {value:g}: give a share between 0 and 1")
    if goal.target_risk is not None and goal.keep is not None:
        raise InputError("give --target-risk or --keep, not both")
    if goal.worth is not None and not 0 < goal.worth < float("inf"):
        raise InputError(f"--worth is {goal.worth:g}: give node-hours above 0")
    target = 0.1 if goal.target_risk is goal.keep is None else goal.target_risk
    return SelectionPolicy(
        target_risk=target, keep=goal.keep, spare_nodes=goal.spare_nodes, worth=goal.worth, per_node=not goal.uniform
    )


def _summary(outcome: BacktestResult) -> str:
    all_defects = outcome.found + outcome.missed
    share = outcome.node_seconds / outcome.full_node_seconds if outcome.full_node_seconds else 0.0
    hit = f" ({outcome.found / all_defects:.1%})" if all_defects else ""
    blind = (
        f", of which {outcome.unknowable} it might have found by what did not run then" if outcome.unknowable else ""
    )
    decided = f"{outcome.skipped} without any check, {outcome.fallbacks} with the whole suite for lack of history"
    hours, full = outcome.node_seconds / 3600, outcome.full_node_seconds / 3600
    lines = [
        f"{outcome.occasions} occasions: {decided}",
        f"finds {outcome.found} of {all_defects} defects that the past found{hit}",
        f"misses {outcome.missed}{blind}",
        f"spends {hours:.1f} node-hours of {full:.1f} ({share:.1%})",
    ]
    return "\n".join(lines)


def _show(decision: SelectionDecision) -> None:
    from rich.console import Console
    from rich.table import Table

    said = decision.record
    console = Console(width=None if sys.stdout.isatty() else 150)
    print(said.reason)
    if said.learned:
        print(f"risk by {said.model}; coverage from {said.defects} past defects")
    if said.benchmarks:
        print(f"run on: {join_names(decision.nodes, _NODES_LISTED)}")
    table = Table(
        "", "benchmark", "nodes", "seconds", "risk off", "off per min", "risk after", "found", "alone", "why", box=None
    )
    for one in said.considered:
        table.add_row(*_row(one, said))
    console.print(table)
    if said.per_node:
        console.print(_sets(said))


def _sets(said: PlanRecord) -> Table:
    from rich.table import Table

    table = Table("node", "risk", "covered", "seconds", "runs", box=None)
    for one in said.nodes[:_NODES_LISTED]:
        runs = ", ".join(one.benchmarks) or "nothing"
        table.add_row(one.node, f"{one.p:.2%}", f"{one.covered:.0%}", f"{one.seconds:.0f}", runs)
    return table


def _row(one: BenchmarkReason, said: PlanRecord) -> tuple[str, ...]:
    cells = ("run" if one.chosen else "-", one.benchmark, str(one.nodes), f"{one.seconds:.0f}")
    if not said.learned:
        return (*cells, "?", "?", "?", "?", "?", one.reason)
    per_minute = f"{60 * one.gain_per_second:.3%}"
    return (*cells, f"{one.gain:.2%}", per_minute, f"{one.risk_after:.2%}", str(one.finds), str(one.alone), one.reason)
