"""``mainstay plan --scenario F``: a described failure in, priced ways back out.

A scenario is a JSON object with the fields of ``recovery.situation.Situation``; a few may be written shorter::

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
      "outlook": {"micro_batches": 16, "layers": 32, "able": ["reroute"], "mtbf_hours": 6000.0}
    }

- ``ranks``: the list of ``{rank, dp, pp, tp, node}``, or the grid: rank = (dp x PP + pp) x TP + tp, and each node gets
  an equal run of consecutive ranks.
- ``state_bytes``: per rank, or one number for all. ``live``: rank -> epoch, or one epoch for all survivors.
- ``slots``: the list of ``{node, rank, epoch, verified}``, or the epochs that every rank's node holds of it.
- ``parity``: the list of ``{node, epoch, ranks}``, or epochs and groups, with a row on each member's node.
- ``disk``: the list of ``{rank, epoch, node}``, or the epochs that every node can read for every rank.
- ``outlook``: what is needed to weigh every way of recovering, also those that no coordinator carries out yet; fields
  of ``recovery.prospects.Prospects``.

Required: job, generation, step, step_seconds, ranks, state_bytes. A field that is not known is an error, not a remark.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from recovery.cadence import Hazard, Level, Prices, levels
from recovery.decide import decide
from recovery.outlook import Outlook
from recovery.plan import Alternative, Plan
from recovery.plan_table import show_decision
from recovery.planner import plan
from recovery.pricing.allocation import Tenant
from recovery.pricing.redundancy import Scheme
from recovery.pricing.resources import Sample
from recovery.prospects import Prospects, outlook_of
from recovery.situation import Costs, DiskHold, ParityHold, Place, Situation, SlotHold


class ScenarioError(ValueError):
    """The file is no scenario; the message names the file and the field or line."""


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
    ranks: tuple[Place, ...] | Grid
    state_bytes: int | tuple[int, ...]
    failed_ranks: tuple[int, ...] = ()
    lost_nodes: tuple[str, ...] = ()
    live: int | dict[int, int] = field(default_factory=dict)
    slots: tuple[SlotHold, ...] | Epochs = ()
    parity: tuple[ParityHold, ...] | Groups = ()
    disk: tuple[DiskHold, ...] | Epochs = ()
    standbys: dict[str, int] = field(default_factory=dict)
    cold: dict[str, int] = field(default_factory=dict)
    replicated: bool = True
    costs: Costs = field(default_factory=Costs)
    outlook: Prospects | None = None


_PARTS: dict[str, tuple[type, type | None]] = {  # field: (class of a list's entries, class of the short form)
    "ranks": (Place, Grid),
    "slots": (SlotHold, Epochs),
    "parity": (ParityHold, Groups),
    "disk": (DiskHold, Epochs),
    "costs": (Costs, Costs),
    "outlook": (Prospects, Prospects),
}
_PROSPECTS: dict[str, type] = {"others": Tenant, "schemes": Scheme, "samples": Sample}
"""Lists of the outlook, and the class of their entries."""


def read_scenario(path: Path) -> Situation:
    """Read and check a scenario file.

    Raises:
        ScenarioError: unreadable, not JSON, a field missing, unknown or of the wrong type, or values that contradict
            one another; one line that names file and field.
    """
    return _read(path)[0]


def _read(path: Path) -> tuple[Situation, Prospects | None]:
    """The situation, and the prospects if the file has some; raises as ``read_scenario``."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        _check_values(raw, "")
        _check_names(raw)
        scenario = msgspec.convert(raw, Scenario, str_keys=True)
        return _situation(scenario), scenario.outlook
    except OSError as error:
        raise ScenarioError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{path}: not UTF-8 text (byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise ScenarioError(f"{path}: line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from error
    except RecursionError as error:
        raise ScenarioError(f"{path}: nested too deeply to be a scenario") from error
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        raise ScenarioError(f"{path}: {where.strip('.`')}: {what}" if where else f"{path}: {what}") from error
    except ValueError as error:
        raise ScenarioError(f"{path}: {error}") from error


def _outlook(path: Path, situation: Situation, prospects: Prospects) -> Outlook:
    try:
        return outlook_of(situation, prospects)
    except ValueError as error:
        raise ScenarioError(f"{path}: outlook: {error}") from error


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
    """Refuse unknown fields, which are most often misspelt optional ones.

    Raises:
        ValueError: names the field.
    """
    if not isinstance(raw, dict):
        raise ValueError(f"expected one object with the fields of a scenario, not {type(raw).__name__}")  # noqa: TRY004
    _refuse_unknown(raw, Scenario, "")
    for name, (entry, short) in _PARTS.items():
        value = raw.get(name)
        if isinstance(value, dict) and short:
            _refuse_unknown(value, short, f"{name}.")
        for i, item in enumerate(value if isinstance(value, list) else ()):
            if isinstance(item, dict):
                _refuse_unknown(item, entry, f"{name}[{i}].")
    outlook = raw.get("outlook")
    if isinstance(outlook, dict):
        _check_prospects(outlook)


def _check_prospects(raw: dict[str, Any]) -> None:
    for name, entry in _PROSPECTS.items():
        items = raw.get(name)
        for i, item in enumerate(items if isinstance(items, list) else ()):
            if isinstance(item, dict):
                _refuse_unknown(item, entry, f"outlook.{name}[{i}].")


def _refuse_unknown(raw: dict[str, Any], known: type, where: str) -> None:
    names = [f.name for f in fields(known)]
    unknown = next((key for key in raw if key not in names), None)
    if unknown is not None:
        raise ValueError(f"{where}{unknown}: unknown field; known are {', '.join(names)}")


def _situation(scenario: Scenario) -> Situation:
    ranks = _grid(scenario.ranks) if isinstance(scenario.ranks, Grid) else scenario.ranks
    size = len(ranks)
    bytes_each, live = scenario.state_bytes, scenario.live
    gone = {p.rank for p in ranks if p.node in scenario.lost_nodes}.union(scenario.failed_ranks)
    return Situation(
        job=scenario.job,
        generation=scenario.generation,
        step=scenario.step,
        step_seconds=scenario.step_seconds,
        ranks=ranks,
        state_bytes=(bytes_each,) * size if isinstance(bytes_each, int) else bytes_each,
        failed_ranks=scenario.failed_ranks,
        lost_nodes=scenario.lost_nodes,
        live={r: live for r in range(size) if r not in gone} if isinstance(live, int) else live,
        slots=_slots(scenario.slots, ranks),
        parity=_parity(scenario.parity, ranks),
        disk=_disk(scenario.disk, size),
        standbys=scenario.standbys,
        cold=scenario.cold,
        replicated=scenario.replicated,
        costs=scenario.costs,
    )


def _grid(grid: Grid) -> tuple[Place, ...]:
    size = grid.dp * grid.pp * grid.tp
    if min(grid.dp, grid.pp, grid.tp) < 1 or not grid.nodes or size % len(grid.nodes):
        raise ValueError(f"ranks: dp x pp x tp = {size} ranks do not divide over {len(grid.nodes)} nodes")
    if size > 1 << 20:
        raise ValueError(f"ranks: {size} ranks are more than the 1048576 allowed")  # larger than any cluster known
    share = size // len(grid.nodes)
    return tuple(
        Place(
            rank=r, dp=r // (grid.pp * grid.tp), pp=r // grid.tp % grid.pp, tp=r % grid.tp, node=grid.nodes[r // share]
        )
        for r in range(size)
    )


def _slots(slots: tuple[SlotHold, ...] | Epochs, ranks: tuple[Place, ...]) -> tuple[SlotHold, ...]:
    if not isinstance(slots, Epochs):
        return slots
    return tuple(SlotHold(node=p.node, rank=p.rank, epoch=epoch) for p in ranks for epoch in slots.epochs)


def _parity(parity: tuple[ParityHold, ...] | Groups, ranks: tuple[Place, ...]) -> tuple[ParityHold, ...]:
    if not isinstance(parity, Groups):
        return parity
    wrong = next((r for group in parity.groups for r in group if not 0 <= r < len(ranks)), None)
    if wrong is not None:
        raise ValueError(f"parity.groups names rank {wrong}, which the job does not have")
    return tuple(
        ParityHold(node=ranks[rank].node, epoch=epoch, ranks=group, parity=parity.parity)
        for group in parity.groups
        for epoch in parity.epochs
        for rank in group
    )


def _disk(disk: tuple[DiskHold, ...] | Epochs, size: int) -> tuple[DiskHold, ...]:
    if not isinstance(disk, Epochs):
        return disk
    return tuple(DiskHold(rank=rank, epoch=epoch) for rank in range(size) for epoch in disk.epochs)


def run_plan(path: str | Path, as_json: bool = False, *, console: Console | None = None) -> int:
    """Print the plan for a scenario file, as a table or as the JSON of ``recovery.plan.Plan``.

    With an outlook a second table weighs every way of recovering; in JSON it is ``decision``.

    Returns:
        Exit code: 0 with a chosen strategy, 1 if nothing is feasible, 2 for a bad file (one line on stderr).
    """
    try:
        situation, prospects = _read(Path(path))
        outlook = None if prospects is None else _outlook(Path(path), situation, prospects)
    except ScenarioError as error:
        print(f"mainstay plan: {error}", file=sys.stderr)  # noqa: T201 - a command prints
        return 2
    made, decision = plan(situation), None if outlook is None else decide(outlook)
    if as_json:
        every = msgspec.to_builtins(made) | ({} if decision is None else {"decision": msgspec.to_builtins(decision)})
        print(msgspec.json.format(msgspec.json.encode(every), indent=2).decode())  # noqa: T201 - a command prints
    else:
        console = console or Console()
        _show(made, console)
        if decision is not None:
            show_decision(decision, console)
    return 0 if made.chosen else 1


def run_levels(path: str | Path, mtbf_hours: float, as_json: bool = False, *, console: Console | None = None) -> int:
    """Print how often each level of protection should save in the job of a scenario file.

    Returns:
        Exit code: 0, or 2 for bad input (one line on stderr).
    """
    try:
        situation = read_scenario(Path(path))
        if not mtbf_hours > 0.0:
            raise ScenarioError(f"--mtbf must be a number of hours above 0, not {mtbf_hours:g}")  # noqa: TRY301
        if not situation.step_seconds:
            raise ScenarioError(f"{path}: step_seconds: saves are counted in steps, which must take time")  # noqa: TRY301
    except ScenarioError as error:
        print(f"mainstay plan: {error}", file=sys.stderr)  # noqa: T201 - a command prints
        return 2
    made = levels_of(situation, mtbf_hours)
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(made), indent=2).decode())  # noqa: T201 - a command prints
    else:
        _show_levels(made, situation, console or Console())
    return 0


