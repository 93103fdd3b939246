"""``mainstay plan FILE``: estimate the cost of each recovery strategy for a described failure."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from mainstay.detectors.cli_errors import AsJson, Flag, InputError, one_line, print_json
from mainstay.recovery.cost_inputs import CostInputs
from mainstay.recovery.planner import plan_case
from mainstay.recovery.planner_input import FailureCase, PlannerInput
from mainstay.recovery.recovery_plan import NOTHING_POSSIBLE, Alternative, RecoveryPlan
from mainstay.recovery.save_intervals import NODE_MTBF_HOURS, FailureRate, ProtectionTier, SaveCosts, levels
from mainstay.recovery.scenario_assumptions import ScenarioAssumptions, cost_inputs_of
from mainstay.recovery.scenario_file import read_file, read_scenario
from mainstay.recovery.strategy_choice import StrategyDecision, StrategyOption, choose_strategy

_clear = one_line("mainstay plan")


def _cost_inputs(path: Path, case: FailureCase, assumptions: ScenarioAssumptions) -> CostInputs:
    try:
        return cost_inputs_of(case, assumptions)
    except ValueError as error:
        raise InputError(f"{path}: cost_inputs: {error}") from error


def plan(
    scenario: Path,
    *,
    tiers: Flag = False,
    node_mtbf_hours: float = NODE_MTBF_HOURS,
    upload_rate: float = 0.0,
    as_json: AsJson = False,
) -> int:
    """Estimate the cost of each recovery strategy for a failure.

    Args:
        scenario: Read the file that describes the job and its failure.
        tiers: Print instead the best save interval of each protection tier.
        node_mtbf_hours: Set the mean time between failures of one node, for --tiers.
        upload_rate: Set the bytes per second at which a node uploads checkpoints, for --tiers; 0 means no uploads.
        as_json: Print only JSON.
    """
    if tiers:
        return run_tiers(scenario, node_mtbf_hours, as_json, upload_rate=upload_rate)
    return run_plan(scenario, as_json)


@_clear
def run_plan(path: Path, as_json: bool = False, *, console: Console | None = None) -> int:
    """Print the plan for a scenario file, as a table or as JSON (``mainstay.recovery.recovery_plan.RecoveryPlan``).

    With cost inputs a second table evaluates every recovery strategy; in JSON it is ``decision``.

    Returns:
        Exit code: 0 with a chosen strategy, 1 if nothing is feasible, 2 for a bad file (one line on stderr).
    """
    errors = Console(stderr=True)
    with errors.status("planning") if errors.is_terminal else nullcontext():
        situation, assumptions = read_file(path)
        case = FailureCase(situation)
        cost_inputs = None if assumptions is None else _cost_inputs(path, case, assumptions)
        made, decision = plan_case(case), None if cost_inputs is None else choose_strategy(cost_inputs)
        made, decision = _agreed(made, decision)
    if as_json:
        print_json(msgspec.to_builtins(made) | ({} if decision is None else {"decision": decision}), indent=2)
    else:
        console = console or Console()
        _show(made, console)
        if decision is not None:
            _show_decision(decision, console)
    return 0 if made.chosen or (decision and decision.chosen) else 1


@_clear
def run_tiers(
    path: Path, mtbf_hours: float, as_json: bool = False, *, upload_rate: float = 0.0, console: Console | None = None
) -> int:
    """Print the best save interval of each protection tier in the job of a scenario file.

    Returns:
        Exit code: 0, or 2 for bad input (one line on stderr).
    """
    situation = read_scenario(path)
    if not mtbf_hours > 0.0:
        raise InputError(f"--node-mtbf-hours must be above 0, not {mtbf_hours:g}")
    if not 0.0 <= upload_rate < float("inf"):
        raise InputError(f"--upload-rate must be a number of at least 0, not {upload_rate:g}")
    if not situation.step_seconds:
        raise InputError(f"{path}: step_seconds: saves are counted in steps, which must take time")
    made = tiers_of(situation, mtbf_hours, upload_rate)
    if as_json:
        print_json(made, indent=2)
    else:
        _show_tiers(made, situation, console or Console())
    return 0


def _agreed(plan: RecoveryPlan, decision: StrategyDecision | None) -> tuple[RecoveryPlan, StrategyDecision | None]:
    """The same with one answer: where one alone knows a strategy, the other's words lead to it."""
    if decision is None or bool(plan.chosen) is bool(decision.chosen):
        return plan, decision
    if decision.chosen:
        way = ", then ".join(decision.chosen)
        reasons = plan.explanation.removeprefix(NOTHING_POSSIBLE)
        told = f"No strategy restores every rank at once. {way} is possible: see its cost below.{reasons}"
        return replace(plan, explanation=told), decision
    found = f"Counted by workers, no strategy is certain to be possible. Rank by rank, {plan.chosen} is."
    return plan, replace(decision, explanation=found)


