"""Scenario files: the job and the failure for which ``mainstay plan F`` estimates each strategy.

A scenario is a JSON object, or a TOML document where the file ends in ``.toml``, with the fields of
``mainstay.recovery.planner_input.PlannerInput``, some in short form::

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

Required: job, generation, step, step_seconds, ranks, state_bytes. Errors: an unknown field, a key given twice, and
values that cannot be true together, such as a checkpoint of a step that the job has not reached.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from mainstay.detectors.cli_errors import InputError
from mainstay.recovery.planner_input import (
    HeldCheckpoint,
    HeldParity,
    HeldSlot,
    MachineCosts,
    PlannerInput,
    RankPlacement,
)
from mainstay.recovery.scenario_assumptions import ScenarioAssumptions


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


def read_scenario(path: Path) -> PlannerInput:
    """Read and check a scenario file.

    Raises:
        InputError: unreadable, neither JSON nor TOML, a field missing, unknown or of the wrong type, or values that
            contradict one another; one line that names file and field.
    """
    return read_file(path)[0]


def read_file(path: Path) -> tuple[PlannerInput, ScenarioAssumptions | None]:
    """The situation, and the cost inputs if the file has some; raises as ``read_scenario``."""
    try:
        text = path.read_text(encoding="utf-8")
        raw = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text, object_pairs_hook=_object)
        _check_values(raw, "")
        _check_names(raw, Scenario, "")
        scenario = msgspec.convert(raw, Scenario, str_keys=True)
        return _situation(scenario), scenario.cost_inputs
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start})") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: not TOML: {error}") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from error
    except RecursionError as error:
        raise InputError(f"{path}: nested too deeply to be a scenario") from error
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        raise InputError(f"{path}: {where.strip('.`')}: {what}" if where else f"{path}: {what}") from error
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, of which readers keep the last of equal keys without a word."""
    _refuse_twice("the file", [name for name, _ in pairs])
    return dict(pairs)


def _refuse_twice(field: str, values: Iterable[object]) -> None:
    seen: set[object] = set()
    for value in values:
        if value in seen:
            raise ValueError(f"{field}: {value!r} is given twice")
        seen.add(value)


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


def _check_names(raw: Any, known: Any, where: str) -> None:
    """Refuse unknown fields of ``known`` and of what its fields hold; they are most often misspelled optional ones.

    Raises:
        ValueError: names the field.
    """
    if not where and not isinstance(raw, dict):
        raise ValueError(f"expected one object with the fields of a scenario, not {type(raw).__name__}")
    if not isinstance(raw, dict) or not hasattr(known, "__annotations__"):
        return
    hints = get_type_hints(known)
    unknown = next((key for key in raw if key not in hints), None)
    if unknown is not None:
        raise ValueError(f"{where}{unknown}: unknown field; known are {', '.join(hints)}")
    for name, value in raw.items():
        kinds = get_args(hints[name]) if isinstance(hints[name], UnionType) else (hints[name],)
        short = next((kind for kind in kinds if is_dataclass(kind)), None)
        entry = next((get_args(kind)[0] for kind in kinds if get_origin(kind) is tuple), None)
        _check_names(value, short, f"{where}{name}.")
        for i, item in enumerate(value if isinstance(value, list) else ()):
            _check_names(item, entry, f"{where}{name}[{i}].")


def _check_consistent(scenario: Scenario, gone: set[int]) -> None:
    """Refuse what cannot be true at the same time.

    Raises:
        ValueError: names the field.
    """
    _refuse_twice("lost_nodes", scenario.lost_nodes)
    _refuse_twice("failed_ranks", scenario.failed_ranks)
    if isinstance(scenario.ranks, Grid):
        _refuse_twice("ranks.nodes", scenario.ranks.nodes)
    live = scenario.live if isinstance(scenario.live, dict) else {}
    if wrong := gone.intersection(live):
        raise ValueError(f"live: rank {min(wrong)} is lost, so that its tensors hold nothing")
    reached = max([scenario.step, *(live.values() if isinstance(scenario.live, dict) else [scenario.live])])
    if scenario.step < 0:
        raise ValueError(f"step: expected at least 0, not {scenario.step}")
    if not scenario.step <= reached <= scenario.step + 1:
        raise ValueError(f"live: step {reached} is no step that follows step {scenario.step} at once")
    for name in ("slots", "parity", "disk"):
        held = getattr(scenario, name)
        epochs = held.epochs if isinstance(held, Epochs | Groups) else {entry.epoch for entry in held}
        late = next((epoch for epoch in epochs if not 0 <= epoch <= reached), None)
        if late is not None:
            raise ValueError(f"{name}: step {late} is not from 0 to {reached}, the newest that the job has reached")
    for name in ("standbys", "cold"):
        below = next((node for node, count in getattr(scenario, name).items() if count < 0), None)
        if below is not None:
            raise ValueError(f"{name}.{below}: expected at least 0")


def _situation(scenario: Scenario) -> PlannerInput:
    ranks = _grid(scenario.ranks) if isinstance(scenario.ranks, Grid) else scenario.ranks
    size = len(ranks)
    bytes_each, live = scenario.state_bytes, scenario.live
    lost = frozenset(scenario.lost_nodes)
    gone = {p.rank for p in ranks if p.node in lost}.union(scenario.failed_ranks)
    _check_consistent(scenario, gone)
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
