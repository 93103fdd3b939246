"""``mainstay plan --scenario F``: estimate the cost of each recovery strategy for a described failure.

A scenario is a JSON object with the fields of ``mainstay.recovery.planner_input.PlannerInput``, some in short form::

    {
      "job": "gpt", "generation": 1, "step": 1200, "step_seconds": 4.0,
      "ranks": {"dp": 2, "pp": 2, "tp": 1, "nodes": ["node-a", "node-b"]},
      "state_bytes": 24000000000,
      "lost_nodes": ["node-b"], "failed_ranks": [],
      "live": 1200,
      "slots": {"epochs": [1199, 1200]},
      "parity": {"epochs": [1200], "groups": [[0, 2], [1, 3]]},
      "disk": {"epochs": [1000]},
      "standbys": {"node-a": 2}, "cold": {}, "replicated": true,
      "costs": {"net_Bps": 2.5e10},
      "cost_inputs": {"micro_batches": 16, "layers": 32, "able": ["reroute"], "mtbf_hours": 6000.0}
    }

- ``ranks``: the list of ``{rank, dp, pp, tp, node}``, or the grid: rank = (dp x PP + pp) x TP + tp, and each node gets
  an equal run of consecutive ranks.
- ``state_bytes``: per rank, or one number for all. ``live``: rank -> epoch, or one epoch for all survivors.
- ``slots``: the list of ``{node, rank, epoch, verified}``, or the epochs that every rank's node holds of it.
- ``parity``: the list of ``{node, epoch, ranks}``, or epochs and groups, with a row on each member's node.
- ``disk``: the list of ``{rank, epoch, node}``, or the epochs that every node can read for every rank.
- ``cost_inputs``: the inputs to evaluate every recovery strategy, also those that no coordinator supports yet; fields
  of ``mainstay.recovery.scenario_assumptions.ScenarioAssumptions``.

Required: job, generation, step, step_seconds, ranks, state_bytes. An unknown field is an error.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from inspect import get_annotations
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from mainstay.detectors.cli_errors import AsJson, Flag, InputError, one_line
from mainstay.recovery.cost_inputs import CostInputs
from mainstay.recovery.cost_model.allocation import Tenant
from mainstay.recovery.cost_model.redundancy import RedundancyScheme
from mainstay.recovery.cost_model.resources import ScalingSample
from mainstay.recovery.plan_table import show_decision
from mainstay.recovery.planner import plan_recovery
from mainstay.recovery.planner_input import (
    HeldCheckpoint,
    HeldParity,
    HeldSlot,
    MachineCosts,
    PlannerInput,
    RankPlacement,
)
from mainstay.recovery.recovery_plan import Alternative, RecoveryPlan
from mainstay.recovery.save_intervals import NODE_MTBF_HOURS, FailureRate, ProtectionTier, SaveCosts, levels
from mainstay.recovery.scenario_assumptions import ScenarioAssumptions, cost_inputs_of
from mainstay.recovery.strategy_choice import choose_strategy

_clear = one_line("mainstay plan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    dp: int
    pp: int
    nodes: tuple[str, ...]
    tp: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Epochs:
    epochs: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    epochs: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    parity: int = 1
    """Losses that a group outlives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The file as written."""

    job: str
    generation: int
    step: int
    step_seconds: float
    ranks: tuple[RankPlacement, ...] | Grid
    state_bytes: int | tuple[int, ...]
    failed_ranks: tuple[int, ...] = ()
    lost_nodes: tuple[str, ...] = ()
    live: int | dict[int, int] = field(default_factory=dict)
    slots: tuple[HeldSlot, ...] | Epochs = ()
    parity: tuple[HeldParity, ...] | Groups = ()
    disk: tuple[HeldCheckpoint, ...] | Epochs = ()
    standbys: dict[str, int] = field(default_factory=dict)
    cold: dict[str, int] = field(default_factory=dict)
    replicated: bool = True
    costs: MachineCosts = field(default_factory=MachineCosts)
    cost_inputs: ScenarioAssumptions | None = None


_PARTS: dict[str, tuple[type, type | None]] = {  # field: (class of a list's entries, class of the short form)
    "ranks": (RankPlacement, Grid),
    "slots": (HeldSlot, Epochs),
    "parity": (HeldParity, Groups),
    "disk": (HeldCheckpoint, Epochs),
    "costs": (MachineCosts, MachineCosts),
    "cost_inputs": (ScenarioAssumptions, ScenarioAssumptions),
}
_ASSUMPTIONS: dict[str, tuple[type, type | None]] = {
    "others": (Tenant, None),
    "schemes": (RedundancyScheme, None),
    "samples": (ScalingSample, None),
}
"""The same of the cost inputs."""


def read_scenario(path: Path) -> PlannerInput:
    """Read and check a scenario file.

    Raises:
        InputError: unreadable, not JSON, a field missing, unknown or of the wrong type, or values that contradict
            one another; one line that names file and field.
    """
    return _read(path)[0]


def _read(path: Path) -> tuple[PlannerInput, ScenarioAssumptions | None]:
    """The situation, and the cost inputs if the file has some; raises as ``read_scenario``."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        _check_values(raw, "")
        _check_names(raw)
        scenario = msgspec.convert(raw, Scenario, str_keys=True)
        return _situation(scenario), scenario.cost_inputs
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from error
    except RecursionError as error:
        raise InputError(f"{path}: nested too deeply to be a scenario") from error
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        raise InputError(f"{path}: {where.strip('.`')}: {what}" if where else f"{path}: {what}") from error
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error


