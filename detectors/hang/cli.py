"""``mainstay analyze-hang DIR``: find the ranks that block a job from PyTorch flight-recorder dumps.

This module reads the files; ``analysis`` is the pure layer. Exit codes: 0 a rank or group is named, 4 the dumps do not
show the cause, 2 invalid input.
"""

from __future__ import annotations

import gzip
import math
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mainstay.detectors.cli_errors import BAD_INPUT, AsJson, one_line, print_json
from mainstay.detectors.finding import FindingKind, join_names
from mainstay.detectors.hang.analysis import HangDiagnosis, diagnose
from mainstay.detectors.hang.dump_checks import LISTED
from mainstay.detectors.hang.flight_recorder import Dump, DumpError, decode, dumps_of

NAMED: Final = 0
NOTHING: Final = 4

_LARGEST: Final = 256 << 20
"""Bytes of one dump, unpacked: a ring of 20,000 calls with stacks is a tenth of it."""
_GZIP: Final = b"\x1f\x8b"
_RANK: Final = re.compile(r"(\d+)(?:\.(?:json|pkl|pickle|bin|trace|gz))*$", re.IGNORECASE)
"""The number at the end of a dump's file name, as PyTorch makes it: ``nccl_trace_rank_12``."""
_KIND: Final = {
    FindingKind.NONCOMM_HANG: "a rank did not come (noncomm_hang)",
    FindingKind.COMM_HANG: "everybody came, the call does not end (comm_hang)",
    FindingKind.COLLECTIVE_MISMATCH: "ranks called different things (collective_mismatch)",
    None: "nothing can be said",
}
_NEXT: Final = {
    FindingKind.NONCOMM_HANG: "Look at these ranks' stacks (py-spy dump --pid …) and their nodes' kernel log.",
    FindingKind.COMM_HANG: "Look at the links, NICs and switches between these ranks.",
    FindingKind.COLLECTIVE_MISMATCH: "Look for a branch in the program that not all ranks take.",
    None: "Take the dumps while the job hangs, from all ranks.",
}


@dataclass(slots=True)
class _Read:
    dumps: dict[int, Dump] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    """File name -> why it is no dump."""


@one_line("mainstay analyze-hang", {DumpError: BAD_INPUT, OSError: BAD_INPUT})
def analyze_hang(path: Path, /, *, as_json: AsJson = False) -> int:
    """Find the ranks that block a job from PyTorch flight-recorder dumps.

    Parameters
    ----------
    path
        Read a directory with one file per rank (as TORCH_NCCL_DEBUG_INFO_TEMP_FILE names them: pickle or JSON, plain
        or gzipped), or one JSON file with the dumps of all ranks.
    as_json
        Print only JSON on standard output.
    """
    read = _read(path)
    found = diagnose(read.dumps)
    if as_json:
        print_json(_as_data(found, read))
    else:
        _show(found, read)
    return NOTHING if found.kind is None else NAMED


def _read(path: Path) -> _Read:
    """All dumps in a directory or file.

    Raises:
        DumpError: there is none; the message says what was found instead.
    """
    if not path.exists():
        raise DumpError(f"{path} does not exist")
    read = _Read()
    for file in _files(path):
        try:
            dumps = dumps_of(decode(_bytes(file)), _rank_of(file))
        except (DumpError, OSError) as error:
            read.skipped[file.name] = str(error)
            continue
        twice = sorted(read.dumps.keys() & dumps.keys())
        if twice:
            raise DumpError(f"rank {twice[0]} has two dumps, the second in {file.name}: keep those of one hang only")
        read.dumps |= dumps
    if not read.dumps:
        why = next(iter(f"{name}: {reason}" for name, reason in read.skipped.items()), "it is empty")
        raise DumpError(f"no flight-recorder dump in {path} ({why})")
    return read


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
    else:
        yield path


def _bytes(file: Path) -> bytes:
    if file.stat().st_size > _LARGEST:
        raise DumpError(f"larger than {_LARGEST >> 20} MiB")
    data = file.read_bytes()
    if not data.startswith(_GZIP):
        return data
    try:
        with gzip.open(file) as stream:
            data = stream.read(_LARGEST + 1)
    except (zlib.error, EOFError, gzip.BadGzipFile) as error:
        raise DumpError(f"broken gzip: {error}") from error
    if len(data) > _LARGEST:
        raise DumpError(f"larger than {_LARGEST >> 20} MiB when unpacked")
    return data


def _rank_of(file: Path) -> int | None:
    """The rank that stands in a file's name."""
    match = _RANK.search(file.name)
    return int(match.group(1)) if match else None


def _as_data(found: HangDiagnosis, read: _Read) -> dict[str, Any]:
    return {
        "kind": found.kind,
        "summary": found.summary,
        "culprits": found.culprits,
        "stuck_groups": [{"group": label, "ranks": ranks} for label, ranks in found.stuck],
        "mismatches": [
            {
                "group": label,
                "state": one.match,
                "sequence": one.seq,
                "most": one.said,
                "others": one.others,
            }
            for label, one in found.odd
        ],
        "matches": found.matches,
        "sure": found.sure,
        "ranks_read": len(found.ranks),
        "ranks_missing": found.doubts.missing,
        "doubts": found.doubts.texts(),
        "files_skipped": read.skipped,
    }


def _show(found: HangDiagnosis, read: _Read) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False)
    console.print(f"[bold]{escape(found.summary)}[/]")
    console.print(f"What: {_KIND[found.kind]}")
    for why in dict.fromkeys(c.reason for c in found.culprits if found.kind is FindingKind.COLLECTIVE_MISMATCH):
        console.print(f"Why:  {escape(why)}")
    if found.culprits:
        console.print(_culprits(found))
    for label, ranks in found.stuck[:4]:  # one screen; JSON has them all
        console.print(f"  inside the same call: {escape(label)}, ranks {join_names(ranks, LISTED)}")
    console.print(f"Next: {_NEXT[found.kind]}")
    for doubt in found.doubts.texts():
        console.print(f"[yellow]{escape(doubt)}[/]")
    for name, why in read.skipped.items():
        console.print(f"[yellow]Left out {escape(name)}: {escape(why)}.[/]")
    states = ", ".join(f"{count} {state}" for state, count in found.matches.items())
    console.print(f"[dim]{len(found.ranks)} dumps read; open calls: {states or 'none'}[/]")


def _culprits(found: HangDiagnosis) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    table = Table("rank", "calls behind", "wait for it", "seen in group", "its last call", box=SIMPLE_HEAD)
    for c in found.culprits:
        behind = "-" if math.isnan(c.behind_entered) else f"{c.behind_entered:.0f}"
        members = f"\n[dim]{join_names(c.members, LISTED)}[/]" if c.members else ""
        table.add_row(
            f"[bold red]{c.rank}[/]", behind, str(c.waiting), escape(c.group) + members, escape(c.last_call or "-")
        )
    return table
