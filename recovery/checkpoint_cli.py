"""``mainstay checkpoint``: list, verify, inspect, compare, and convert checkpoints, of any program's format.

No command needs torch: files of other programs are read as data (``mainstay.recovery.checkpoint.pickle_codec``).
"""

from __future__ import annotations

import itertools
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from cyclopts import App, Parameter

from mainstay.detectors.cli_errors import BAD_INPUT, AsJson, one_line
from mainstay.recovery.checkpoint.catalog import LATEST, RunDirectory, find, is_upload_level, runs
from mainstay.recovery.checkpoint.file_errors import refusal
from mainstay.recovery.checkpoint.formats import WriteOptions, convert, formats, open_checkpoint
from mainstay.recovery.checkpoint.formats.mainstay import named_part
from mainstay.recovery.checkpoint.load import verify_part
from mainstay.recovery.checkpoint.logical import LogicalTensor, problems, region_of, values_of
from mainstay.recovery.checkpoint.manifest import CheckpointError
from mainstay.recovery.checkpoint.quantization_bound import QuantizationBound
from mainstay.recovery.checkpoint.summary import RunReader, link
from mainstay.recovery.checkpoint_levels_cli import download, pin, rebuild, unpin, upload, uploaded_rows
from mainstay.recovery.memory.errors import ArenaError

checkpoint = App(name="checkpoint")
MIB = 1 << 20
ConvertOptions = Annotated[WriteOptions, Parameter(name="*")]
DEFAULTS: Final = WriteOptions()


_clear = one_line("mainstay checkpoint", dict.fromkeys((CheckpointError, ArenaError, OSError, ValueError), BAD_INPUT))
for command in (pin, unpin, upload, download, rebuild):
    checkpoint.command(_clear(command), name=command.__name__)


@checkpoint.command(name="ls")
@_clear
def ls(directory: str, *, upload: str | None = None, as_json: AsJson = False) -> int:
    """List runs and steps, the newest last: sizes, levels, what they are built on, and why one is incomplete.

    Args:
        directory: Read this checkpoint directory, the --checkpoint-dir of a job, or an upload level alone.
        upload: List also the steps at this upload level: ``s3://BUCKET/PREFIX?endpoint=URL`` or a directory.
        as_json: Print only JSON.
    """
    path, upload = Path(directory), directory if directory.startswith("s3://") else upload
    known = runs(path) if path.is_dir() or upload is None else []
    if any(is_upload_level(run.step(epoch)) for run in known for epoch in run.steps()):
        known, upload = [], directory
    rows = [row for run in known for row in _steps(run)]
    if upload is not None:
        rows = sorted([*rows, *uploaded_rows(upload, rows)], key=lambda row: (row["run"], row["step"] or 0))
    kind = next((f", which is itself a {f.name} checkpoint" for f in formats().values() if f.detect(path)), "")
    lines = [] if rows else [f"no runs in {directory}{kind}"]
    for run, of_run in itertools.groupby(rows, key=itemgetter("run")):
        first, *others = of_run
        shape = "shape unknown" if first["shape"] is None else "dp={} pp={} tp={}".format(*first["shape"])
        lines += [f"run {run} of {first['job']}, {shape}", *(f"  {_line(row)}" for row in (first, *others))]
    return _report(rows, lines, as_json=as_json)


def _line(row: dict[str, Any]) -> str:
    if row["step"] is None:
        return str(row["problem"])
    sizes = f"{row['disk_bytes'] / MIB:>11.1f} MiB"
    words = [", ".join(row["levels"])]
    words += [f"quantized: {QuantizationBound(**row['quantized'])}"] if row["quantized"] else []
    words += [f"{row['parity_bytes'] / MIB:.1f} MiB of it parity"] if row["parity_bytes"] else []
    words += ["pinned"] if row["pinned"] else []
    words += [f"built on {_numbers(row['bases'])}"] if row["bases"] else []
    words += [f"needed by {_numbers(row['unreadable'])}"] if row["unreadable"] else []
    return f"step {row['step']:>9}  {row['ranks']:>5} ranks  {sizes}  {_state(row)} ({'; '.join(words)})"