def _cost_inputs(path: Path, situation: PlannerInput, assumptions: ScenarioAssumptions) -> CostInputs:
    try:
        return cost_inputs_of(situation, assumptions)
    except ValueError as error:
        raise InputError(f"{path}: cost_inputs: {error}") from error


_LEAST, _MOST = 1e-12, 1e18
"""Of a number that is not 0: far beyond any byte, second or rate, far within what arithmetic bears."""


def _check_values(raw: Any, where: str) -> None:
    """Refuse what JSON readers take and arithmetic or terminals do not.

    Raises:
        ValueError: names the field.
    """
    if isinstance(raw, str) and not raw.isprintable():
        raise ValueError(f"{where or 'the file'}: {raw[:40]!r} is no text that can be printed")
    if isinstance(raw, int | float) and raw and not _LEAST <= abs(raw) <= _MOST:  # NaN is neither
        shown = str(raw) if isinstance(raw, float) else f"one of {len(str(abs(raw)))} digits"
        raise ValueError(f"{where or 'the file'}: expected a number from {_LEAST:g} to {_MOST:g}, or 0, not {shown}")
    if isinstance(raw, dict):
        for name, value in raw.items():
            _check_values(name, where)
            _check_values(value, f"{where}.{name}" if where else name)
    elif isinstance(raw, list):
        for i, value in enumerate(raw):
            _check_values(value, f"{where}[{i}]")


def _check_names(raw: Any) -> None:
    """Refuse unknown fields, which are most often misspelled optional ones.

    Raises:
        ValueError: names the field.
    """
    if not isinstance(raw, dict):
        raise ValueError(f"expected one object with the fields of a scenario, not {type(raw).__name__}")  # noqa: TRY004
    _refuse_unknown(raw, Scenario, "")
    _check_entries(raw, _PARTS, "")
    cost_inputs = raw.get("cost_inputs")
    if isinstance(cost_inputs, dict):
        _check_entries(cost_inputs, _ASSUMPTIONS, "cost_inputs.")


def _check_entries(raw: dict[str, Any], parts: dict[str, tuple[type, type | None]], where: str) -> None:
    for name, (entry, short) in parts.items():
        value = raw.get(name)
        if isinstance(value, dict) and short:
            _refuse_unknown(value, short, f"{where}{name}.")
        for i, item in enumerate(value if isinstance(value, list) else ()):
            if isinstance(item, dict):
                _refuse_unknown(item, entry, f"{where}{name}[{i}].")


def _refuse_unknown(raw: dict[str, Any], known: type, where: str) -> None:
    names = list(get_annotations(known))
    unknown = next((key for key in raw if key not in names), None)
    if unknown is not None:
        raise ValueError(f"{where}{unknown}: unknown field; known are {', '.join(names)}")


def _situation(scenario: Scenario) -> PlannerInput:
    ranks = _grid(scenario.ranks) if isinstance(scenario.ranks, Grid) else scenario.ranks
    size = len(ranks)
    bytes_each, live = scenario.state_bytes, scenario.live
    gone = {p.rank for p in ranks if p.node in scenario.lost_nodes}.union(scenario.failed_ranks)
    written = {f.name: getattr(scenario, f.name) for f in fields(scenario) if f.name != "cost_inputs"}
    in_full = {
        "ranks": ranks,
        "state_bytes": (bytes_each,) * size if isinstance(bytes_each, int) else bytes_each,
        "live": {r: live for r in range(size) if r not in gone} if isinstance(live, int) else live,
        "slots": _slots(scenario.slots, ranks),
        "parity": _parity(scenario.parity, ranks),
        "disk": _disk(scenario.disk, size),
    }
    return PlannerInput(**written | in_full)


def _grid(grid: Grid) -> tuple[RankPlacement, ...]:
    size = grid.dp * grid.pp * grid.tp
    if min(grid.dp, grid.pp, grid.tp) < 1 or not grid.nodes or size % len(grid.nodes):
        raise ValueError(f"ranks: dp x pp x tp = {size} ranks do not divide over {len(grid.nodes)} nodes")
    if size > 1 << 20:
        raise ValueError(f"ranks: {size} ranks are more than the 1048576 allowed")  # larger than any cluster known
    share = size // len(grid.nodes)
    return tuple(
        RankPlacement(
            rank=r, dp=r // (grid.pp * grid.tp), pp=r // grid.tp % grid.pp, tp=r % grid.tp, node=grid.nodes[r // share]
        )
        for r in range(size)
    )


