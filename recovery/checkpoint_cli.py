"""``mainstay checkpoint ls|verify|export|import``: what the disk level holds, whether it is whole, in and out of it.

``ls`` and ``verify`` need no torch. ``export`` makes what stands on its own: a ``torch.distributed.checkpoint`` of
model and optimizer, or one file for ``torch.load``. ``import`` makes a step to resume from out of such a directory of a
whole step that lost its manifest, or was written again by another tool; its ``.metadata`` is read as data
(``recovery.disk.opcodes``), its tensors by ``torch.load`` with ``weights_only``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from cyclopts import App

from detectors.shell import BAD_INPUT, AsJson, one_line
from recovery.disk.catalogue import LATEST, Run, Source, find, runs
from recovery.disk.load import verify_part
from recovery.disk.manifest import CheckpointError, Manifest, Part, PartEntry
from recovery.memory.errors import ArenaError

checkpoint = App(name="checkpoint", help="What the disk level of protected jobs holds: list, verify, export, import.")
MIB = 1 << 20


_clear = one_line("mainstay checkpoint", dict.fromkeys((CheckpointError, ArenaError, OSError), BAD_INPUT))


@checkpoint.command(name="ls")
@_clear
def ls(directory: Path, *, as_json: AsJson = False) -> int:
    """Runs and steps, the newest last; why a step that is not whole is not."""
    rows = [row for run in runs(directory) for row in _steps(run)]
    if as_json:
        _print(rows)
        return 0
    said = ""
    for row in rows:
        if row["run"] != said:
            said = row["run"]
            shape = "shape unknown" if row["shape"] is None else "dp={} pp={} tp={}".format(*row["shape"])
            print(f"run {said} of {row['job']}, {shape}")  # noqa: T201 - a command prints
        print(f"  {_line(row)}")  # noqa: T201 - likewise
    return 0


def _line(row: dict[str, Any]) -> str:
    if row["step"] is None:
        return str(row["problem"])
    return (
        f"step {row['step']:>9}  {row['ranks']:>5} ranks  {row['nbytes'] / MIB:>11.1f} MiB  {row['problem'] or 'whole'}"
    )


def _steps(run: Run) -> list[dict[str, Any]]:
    try:
        info = run.info()
        row: dict[str, Any] = {"run": run.id, "job": info.job, "shape": [info.dp, info.pp, info.tp]}
        problem = "no step yet"
    except CheckpointError as error:
        row, problem = {"run": run.id, "job": "-", "shape": None}, str(error)
    steps = [row | _step(run, epoch) for epoch in run.steps()]
    return steps or [row | {"step": None, "ranks": 0, "nbytes": 0, "whole": False, "problem": problem}]


def _step(run: Run, epoch: int) -> dict[str, Any]:
    parts = run.parts(epoch)
    row = {"step": epoch, "ranks": len({p.rank for p in parts}), "nbytes": sum(p.nbytes for p in parts)}
    try:
        manifest = run.manifest(epoch)
    except CheckpointError as error:
        return row | {"whole": False, "problem": str(error).removeprefix(f"{run.step(epoch)} ")}
    return row | {"ranks": len(manifest.parts), "whole": True, "problem": ""}


@checkpoint.command(name="verify")
@_clear
def verify(directory: Path, *, run: str = LATEST, step: int | None = None, as_json: AsJson = False) -> int:
    """Read every tensor of a step and check its digest; exit code 1 if one does not hold.

    Args:
        directory: of checkpoints.
        run: id of the run; the newest that has a whole step.
        step: which step; the newest whole one.
        as_json: print JSON.
    """
    source = _source(directory, run, step)
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


def _pinned(source: Source, entry: PartEntry) -> Part:
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
    out: Path,
    *,
    run: str = LATEST,
    step: int | None = None,
    form: str = "dcp",
    as_json: AsJson = False,
) -> int:
    """Write a step as others want it: model and optimizer, each tensor once.

    Args:
        directory: of checkpoints.
        out: what to write; must not exist.
        run: id of the run; the newest that has a whole step.
        step: which step; the newest whole one.
        form: ``dcp``, a directory for torch.distributed.checkpoint; ``torch``, one file for torch.load.
        as_json: print JSON.
    """
    from recovery.disk import convert  # noqa: PLC0415 - torch is only needed here

    if form not in {"dcp", "torch"}:
        raise CheckpointError(f"--form {form!r} is neither dcp nor torch")
    if out.exists():
        raise CheckpointError(f"{out} is there already")
    source = _source(directory, run, step)
    names = convert.export_dcp(source, out) if form == "dcp" else convert.export_torch(source, out)
    said = {"run": source.manifest.run, "step": source.manifest.epoch, "tensors": len(names), "out": str(out)}
    if as_json:
        _print(said)
    else:
        print(f"step {said['step']} of run {said['run']}: {len(names)} tensors in {out}")  # noqa: T201
    return 0


@checkpoint.command(name="import")
@_clear
def import_(source: Path, directory: Path, *, dp: int, pp: int = 1, tp: int = 1, as_json: AsJson = False) -> int:
    """Make a step to resume from out of a torch.distributed.checkpoint directory of a Mainstay job.

    Args:
        source: the directory, with ``.metadata``.
        directory: of checkpoints, where a new run begins with the step.
        dp: data-parallel size of the job that wrote it.
        pp: its pipeline stages.
        tp: its tensor slices.
        as_json: print JSON.
    """
    from recovery.disk import convert  # noqa: PLC0415 - torch is only needed here

    manifest = convert.import_dcp(source, directory, dp=dp, pp=pp, tp=tp)
    if as_json:
        _print({"run": manifest.run, "step": manifest.epoch, "ranks": len(manifest.parts)})
    else:
        print(f"go on from it with --checkpoint-dir {directory} --resume {manifest.run}")  # noqa: T201
    return 0


def _source(directory: Path, run: str, step: int | None) -> Source:
    if step is None:
        return find(directory, run)
    known = [found for found in runs(directory) if run in {LATEST, found.id}]
    if not known:
        raise CheckpointError(f"{directory} has no run {run!r}")
    having = [found for found in known if step in found.steps()]
    if not having:
        raise CheckpointError(f"{directory} has no step {step} of {'any run' if run == LATEST else f'run {run}'}")
    manifest: Manifest = having[-1].manifest(step)
    return Source(directory, manifest)


def _print(value: object) -> None:
    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())  # noqa: T201 - a command prints