def _numbers(steps: Sequence[int]) -> str:
    """A few steps by number; of many, the first, the last, and how many they are."""
    return ", ".join(map(str, steps)) if len(steps) <= 4 else f"{steps[0]} to {steps[-1]} ({len(steps)} steps)"


def _state(row: dict[str, Any]) -> str:
    state = str(row["state"]).replace("_", " ")
    return f"{state}: {row['problem'].removeprefix('is not complete: ')}" if row["problem"] else state


def _steps(run: RunDirectory) -> list[dict[str, Any]]:
    begun_at = 0
    try:
        info = run.info()
        row: dict[str, Any] = {"run": run.id, "job": info.job, "shape": [info.dp, info.pp, info.tp]}
        begun_at = info.resumed[1] if info.resumed else 0
        problem = "no step yet"
    except CheckpointError as error:
        row, problem = {"run": run.id, "job": "-", "shape": None}, str(error)
        if refusal(error):
            return [row | {"step": None, "problem": problem}]
    steps = [row | msgspec.to_builtins(step) for step in link(RunReader(run).read(), begun_at)]
    return steps or [row | {"step": None, "problem": problem}]


@checkpoint.command(name="verify")
@_clear
def verify(directory: Path, *, run: str = LATEST, step: int | None = None, as_json: AsJson = False) -> int:
    """Verify a checkpoint: read every tensor and check its digest or checksum; exit code 1 if one is damaged.

    Args:
        directory: Read a step of this checkpoint directory; or, without --run and --step, any other checkpoint.
        run: Choose the run by its ID; latest: the newest with a complete step.
        step: Choose the step; the default is the newest complete one.
        as_json: Print only JSON.
    """
    if not (directory.is_dir() and runs(directory)):
        if run != LATEST or step is not None:
            raise CheckpointError(f"{directory} is no directory of runs, in which --run and --step choose")
        return _verify_other(directory, as_json=as_json)
    source = find(directory, run, step)
    manifest = source.manifest
    found: list[dict[str, Any]] = []
    for entry in manifest.parts:
        problem, nbytes = "", 0
        try:
            nbytes = verify_part(source.run, named_part(source.run, manifest, entry))
        except (CheckpointError, ArenaError) as error:
            problem = str(error)
        found.append({"rank": entry.rank, "nbytes": nbytes, "problem": problem})
    bad = [f"rank {row['rank']}: {row['problem']}" for row in found if row["problem"]]
    whole = f"{len(found)} ranks, {sum(int(row['nbytes']) for row in found)} bytes, all digests hold"
    verdict = f"{len(bad)} of {len(found)} ranks are damaged" if bad else whole
    near = msgspec.to_builtins(manifest.quantized or None)
    content = {"run": manifest.run, "step": manifest.epoch, "ok": not bad, "quantized": near, "ranks": found}
    lines = [*bad, f"step {manifest.epoch} of run {manifest.run}: {verdict}"]
    _warn_near(str(manifest.quantized or ""))
    return _report(content, lines, as_json=as_json, code=1 if bad else 0)


def _warn_near(bound: str, path: Path | None = None) -> None:
    """Say that values are not those that were saved; nothing if they are (``bound`` is empty)."""
    if bound:
        print(f"{f'{path}: ' if path else ''}quantized: {bound}", file=sys.stderr)  # noqa: T201 - a command prints


