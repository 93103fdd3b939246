"""``mainstay checkpoint ls|verify|export|import``, and ``checkpoint_levels_cli``: work on checkpoints.

``ls`` and ``verify`` need no torch. ``export`` writes a ``torch.distributed.checkpoint`` of model and optimizer, or one
file for ``torch.load``. ``import`` turns such a directory of a complete step, which lost its manifest or which another
tool wrote again, into a step to resume from; its ``.metadata`` is read as data
(``mainstay.recovery.checkpoint.pickle_codec``), its tensors by ``torch.load`` with ``weights_only``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from cyclopts import App

from mainstay.detectors.cli_errors import BAD_INPUT, AsJson, one_line
from mainstay.recovery.checkpoint.catalog import LATEST, ResumeSource, RunDirectory, find, runs
from mainstay.recovery.checkpoint.load import verify_part
from mainstay.recovery.checkpoint.manifest import CheckpointError, CheckpointPart, PartEntry
from mainstay.recovery.checkpoint_levels_cli import download, level_columns, pin, unpin, upload, uploaded_rows
from mainstay.recovery.memory.errors import ArenaError

checkpoint = App(name="checkpoint", help="List, verify, export, and import checkpoints.")
MIB = 1 << 20


_clear = one_line("mainstay checkpoint", dict.fromkeys((CheckpointError, ArenaError, OSError, ValueError), BAD_INPUT))
for command in (pin, unpin, upload, download):
    checkpoint.command(_clear(command), name=command.__name__)


@checkpoint.command(name="ls")
@_clear
def ls(directory: Path, *, upload: str | None = None, as_json: AsJson = False) -> int:
    """List runs and steps, the newest last, at which level they are, and why a step is incomplete.

    Args:
        directory: Read checkpoints from this directory.
        upload: List the steps that were uploaded to this place too.
        as_json: Print only JSON.
    """
    rows = [row for run in (runs(directory) if directory.is_dir() or upload is None else []) for row in _steps(run)]
    if upload is not None:
        rows = sorted([*rows, *uploaded_rows(upload, rows)], key=lambda row: (row["run"], row["step"] or 0))
    if as_json:
        _print(rows)
        return 0
    if not rows:
        print(f"no runs in {directory}")  # noqa: T201 - a command prints
    run = ""
    for row in rows:
        if row["run"] != run:
            run = row["run"]
            shape = "shape unknown" if row["shape"] is None else "dp={} pp={} tp={}".format(*row["shape"])
            print(f"run {run} of {row['job']}, {shape}")  # noqa: T201 - a command prints
        print(f"  {_line(row)}")  # noqa: T201 - likewise
    return 0


def _line(row: dict[str, Any]) -> str:
    if row["step"] is None:
        return str(row["problem"])
    size = f"{row['nbytes'] / MIB:>11.1f} MiB"
    where = f"complete ({', '.join(row['levels'])}{'; pinned' if row['pinned'] else ''})"
    return f"step {row['step']:>9}  {row['ranks']:>5} ranks  {size}  {row['problem'] or where}"


def _steps(run: RunDirectory) -> list[dict[str, Any]]:
    try:
        info = run.info()
        row: dict[str, Any] = {"run": run.id, "job": info.job, "shape": [info.dp, info.pp, info.tp]}
        problem = "no step yet"
    except CheckpointError as error:
        row, problem = {"run": run.id, "job": "-", "shape": None}, str(error)
    steps = [row | _step(run, epoch) for epoch in run.steps()]
    return steps or [row | {"step": None, "ranks": 0, "nbytes": 0, "whole": False, "levels": [], "problem": problem}]


def _step(run: RunDirectory, epoch: int) -> dict[str, Any]:
    parts = run.parts(epoch)
    row = {"step": epoch, "ranks": len({p.rank for p in parts}), "nbytes": sum(p.nbytes for p in parts)}
    row |= level_columns(run, epoch)
    try:
        manifest = run.manifest(epoch)
    except CheckpointError as error:
        return row | {"whole": False, "problem": str(error).removeprefix(f"{run.step(epoch)} ")}
    return row | {"ranks": len(manifest.parts), "whole": True, "problem": ""}


@checkpoint.command(name="verify")
@_clear
def verify(directory: Path, *, run: str = LATEST, step: int | None = None, as_json: AsJson = False) -> int:
    """Verify a checkpoint: read every tensor and check its digest; exit code 1 if a digest differs.

    Args:
        directory: Read checkpoints from this directory.
        run: Choose the run by its ID; the default is the newest with a complete step.
        step: Choose the step; the default is the newest complete one.
        as_json: Print only JSON.
    """
    source = find(directory, run, step)
    manifest, found = source.manifest, []
    for entry in manifest.parts:
        problem, nbytes = "", 0
        try:
            nbytes = verify_part(source.run, _pinned(source, entry))
        except (CheckpointError, ArenaError) as error:
            problem = str(error)
        found.append({"rank": entry.rank, "nbytes": nbytes, "problem": problem})
    bad = [row for row in found if row["problem"]]
    if as_json:
        _print({"run": manifest.run, "step": manifest.epoch, "ok": not bad, "ranks": found})
    else:
        for row in bad:
            print(f"rank {row['rank']}: {row['problem']}")  # noqa: T201 - a command prints
        total = sum(int(str(row["nbytes"])) for row in found)
        print(f"step {manifest.epoch} of run {manifest.run}: {_verdict(len(bad), len(found), total)}")  # noqa: T201
    return 1 if bad else 0


def _pinned(source: ResumeSource, entry: PartEntry) -> CheckpointPart:
    """The part that the manifest means."""
    part = source.run.part(source.manifest.epoch, entry.rank, entry.generation)
    if part.check != entry.check:
        raise CheckpointError(f"the part of rank {entry.rank} is not the one that the manifest names")
    return part


def _verdict(bad: int, count: int, nbytes: int) -> str:
    return f"{bad} of {count} ranks are damaged" if bad else f"{count} ranks, {nbytes} bytes, all digests hold"


@checkpoint.command(name="export")
@_clear
def export(
    directory: Path,
    output: Path,
    *,
    run: str = LATEST,
    step: int | None = None,
    form: str = "dcp",
    as_json: AsJson = False,
) -> int:
    """Export a step for other tools: model and optimizer, each tensor once.

    Args:
        directory: Read checkpoints from this directory.
        output: Write to this path; it must not exist.
        run: Choose the run by its ID; the default is the newest with a complete step.
        step: Choose the step; the default is the newest complete one.
        form: Choose ``dcp``, a directory for torch.distributed.checkpoint, or ``torch``, one file for torch.load.
        as_json: Print only JSON.
    """
    from mainstay.recovery.checkpoint import convert  # noqa: PLC0415 - torch is only needed here

    if form not in {"dcp", "torch"}:
        raise CheckpointError(f"--form {form!r} must be dcp or torch")
    if output.exists():
        raise CheckpointError(f"{output} exists already")
    source = find(directory, run, step)
    names = convert.export_dcp(source, output) if form == "dcp" else convert.export_torch(source, output)
    exported = {"run": source.manifest.run, "step": source.manifest.epoch, "tensors": len(names), "output": str(output)}
    if as_json:
        _print(exported)
    else:
        print(f"step {exported['step']} of run {exported['run']}: {len(names)} tensors in {output}")  # noqa: T201
    return 0


@checkpoint.command(name="import")
@_clear
def import_(source: Path, directory: Path, *, dp: int, pp: int = 1, tp: int = 1, as_json: AsJson = False) -> int:
    """Import a torch.distributed.checkpoint directory of a Mainstay job as a step to resume from.

    Args:
        source: Read this directory; it must contain ``.metadata``.
        directory: Add a new run with the step to this directory of checkpoints.
        dp: Set the data-parallel size of the job that wrote it.
        pp: Set its pipeline stages.
        tp: Set its tensor slices.
        as_json: Print only JSON.
    """
    from mainstay.recovery.checkpoint import convert  # noqa: PLC0415 - torch is only needed here

    manifest = convert.import_dcp(source, directory, dp=dp, pp=pp, tp=tp)
    if as_json:
        _print({"run": manifest.run, "step": manifest.epoch, "ranks": len(manifest.parts)})
    else:
        print(f"Resume from it with --checkpoint-dir {directory} --resume {manifest.run}")  # noqa: T201
    return 0


def _print(value: object) -> None:
    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())  # noqa: T201 - a command prints
