"""``mainstay simulate``: what policies of recovery keep of a run's time, over random failures or a recorded trace."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.progress import track
from rich.table import Table

from detectors.shell import BAD_INPUT, AsJson, InputError, one_line
from recovery.pricing.longrun import Cadence, best_interval, exact_ettr

HOUR, DAY = 3600.0, 86400.0
POLICIES: dict[str, tuple[float, float]] = {
    "restart from disk": (30.0, 600.0),
    "snapshots in memory": (1.0, 180.0),
    "swap to a warm standby": (0.0, 20.0),
}
"""Name -> seconds that a save takes (0: state comes from a live peer, one step is lost) and a restart. Saves and the
swap as in published runs (Llama 3, GEMINI, TrainMover); replace them with your own by --save and --restart."""

_clear = one_line("mainstay simulate", dict.fromkeys((InputError, ValueError), BAD_INPUT))


@_clear
def simulate(
    *,
    mtbf_hours: float = 2.78,
    days: float = 54.0,
    seeds: int = 200,
    step: float = 4.0,
    save: float | None = None,
    restart: float | None = None,
    every: float | None = None,
    trace: Path | None = None,
    seed: int = 0,
    as_json: AsJson = False,
    quiet: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """What policies of recovery keep of a run's time (the effective training time ratio).

    Args:
        mtbf_hours: hours between failures of the whole job; the default is Llama 3's.
        days: length of a run.
        seeds: runs of each policy; more narrow the interval.
        step: seconds of a training step.
        save: seconds that training stands still for a save; with --restart, a policy of your own.
        restart: seconds from a failure until training goes on.
        every: seconds of training between saves; the best interval if not given.
        trace: recorded changes (``milliseconds,add|remove,node``): failures come when nodes went, instead of at random.
        seed: of the first run.
        as_json: print JSON.
        quiet: no progress bar.
    """
    chosen = _policies(save, restart, every, mtbf_hours * HOUR, step)
    failures = _recorded(trace) if trace else None
    rows = []
    for name, cadence in track(
        chosen.items(), "simulating", console=Console(stderr=True), disable=quiet, transient=True
    ):
        rows.append(
            _run(
                name, cadence, mtbf_s=mtbf_hours * HOUR, horizon_s=days * DAY, seeds=seeds, seed=seed, recorded=failures
            )
        )
    _print(rows, as_json=as_json, trace=trace)
    return 0


def _policies(
    save: float | None, restart: float | None, every: float | None, mtbf_s: float, step_s: float
) -> dict[str, Cadence]:
    """Raises InputError for values that no run can have."""
    for name, value in (("--mtbf-hours", mtbf_s), ("--step", step_s), ("--every", every)):
        if value is not None and not (value > 0.0 and math.isfinite(value)):
            raise InputError(f"{name}: expected a number above 0, not {value:g}")
    if (save is None) != (restart is None):
        raise InputError("--save and --restart: give both, or neither")
    given = POLICIES if save is None or restart is None else {"yours": (save, restart)}
    return {
        name: Cadence(interval_s=every or max(step_s, best_interval(saves, mtbf_s)), save_s=saves, restart_s=restarts)
        for name, (saves, restarts) in given.items()
    }


def _recorded(file: Path) -> tuple[list[float], float]:
    """Instants of losses (those at one instant are one failure) and the end, from the first change on."""
    from recovery.simulate.traces import read_changes

    changes = read_changes(file)
    start, end = changes[0].at_s, changes[-1].at_s
    losses = sorted({change.at_s - start for change in changes if change.kind == "remove" and change.at_s < end})
    if end <= start:
        raise InputError(f"{file}: all changes come at one instant, so that there is no run")
    return losses, end - start


def _run(
    name: str, cadence: Cadence, *, mtbf_s: float, horizon_s: float, seeds: int, seed: int, recorded: Any
) -> dict[str, Any]:
    import numpy as np

    from recovery.simulate.gaps import Kind, estimate, ettr
    from recovery.simulate.processes import exponential

    rng = np.random.default_rng(seed)
    if recorded is None:
        failures, expected = exponential(mtbf_s, horizon_s, seeds, rng), exact_ettr(cadence, mtbf_s)
    else:
        failures, horizon_s, expected = np.array([recorded[0]]), recorded[1], None
    found = estimate(ettr(failures, horizon_s, (Kind(1.0, cadence),), rng))
    count = float(np.isfinite(failures).sum(axis=1).mean())
    return {"policy": name, **asdict(cadence), "failures": count, "days": horizon_s / DAY, "ettr": asdict(found),
            "exact": expected}  # fmt: skip


def _print(rows: list[dict[str, Any]], *, as_json: bool, trace: Path | None) -> None:
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    over = f"over {trace}" if trace else f"{rows[0]['ettr']['runs']} runs of {rows[0]['days']:g} days"
    table = Table(
        title=f"effective training time ratio, {over}, {rows[0]['failures']:.0f} failures", title_justify="left"
    )
    for column in ("policy", "saves each s", "save s", "restart s", "ETTR", "95 %", "exact"):
        table.add_column(column, justify="left" if column == "policy" else "right", no_wrap=column == "policy")
    for row in rows:
        found, exact = row["ettr"], row["exact"]
        table.add_row(
            row["policy"], f"{row['interval_s']:.0f}", f"{row['save_s']:g}", f"{row['restart_s']:g}",
            f"{found['mean']:.4f}", f"{found['low']:.4f}-{found['high']:.4f}" if found["runs"] > 1 else "-",
            "-" if exact is None else f"{exact:.4f}",
        )  # fmt: skip
    Console().print(table)