def _verify_other(path: Path, *, as_json: bool) -> int:
    """Verify a checkpoint that is no directory of runs."""
    opened = open_checkpoint(path)
    bad = list(problems(opened))
    unchecked = sum(any(box.verify is None for box in tensor.boxes) for tensor in opened.tensors.values())
    content = {"format": opened.format, "tensors": len(opened.tensors), "ok": not bad, "problems": bad}
    whole = f"all can be read, {unchecked} have no checksum" if unchecked else "all are whole"
    verdict = f"{len(bad)} of them damaged" if bad else whole
    lines = [*bad, f"{path} ({opened.format}): {len(opened.tensors)} tensors, {verdict}"]
    return _report(content, lines, as_json=as_json, code=1 if bad else 0)


@checkpoint.command(name="convert")
@_clear
def convert_(
    source: Path, output: Path, *, to: str = "dcp", options: ConvertOptions = DEFAULTS, as_json: AsJson = False
) -> int:
    """Convert a checkpoint to another format; every tensor is verified first.

    Args:
        source: Read this checkpoint, of any format; of a checkpoint directory or a run, the newest complete step.
        output: Write to this path, which must not exist. With --to mainstay, add a new run to this directory.
        to: Choose mainstay, dcp, safetensors, torch, deepspeed, or megatron.
        options: What some formats need to know.
        as_json: Print only JSON.
    """
    done = convert(source, output, to, options)
    count = len(done.tensors)
    lines = [f"{source} ({done.format}): {count} tensors in {output} ({to})"]
    if to == "mainstay":
        lines.append(f"Resume from it with --checkpoint-dir {output} --resume {runs(output)[-1].id}")
    content = {"from": done.format, "to": to, "tensors": count, "step": done.step, "output": str(output)}
    return _report(content, lines, as_json=as_json)


_SLICE: Final = re.compile(r"^(.*?)(?:\[([^\[\]]*)\])?$", re.DOTALL)


@checkpoint.command(name="cat")
@_clear
def cat(path: Path, name: str, *, as_json: AsJson = False) -> int:
    """Print a tensor or a part of it, without reading the rest.

    Args:
        path: Read this checkpoint, of any format; of a checkpoint directory or a run, the newest complete step.
        name: Choose the tensor; a slice in numpy's form may follow: model.w[0:2,3]. du lists the first parts of names.
        as_json: Print only JSON.
    """
    match = _SLICE.match(name)
    assert match is not None
    checkpoint = open_checkpoint(path)
    _warn_near(checkpoint.quantized, path)
    tensor = checkpoint.tensor(match[1])
    region, kept = _region(tensor, match[2])
    values = values_of(tensor.read(region), tensor.dtype)
    values = values.reshape([n for n, keep in zip(values.shape, kept, strict=True) if keep])
    lines = [f"{tensor.name} {tensor.dtype}{list(tensor.shape)}", str(values)]
    content = {"name": tensor.name, "dtype": tensor.dtype, "shape": tensor.shape, "values": values}
    return _report(content, lines, as_json=as_json)


def _region(tensor: LogicalTensor, text: str | None) -> tuple[tuple[slice, ...], list[bool]]:
    """The region that ``text`` means, and which dimensions stay."""
    words = "".join(text.split()).removesuffix(",").split(",") if text else []
    if len(words) > len(tensor.shape):
        raise CheckpointError(f"[{text}] has {len(words)} dimensions, {tensor.name} has {len(tensor.shape)}")
    region, kept = list(region_of(tensor.shape)), [True] * len(tensor.shape)
    for axis, (word, length) in enumerate(zip(words, tensor.shape, strict=False)):
        if not re.fullmatch(r"-?\d+|(-?\d+)?:(-?\d+)?", word):
            raise CheckpointError(f"[{text}]: {word!r} is neither a number nor START:STOP (no step)")
        numbers = [int(number) if number else None for number in word.split(":")]
        first = numbers[0]
        if len(numbers) == 1 and first is not None:
            if not -length <= first < length:
                raise CheckpointError(f"[{text}]: {first} is outside of dimension {axis} with {length} elements")
            numbers, kept[axis] = [first % length, first % length + 1], False
        region[axis] = slice(*numbers)
    return tuple(region), kept