def levels_of(situation: Situation, mtbf_hours: float) -> tuple[Level, ...]:
    """Every level's best interval in the job of ``situation``."""
    nodes = {place.node for place in situation.ranks}
    costs = situation.costs
    prices = Prices(
        state_bytes=max(situation.state_bytes),
        ranks_per_node=-(-len(situation.ranks) // len(nodes)),
        step_s=situation.step_seconds,
        parity_Bps=min(costs.net_Bps, costs.xor_Bps),
        disk_Bps=costs.disk_Bps,
    )
    return levels(prices, Hazard(len(nodes), mtbf_hours))


def _show_levels(made: tuple[Level, ...], situation: Situation, console: Console) -> None:
    table = Table(title=f"Levels of protection of job {situation.job}", title_justify="left")
    for name in ("level", "brings back", "save takes s", "failures apart h", "every steps", "every s", "lost share"):
        table.add_column(name, justify="left" if name in {"level", "brings back"} else "right", overflow="fold")
    for level in made:
        numbers = [f"{level.takes_s:.3g}", f"{level.mtbf_s / 3600.0:.4g}", str(level.every)]
        numbers += [f"{level.every * situation.step_seconds:.4g}", f"{level.lost_share:.3%}"]
        table.add_row(level.name, level.brings_back, *numbers)
    console.print(table)


def _show(made: Plan, console: Console) -> None:
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
