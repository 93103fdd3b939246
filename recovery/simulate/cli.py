"""``mainstay simulate``: simulate recovery policies over random failures or a recorded trace."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cyclopts import Parameter

from mainstay.detectors.cli_errors import BAD_INPUT, AsJson, Flag, InputError, one_line

if TYPE_CHECKING:  # commands import what they need when they run
    from rich.table import Table

    from mainstay.recovery.simulate.report import PolicyReport, Progress, Recorded, Report
    from mainstay.recovery.simulate.scenario import Scenario, SimulatedPolicy

_clear = one_line("mainstay simulate", dict.fromkeys((InputError, ValueError), BAD_INPUT))


_RUNS, _LEAST_RUNS, _FAILURES = 200, 5, 500_000
"""Runs of each policy by default: fewer where they would follow more failures than that, which takes seconds."""
_MORE = 1_000_000
"""A number of nodes above the limit of a scenario."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateOptions:
    """Options of a simulation; the defaults are the job of Llama 3."""

    nodes: int = 2048
    """Set the nodes of the job."""
    gpus: int = 8
    """Set the GPUs of a node."""
    dp: int | None = None
    """Set the replicas; the default is as many as fit the GPUs."""
    pp: int = 16
    """Set the stages of a pipeline."""
    tp: int = 8
    """Set the ranks that share a layer."""
    micro_batches: int = 16
    """Set the micro-batches of each pipeline in one step."""
    step_seconds: float = 4.0
    """Set the duration of a training step."""
    node_mtbf_hours: float = 6000.0
    """Set the mean time between failures of one node."""
    mtbf_hours: float | None = None
    """Set, instead, the mean time between failures of the job."""
    repair_hours: float = 12.0
    """Set the time from a node failure until the node is available again."""
    spares: int = 20
    """Set the spare nodes."""
    days: float = 54.0
    """Set the length of a run."""
    seeds: int | None = None
    """Set the runs of each policy; more narrow the interval. The default is 200, or fewer for a large job."""
    seed: int = 0
    """Set the seed of the first run."""
    save_seconds: float | None = None
    """Set the pause of training for a save; with --restart-seconds, a policy of your own."""
    restart_seconds: float | None = None
    """Set the time from a failure until training continues."""
    save_interval_seconds: float | None = None
    """Set the training time between saves; the default is the best interval."""
    sweep: Literal["mtbf_hours", "spares"] | None = None
    """Vary this value (mtbf_hours: of one node)."""


@_clear
def simulate(
    trace: Path | None = None,
    *,
    options: SimulateOptions = SimulateOptions(),
    plot: Path | None = None,
    as_json: AsJson = False,
    quiet: Flag = False,
) -> int:
    """Simulate recovery policies: the effective training time ratio of each, and where the lost time goes.

    Args:
        trace: Take failures from recorded changes (``milliseconds,add|remove,node``) instead of a random process.
        options: Describe the job, the failures of its nodes, and the policy.
        plot: Write an SVG file.
        as_json: Print only JSON.
        quiet: Hide the progress bar.
    """
    from mainstay.recovery.simulate import report
    from mainstay.recovery.simulate.plot import svg

    scenario = _scenario(options)
    recorded = _recorded(trace) if trace else None
    with _progress(quiet=quiet) as progress:
        found = report.simulate(scenario, recorded=recorded, progress=progress)
    if plot is not None:
        _write(plot, svg(found))
    if as_json:
        print(json.dumps(found.as_json(), indent=2))
    else:
        _print(found, trace)
    return 0


