"""``mainstay record`` and ``mainstay replay``. This module reads and writes the files; the layers below are pure."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from mainstay.detectors.cli_errors import (
    BAD_INPUT,
    AsJson,
    InputError,
    one_line,
    parse_since,
    plain_table,
    print_unfolded,
)
from mainstay.detectors.finding import ADVICE, Finding
from mainstay.detectors.recording.reader import RecordingDirectory
from mainstay.detectors.recording.replay import replay as replay_recording
from mainstay.probes.core_types import Severity
from mainstay.probes.frame import FrameError
from mainstay.probes.transport import Transport, TransportError

_SHOWN = 200
"""Lines of the table: what follows is in the file."""
_STYLE = {Severity.CRITICAL: "bold red", Severity.WARNING: "yellow", Severity.INFO: "dim"}


@one_line("mainstay replay", {ValueError: BAD_INPUT})
def replay(
    directory: Path,
    /,
    *,
    output: Path | None = None,
    detectors: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    as_json: AsJson = False,
) -> int:
    """Run detectors on a recording; they report the same findings as on live data.

    Exit code: 0 with or without findings; 2 invalid input.

    Parameters
    ----------
    directory
        Read the recording that `mainstay record` wrote (docs/reference/recordings.md describes the format).
    output
        Write the findings to this file: one JSON object per line, in order of time.
    detectors
        Run only these detectors; the default is all.
    as_json
        Print only the findings, as JSON lines, on standard output.
    """
    try:
        recording = RecordingDirectory(directory)
        found = replay_recording(recording, detectors)
        if output is not None:
            output.write_bytes(lines(found))
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}") from error
    for column in recording.ignored:
        print(f"mainstay replay: ignored column {column}: it is not a signal", file=sys.stderr)
    if as_json:
        sys.stdout.write(lines(found).decode())
        return 0
    print_unfolded(table(found, recording.fleet.start), summary(found, output))
    return 0


@one_line("mainstay record", {TransportError: 1, FrameError: 1, OSError: BAD_INPUT, ValueError: BAD_INPUT})
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
    """Record the telemetry of a service in a directory of plain files for `mainstay replay`.

    Exit code: 0 written; 1 the service did not return all data; 2 invalid input.

    Parameters
    ----------
    directory
        Write to this directory; it must hold no recording yet.
    service
        Connect to the service at this URL.
    since
        Start this long ago (90s, 10m, 2h) or at this time (Unix seconds).
    job
        Record only this job and its nodes.
    token
        Use this token with scope read; prefer a file, as all users can read a command line.
    token_file
        Read the token from this file.
    """
    from mainstay.detectors.recording.recorder import RecordingSource
    from mainstay.detectors.recording.recorder import record as write_recording

    now = time.time()
    secret = token if token_file is None else token_file.read_text().strip()
    source = RecordingSource(Transport(service, secret))
    rows = write_recording(source, directory, parse_since(since, now), now, job)
    recorded = ", ".join(f"{count} rows of {name.removesuffix('.parquet')}" for name, count in rows.items() if count)
    print(f"{directory}: {recorded or 'the service has no data to record'}")
    return 0


def lines(found: Sequence[Finding]) -> bytes:
    """``findings.jsonl``."""
    return b"".join(msgspec.json.encode(finding) + b"\n" for finding in found)


def table(found: Sequence[Finding], start: float) -> Table:
    """Findings that became active, in order of time, in seconds since the recording began."""
    columns = plain_table("after", "severity", "kind", "who", "what", right={"after"}, folding="what")
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


def summary(found: Sequence[Finding], output: Path | None) -> Text:
    """The number of findings by severity, and the file that holds all of them."""
    begun = [one for one in found if one.active]
    counts = ", ".join(
        f"{number} {severity.value}" for severity in Severity if (number := sum(f.severity is severity for f in begun))
    )
    text = f"\n{len(begun)} findings ({counts})" if begun else "\nNo findings"
    active = {finding.key for finding in begun} - {finding.key for finding in found if not finding.active}
    text += f"; {len(active)} are still active at the end" if active else ""
    text += f"; the first {_SHOWN} are shown" if len(begun) > _SHOWN else ""
    return Text(text + (f". All are in {output}." if output else ". --output FILE keeps them."))
