"""``mainstay record`` and ``mainstay replay``: the shell around a pure floor."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from detectors.finding import ADVICE, Finding
from detectors.recording.reader import Directory, RecordingError
from detectors.recording.replay import replay as replay_recording
from probes.frame import FrameError
from probes.transport import Transport, TransportError
from probes.words import Severity

BAD_INPUT = 2
_SHOWN = 200
"""Lines of the table: what follows is in the file."""
_STYLE = {Severity.CRITICAL: "bold red", Severity.WARNING: "yellow", Severity.INFO: "dim"}


def replay(
    directory: Path,
    /,
    *,
    out: Path | None = None,
    only: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """The detectors over a recording: the same findings as when it was live.

    Exit code: 0 whatever was found; 2 bad input.

    Parameters
    ----------
    directory
        The recording, as `mainstay record` writes it (docs/recordings.md says how to make one yourself).
    out
        Where to write the findings: one JSON object a line, in order of time.
    only
        Names of detectors to run; all without it.
    as_json
        Print the findings as JSON lines, and nothing else, on standard output.
    """
    try:
        recording = Directory(directory)
        found = replay_recording(recording, only)
        if out is not None:
            out.write_bytes(lines(found))
    except (RecordingError, ValueError) as error:
        print(f"mainstay: {error}", file=sys.stderr)
        return BAD_INPUT
    except OSError as error:
        print(f"mainstay: {error.filename}: {error.strerror}", file=sys.stderr)
        return BAD_INPUT
    for column in recording.ignored:
        print(f"mainstay: ignored, as it is no signal: {column}", file=sys.stderr)
    if as_json:
        sys.stdout.write(lines(found).decode())
        return 0
    _print(table(found, recording.fleet.start), summary(found, out))
    return 0


def record(
    directory: Path,
    /,
    *,
    service: Annotated[str, Parameter(env_var="MAINSTAY_SERVICE")],
    since: str = "10m",
    job: str | None = None,
    token: Annotated[str, Parameter(env_var="MAINSTAY_TOKEN")] = "",
    token_file: Annotated[Path | None, Parameter(env_var="MAINSTAY_TOKEN_FILE")] = None,
) -> int:
    """What a service saw, as a directory of plain files that `mainstay replay` runs the detectors over.

    Exit code: 0 written; 1 the service did not give everything; 2 bad input.

    Parameters
    ----------
    directory
        Where to write it; must hold no recording yet.
    service
        Where the service listens.
    since
        How far back: 90s, 10m, 2h, or Unix seconds of the beginning.
    job
        Only this job and the nodes that it runs on.
    token
        A token that may read (a command line can be read by every user: prefer a file).
    token_file
        A file with the token.
    """
    from detectors.recording.record import Source
    from detectors.recording.record import record as write_recording

    now = time.time()
    try:
        secret = token if token_file is None else token_file.read_text().strip()
        rows = write_recording(Source(Transport(service, secret)), directory, _beginning(since, now), now, job)
    except (TransportError, FrameError) as error:
        print(f"mainstay: {error}", file=sys.stderr)
        return 1
    except (OSError, ValueError) as error:
        print(f"mainstay: {error}", file=sys.stderr)
        return BAD_INPUT
    told = ", ".join(f"{count} rows of {name.removesuffix('.parquet')}" for name, count in rows.items() if count)
    print(f"{directory}: {told or 'nothing was there to record'}")
    return 0


def _beginning(since: str, now: float) -> float:
    """Unix seconds."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
    try:
        if since[-1:] in units:
            return now - float(since[:-1]) * units[since[-1]]
        return float(since)
    except ValueError:
        raise ValueError(f"--since {since!r} is neither like 90s, 10m, 2h nor Unix seconds") from None


def lines(found: Sequence[Finding]) -> bytes:
    """``findings.jsonl``."""
    return b"".join(msgspec.json.encode(finding) + b"\n" for finding in found)


def table(found: Sequence[Finding], start: float) -> Table:
    """What began to hold, in order of time; seconds since the recording began."""
    columns = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    columns.add_column("after", justify="right", no_wrap=True)
    for name in ("severity", "kind", "who"):
        columns.add_column(name, no_wrap=True)
    columns.add_column("what")
    for finding in [one for one in found if one.active][:_SHOWN]:
        word = "advice" if finding.kind in ADVICE else finding.severity.value
        columns.add_row(
            f"{finding.time - start:.1f} s",
            Text(word, style=_STYLE[finding.severity]),
            finding.kind.value,
            finding.entity.key,
            finding.evidence.summary,
        )
    return columns


def summary(found: Sequence[Finding], out: Path | None) -> Text:
    """How much, how grave, and where the rest is."""
    begun = [one for one in found if one.active]
    counts = ", ".join(
        f"{number} {severity.value}" for severity in Severity if (number := sum(f.severity is severity for f in begun))
    )
    text = f"\n{len(begun)} findings ({counts})" if begun else "\nNothing was found"
    held = {finding.key for finding in begun} - {finding.key for finding in found if not finding.active}
    text += f"; {len(held)} still hold at the end" if held else ""
    text += f"; the first {_SHOWN} are shown" if len(begun) > _SHOWN else ""
    return Text(text + (f". All are in {out}." if out else ". --out FILE keeps them."))


def _print(*parts: RenderableType) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200  # a log is not folded to the eighty columns of a terminal that is not there
    for part in parts:
        console.print(part)