def tiers_of(situation: PlannerInput, mtbf_hours: float, upload_rate: float) -> tuple[ProtectionTier, ...]:
    """The best intervals of all protection tiers in the job of ``situation``; the upload tier if it has a rate."""
    nodes = {place.node for place in situation.ranks}
    costs = situation.costs
    prices = SaveCosts(
        state_bytes=max(situation.state_bytes),
        ranks_per_node=-(-len(situation.ranks) // len(nodes)),
        step_s=situation.step_seconds,
        copy_Bps=costs.copy_Bps,
        parity_Bps=min(costs.net_Bps, costs.xor_Bps),
        disk_Bps=costs.disk_Bps,
        upload_s=sum(situation.state_bytes) / upload_rate if upload_rate else None,
    )
    return levels(prices, FailureRate(len(nodes), mtbf_hours))


def _show_tiers(made: tuple[ProtectionTier, ...], situation: PlannerInput, console: Console) -> None:
    table = Table(title=f"Protection tiers of job {situation.job}", title_justify="left")
    for name in ("tier", "restores", "save s", "cost s", "failures apart h", "every steps", "every s", "lost share"):
        table.add_column(name, justify="left" if name in {"tier", "restores"} else "right", overflow="fold")
    for level in made:
        numbers = [f"{level.takes_s:.3g}", f"{level.cost_s:.3g}", f"{level.mtbf_s / 3600.0:.4g}", str(level.every)]
        numbers += [f"{level.every * situation.step_seconds:.4g}", f"{level.lost_share:.3%}"]
        table.add_row(level.name, level.brings_back, *numbers)
    console.print(table)


def _show(made: RecoveryPlan, console: Console) -> None:
    table = Table(title=f"Plan for job {made.job}, generation {made.generation}", title_justify="left")
    for name in ("strategy", "epoch", "seconds", "steps lost", "cost s"):
        table.add_column(name, justify="left" if name == "strategy" else "right", no_wrap=True)
    table.add_column("where the time goes, or why not", overflow="fold")
    for alternative in made.alternatives:
        table.add_row(*_row(alternative), style="bold" if alternative.strategy is made.chosen else "")
    console.print(table)
    console.print(made.explanation, highlight=False, markup=False)


def _row(alternative: Alternative) -> list[str]:
    if not alternative.feasible:
        return [alternative.strategy, "-", "-", "-", "-", alternative.reason]
    parts = ", ".join(f"{phase} {seconds:.3g}" for phase, seconds in alternative.parts.items())
    numbers = [f"{alternative.seconds:.3f}", str(alternative.steps_lost), f"{alternative.cost_seconds:.3f}"]
    return [alternative.strategy, str(alternative.epoch), *numbers, parts]


def _show_decision(made: StrategyDecision, console: Console) -> None:
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
            table.add_row(*_option_row(option), style="bold" if option.strategies == made.chosen else "")
    if table.row_count:
        console.print(table)
    for option in made.options:
        if not option.feasible:
            console.print(f"{', then '.join(option.strategies)}: {option.reason}", highlight=False, markup=False)
    nothing = made.explanation.startswith(NOTHING_POSSIBLE)  # its reasons are above
    console.print(NOTHING_POSSIBLE if nothing else made.explanation, markup=False)


def _option_row(option: StrategyOption) -> list[str]:
    parts = ", ".join(f"{part} {seconds:.3g}" for part, seconds in option.parts.items())
    numbers = [f"{option.expected_s:.4g}", f"{option.worst_s:.4g}", f"{option.rate:.1%}"]
    return [", then ".join(option.strategies), *numbers, "yes" if option.executable else "no", parts]