@checkpoint.command(name="diff")
@_clear
def diff(a: Path, b: Path, *, as_json: AsJson = False) -> int:
    """Compare two checkpoints of any formats tensor by tensor; exit code 1 if they differ.

    Args:
        a: Read this checkpoint, of any format; of a checkpoint directory or a run, the newest complete step.
        b: Compare it with this one.
        as_json: Print only JSON.
    """
    opened = open_checkpoint(a), open_checkpoint(b)
    for checkpoint_ in opened:
        _warn_near(checkpoint_.quantized, checkpoint_.path)
    ours, theirs = (checkpoint_.tensors for checkpoint_ in opened)
    rows = []
    for name in ours | theirs:
        shared = name in ours and name in theirs
        difference = _difference(ours[name], theirs[name]) if shared else f"only in {a if name in ours else b}"
        rows.append({"name": name, "difference": difference})
    changed = [row for row in rows if row["difference"]]
    equal = len(rows) - len(changed)
    lines = [f"{row['name']}: {row['difference']}" for row in changed]
    lines.append(f"{equal} tensors are equal, {len(changed)} differ")
    return _report({"equal": equal, "different": changed}, lines, as_json=as_json, code=1 if changed else 0)


def _difference(a: LogicalTensor, b: LogicalTensor) -> str:
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return f"{a.dtype}{list(a.shape)} and {b.dtype}{list(b.shape)}"
    count, largest = 0, 0.0
    for ours, theirs in zip(a.pieces(), b.pieces(), strict=True):
        bits = f"u{ours.dtype.itemsize}" if ours.dtype.itemsize <= 8 else ours.dtype.str
        unlike = ours.view(bits) != theirs.view(bits)
        if unlike.any():
            count += int(np.count_nonzero(unlike))
            wide = np.complex128 if a.dtype.startswith("complex") else np.float64
            x, y = (values_of(part[unlike], a.dtype).astype(wide) for part in (ours, theirs))
            largest = max(largest, float(np.max(np.abs(x - y))))
    return f"{count} of {a.numel} elements differ, by at most {largest:g}" if count else ""


@checkpoint.command(name="du")
@_clear
def du(path: Path, *, depth: int = 2, as_json: AsJson = False) -> int:
    """Show the bytes of a checkpoint by the first parts of tensor names, and by file or rank.

    Args:
        path: Read this checkpoint, of any format; of a checkpoint directory or a run, the newest complete step.
        depth: Sum over tensors whose names agree in so many first parts; dots divide a name.
        as_json: Print only JSON.
    """
    if depth < 1:
        raise CheckpointError(f"--depth {depth} must be at least 1")
    names: Counter[str] = Counter()
    places: Counter[str] = Counter()
    opened = open_checkpoint(path)
    for tensor in opened.tensors.values():
        names[".".join(tensor.name.split(".")[:depth])] += tensor.nbytes
        for box in tensor.boxes:
            places[box.place] += int(np.prod(box.sizes)) * tensor.numpy_dtype.itemsize
    lines = []
    for counted in (names, places):
        lines += [*(f"{nbytes / MIB:>11.1f} MiB  {name}" for name, nbytes in counted.most_common()), ""]
    lines.append(f"{names.total() / MIB:>11.1f} MiB  total")
    lines += [f"{opened.parity_bytes / MIB:>11.1f} MiB  parity files beside it"] if opened.parity_bytes else []
    content = {"nbytes": names.total(), "parity_bytes": opened.parity_bytes, "names": names, "places": places}
    return _report(content, lines, as_json=as_json)


def _report(content: object, lines: Iterable[str], *, as_json: bool, code: int = 0) -> int:
    """Print ``content`` as JSON, or the lines for people; the exit code."""
    if as_json:
        raw = msgspec.json.encode(content, enc_hook=np.ndarray.tolist)
        lines = [msgspec.json.format(raw, indent=2).decode()]
    print("\n".join(lines))  # noqa: T201 - a command prints
    return code
