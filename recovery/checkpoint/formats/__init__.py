"""Checkpoint formats: each is one module here with its ``FORMAT`` (see ``base``), found by its place."""

from __future__ import annotations

import importlib
import pkgutil
import shutil
from functools import cache
from pathlib import Path
from typing import Final

from mainstay.probes.durable_files import sync_directory
from mainstay.recovery.checkpoint.formats.base import Format, WriteOptions
from mainstay.recovery.checkpoint.formats.torch_save import SUFFIXES
from mainstay.recovery.checkpoint.logical import LogicalCheckpoint, problems
from mainstay.recovery.checkpoint.manifest import CheckpointError

__all__ = ["Format", "WriteOptions", "convert", "formats", "open_checkpoint"]

_USERS: Final = dict.fromkeys(("pp", "tp", "like"), "mainstay") | {
    "zero_stage": "deepspeed",
    "dp": "mainstay or deepspeed",
}
"""The formats that use an option of ``WriteOptions``."""


@cache
def formats() -> dict[str, Format]:
    """Every format by its name."""
    modules = [importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)]
    found = [module.FORMAT for module in modules if hasattr(module, "FORMAT")]
    return {each.name: each for each in found}


def open_checkpoint(path: Path | str) -> LogicalCheckpoint:
    """The checkpoint at ``path``, of any format: a file, a directory, or a directory of runs or steps (the newest).

    Raises:
        CheckpointError: there is none, or it cannot be read; one line.
    """
    where = Path(path)
    if not where.exists():
        raise CheckpointError(f"{where} does not exist")
    for each in formats().values():
        if each.detect(where):
            return each.read(where)
    raise CheckpointError(f"{where} is no checkpoint that Mainstay reads ({', '.join(formats())})")


def convert(source: Path, out: Path, to: str, options: WriteOptions) -> LogicalCheckpoint:
    """Check every tensor of ``source``, and write it to ``out`` in the format called ``to``; what was read.

    Raises:
        CheckpointError: ``source`` is damaged, quantized without being accepted, or lacks what the format needs,
            ``out`` exists, or there is no such format. Nothing is left behind.
    """
    _check_options(out, to, options)
    checkpoint = open_checkpoint(source)
    damage = next(problems(checkpoint), None)
    if damage is not None:
        raise CheckpointError(f"{source} is damaged: {damage}")
    if checkpoint.quantized and not options.accept_quantized:
        raise CheckpointError(
            f"{source} is quantized ({checkpoint.quantized}): convert its near values with --accept-quantized"
        )
    if to == "mainstay":  # adds a run to a directory of runs
        formats()[to].write(checkpoint, out, options)
        return checkpoint
    if out.exists():
        raise CheckpointError(f"{out} exists already")
    new = out.with_name(f".{out.name}.new")
    _remove(new)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        formats()[to].write(checkpoint, new, options)
        for written in (new, *new.rglob("*")):
            sync_directory(written)
        new.replace(out)
    except OSError as error:
        raise CheckpointError(f"{out}: {error.strerror or error}") from error
    finally:
        _remove(new)
    sync_directory(out.parent)
    return checkpoint


def _check_options(out: Path, to: str, options: WriteOptions) -> None:
    if to not in formats():
        raise CheckpointError(f"--to {to!r} must be one of {', '.join(formats())}")
    for name, users in _USERS.items():
        if getattr(options, name) and to not in users.split():
            raise CheckpointError(f"--{name.replace('_', '-')} is only for --to {users}, not for --to {to}")
    if min(options.dp, options.pp, options.tp) < 0:
        raise CheckpointError("--dp, --pp, and --tp must be positive")
    if to == "deepspeed" and options.dp and not options.zero_stage:
        raise CheckpointError("--dp needs --zero-stage: any number of ranks loads the universal format of deepspeed")
    if (to == "torch") != (out.suffix in SUFFIXES):
        raise CheckpointError(f"--to {to} cannot write {out}: --to torch writes files ({', '.join(SUFFIXES)})")


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)  # if it is a directory
    path.unlink(missing_ok=True)