def _slots(slots: tuple[HeldSlot, ...] | Epochs, ranks: tuple[RankPlacement, ...]) -> tuple[HeldSlot, ...]:
    if not isinstance(slots, Epochs):
        return slots
    return tuple(HeldSlot(node=p.node, rank=p.rank, epoch=epoch) for p in ranks for epoch in slots.epochs)


def _parity(parity: tuple[HeldParity, ...] | Groups, ranks: tuple[RankPlacement, ...]) -> tuple[HeldParity, ...]:
    if not isinstance(parity, Groups):
        return parity
    wrong = next((r for group in parity.groups for r in group if not 0 <= r < len(ranks)), None)
    if wrong is not None:
        raise ValueError(f"parity.groups names rank {wrong}, which the job does not have")
    return tuple(
        HeldParity(node=ranks[rank].node, epoch=epoch, ranks=group, parity=parity.parity)
        for group in parity.groups
        for epoch in parity.epochs
        for rank in group
    )


def _disk(disk: tuple[HeldCheckpoint, ...] | Epochs, size: int) -> tuple[HeldCheckpoint, ...]:
    if not isinstance(disk, Epochs):
        return disk
    return tuple(HeldCheckpoint(rank=rank, epoch=epoch) for rank in range(size) for epoch in disk.epochs)


def plan(
    *, scenario: Path, tiers: Flag = False, node_mtbf_hours: float = NODE_MTBF_HOURS, as_json: AsJson = False
) -> int:
    """Estimate the cost of each recovery strategy for a failure.

    Args:
        scenario: Read the file that describes the job and its failure.
        tiers: Print instead the best save interval of each protection tier.
        node_mtbf_hours: Set the mean time between failures of one node, for --tiers.
        as_json: Print only JSON.
    """
    return run_tiers(scenario, node_mtbf_hours, as_json) if tiers else run_plan(scenario, as_json)


@_clear
def run_plan(path: Path, as_json: bool = False, *, console: Console | None = None) -> int:
    """Print the plan for a scenario file, as a table or as JSON (``mainstay.recovery.recovery_plan.RecoveryPlan``).

    With cost inputs a second table evaluates every recovery strategy; in JSON it is ``decision``.

    Returns:
        Exit code: 0 with a chosen strategy, 1 if nothing is feasible, 2 for a bad file (one line on stderr).
    """
    situation, assumptions = _read(path)
    cost_inputs = None if assumptions is None else _cost_inputs(path, situation, assumptions)
    made, decision = plan_recovery(situation), None if cost_inputs is None else choose_strategy(cost_inputs)
    if as_json:
        _print_json(msgspec.to_builtins(made) | ({} if decision is None else {"decision": decision}))
    else:
        console = console or Console()
        _show(made, console)
        if decision is not None:
            show_decision(decision, console)
    return 0 if made.chosen else 1


@_clear
def run_tiers(path: Path, mtbf_hours: float, as_json: bool = False, *, console: Console | None = None) -> int:
    """Print the best save interval of each protection tier in the job of a scenario file.

    Returns:
        Exit code: 0, or 2 for bad input (one line on stderr).
    """
    situation = read_scenario(path)
    if not mtbf_hours > 0.0:
        raise InputError(f"--node-mtbf-hours must be above 0, not {mtbf_hours:g}")
    if not situation.step_seconds:
        raise InputError(f"{path}: step_seconds: saves are counted in steps, which must take time")
    made = tiers_of(situation, mtbf_hours)
    if as_json:
        _print_json(made)
    else:
        _show_tiers(made, situation, console or Console())
    return 0


def _print_json(content: object) -> None:
    print(msgspec.json.format(msgspec.json.encode(content), indent=2).decode())  # noqa: T201 - a command prints


def tiers_of(situation: PlannerInput, mtbf_hours: float) -> tuple[ProtectionTier, ...]:
    """The best interval of every protection tier in the job of ``situation``."""
    nodes = {place.node for place in situation.ranks}
    costs = situation.costs
    prices = SaveCosts(
        state_bytes=max(situation.state_bytes),
        ranks_per_node=-(-len(situation.ranks) // len(nodes)),
        step_s=situation.step_seconds,
        parity_Bps=min(costs.net_Bps, costs.xor_Bps),
        disk_Bps=costs.disk_Bps,
    )
    return levels(prices, FailureRate(len(nodes), mtbf_hours))


def _show_tiers(made: tuple[ProtectionTier, ...], situation: PlannerInput, console: Console) -> None:
    table = Table(title=f"Protection tiers of job {situation.job}", title_justify="left")
    for name in ("tier", "restores", "save s", "failures apart h", "every steps", "every s", "lost share"):
        table.add_column(name, justify="left" if name in {"tier", "restores"} else "right", overflow="fold")
    for level in made:
        numbers = [f"{level.takes_s:.3g}", f"{level.mtbf_s / 3600.0:.4g}", str(level.every)]
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