def _scenario(options: SimulateOptions) -> Scenario:
    """Raises InputError for values that no run can have; the line begins with the option."""
    from mainstay.recovery.simulate.scenario import Scenario, ScenarioError, SweepOver, expected_failures

    flags = {
        "iteration_s": "--step-seconds",
        "gpus_per_node": "--gpus",
        "mtbf_hours": "--node-mtbf-hours",
        "save_s": "--save-seconds",
        "restart_s": "--restart-seconds",
        "every_s": "--save-interval-seconds",
    }
    if options.mtbf_hours is not None:
        flags["mtbf_hours"] = "--mtbf-hours times --nodes"
    gpus, ranks = options.nodes * options.gpus, options.pp * options.tp
    if options.dp is None and (ranks <= 0 or gpus % ranks):
        raise InputError(
            f"--nodes: {gpus:,} GPUs do not fill whole pipelines of --pp x --tp = {ranks:,} ranks: change one of them"
        )
    whole = options.mtbf_hours
    try:
        asked = Scenario(
            nodes=options.nodes, gpus_per_node=options.gpus, dp=gpus // ranks if options.dp is None else options.dp,
            pp=options.pp, tp=options.tp, micro_batches=options.micro_batches, iteration_s=options.step_seconds,
            mtbf_hours=options.node_mtbf_hours if whole is None else whole * min(options.nodes, _MORE),
            repair_hours=options.repair_hours, spares=options.spares, days=options.days,
            seeds=_RUNS if options.seeds is None else options.seeds, seed=options.seed,
            policies=_policies(options.save_seconds, options.restart_seconds, options.save_interval_seconds),
            sweep_over=SweepOver(options.sweep) if options.sweep else None,
        )  # fmt: skip
    except ScenarioError as error:
        flag = flags.get(error.field, "--" + error.field.replace("_", "-"))
        raise InputError(f"{flag}: {error.what}") from error
    if options.seeds is not None:
        return asked
    affordable = int(_FAILURES / expected_failures(replace(asked, seeds=1, sweep_over=None)))
    return replace(asked, seeds=min(_RUNS, max(_LEAST_RUNS, affordable)))


def _policies(save: float | None, restart: float | None, every: float | None) -> tuple[SimulatedPolicy, ...]:
    from mainstay.recovery.simulate.scenario import POLICIES, USUAL, PolicyName

    if (save is None) != (restart is None):
        raise InputError("--save-seconds and --restart-seconds: give both, or neither")
    if save is None or restart is None:
        return tuple(replace(policy, every_s=every) for policy in USUAL)
    return (replace(POLICIES[PolicyName.OWN], save_s=save, restart_s=restart, every_s=every),)


def _recorded(file: Path) -> Recorded:
    """Losses (those at one instant are one failure) and the end, from the first change on."""
    from mainstay.recovery.simulate.report import Recorded
    from mainstay.recovery.simulate.traces import read_changes

    changes = read_changes(file)
    start, end = changes[0].at_s, changes[-1].at_s
    losses = sorted({change.at_s - start for change in changes if change.kind == "remove" and change.at_s < end})
    if end <= start:
        raise InputError(f"{file}: all changes come at one instant, so the trace holds no run")
    return Recorded(tuple(losses), end - start)


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Progress | None]:
    """A bar on standard error while runs are simulated; none outside a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulating", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--plot {file}: {error.strerror}") from error


def _print(found: Report, trace: Path | None) -> None:
    from rich.console import Console

    runs = found.scenario.seeds
    over = f"over {trace}" if trace else f"{runs} run{'s' * (runs > 1)} of {found.days:g} days"
    title = f"effective training time ratio, {over}, {found.failures:.0f} failures"
    table = _table(title)
    table.add_column("policy", no_wrap=True)
    for column in ("saves each s", "ETTR, 95 %", "exact", "GPU-hours lost"):
        table.add_column(column, justify="right", no_wrap=column.startswith("ETTR"))
    table.add_column("most by")
    for row in found.policies:
        table.add_row(*_row(row))
    console = Console()
    console.print(table)
    for row in found.policies:
        if row.impossible:
            console.print(f"{row.policy.description}: {row.impossible}")
    if found.sweep:
        _print_sweep(console, found)


def _table(title: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))


def _row(row: PolicyReport) -> list[str]:
    policy, ratio = row.policy, row.ettr
    told = [policy.description, f"{row.interval_s:.0f}"]
    if ratio is None:
        return [*told, "impossible", *["-"] * 3]
    lost = row.lost_gpu_hours
    half = f" ±{ratio.mean - ratio.low:.4f}" if ratio.runs > 1 else ""
    exact = "-" if row.exact is None else f"{row.exact:.4f}"
    most = max(lost, key=lambda cause: lost[cause])
    return [*told, f"{ratio.mean:.4f}{half}", exact, f"{sum(lost.values()):,.0f}", most]


def _print_sweep(console: Any, found: Report) -> None:
    over = found.scenario.sweep_over
    table = _table(f"the same by {over.value if over else ''}")
    followed = [row.policy for row in found.policies if row.ettr is not None]
    table.add_column(str(over.value if over else ""), justify="right")
    for policy in followed:
        table.add_column(policy.description, justify="right")
    for point in found.sweep:
        table.add_row(f"{point.value:g}", *(f"{point.ettr[policy.name].mean:.4f}" for policy in followed))
    console.print(table)
