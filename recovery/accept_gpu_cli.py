"""``mainstay accept-gpu``: check on real hardware that Mainstay works, and write a report that can be sent back."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from mainstay.detectors.cli_errors import BAD_INPUT, AsJson, Flag, InputError, one_line, plain_table, print_unfolded
from mainstay.probes.benchmarks.cancellation import cancel_on_signals
from mainstay.probes.benchmarks.result import format_value
from mainstay.recovery.accept_gpu.contract import CheckStatus
from mainstay.recovery.accept_gpu.registry import CHECKS
from mainstay.recovery.accept_gpu.runner import AcceptanceReport, AcceptanceRun, CannotStartError

if TYPE_CHECKING:
    from rich.table import Table

_STYLES: Final = {CheckStatus.PASSED: "green", CheckStatus.FAILED: "bold red", CheckStatus.SKIPPED: "magenta"}
_LONGEST_MINUTES: Final = 240.0
_WIDEST_FACT: Final = 80
"""Characters; what is longer, such as names of signals, is only in the file."""


@one_line("mainstay accept-gpu", {InputError: BAD_INPUT, CannotStartError: BAD_INPUT})
def accept_gpu(
    *,
    checks: str = "",
    minutes: float = 30.0,
    output: Path = Path("mainstay-accept-gpu.json"),
    with_names: Flag = False,
    as_json: AsJson = False,
) -> int:
    """Check that Mainstay works on the GPUs of this node, which needs two or more of them and no other work on them.

    Exit code: 0 all passed; 1 a check failed or was skipped; 2 invalid input, fewer than two GPUs, or torch without
    CUDA.

    Parameters
    ----------
    checks
        Run only these checks, separated by commas: nvml, snapshot, kill, hang, throughput. The default is all.
    minutes
        Stop after this many minutes; a check that has no time left is skipped.
    output
        Write the report, as JSON, to this file.
    with_names
        Include the host name and the UUIDs and serial numbers of the GPUs in the report.
    as_json
        Print only JSON on standard output.
    """
    names = _chosen(checks)
    if not 0 < minutes <= _LONGEST_MINUTES:
        raise InputError(f"--minutes must be above 0 and at most {_LONGEST_MINUTES:g}, not {minutes:g}")
    if output.is_dir() or not output.absolute().parent.is_dir():
        raise InputError(f"cannot write {output}: name a file in an existing directory")
    with cancel_on_signals() as interrupt:
        report = AcceptanceRun(
            names=names, minutes=minutes, with_names=with_names, interrupt=interrupt, watcher=_tell_start
        ).run()
    text = msgspec.json.format(msgspec.json.encode(report), indent=1)
    try:
        output.write_bytes(text + b"\n")
    except OSError as error:
        raise InputError(f"cannot write {output}: {error.strerror}") from error
    if as_json:
        print(text.decode())  # noqa: T201 - a command prints
    else:
        show(report)
        print(f"The report is in {output}.")  # noqa: T201
    return 0 if report.passed else 1


def show(report: AcceptanceReport) -> None:
    """Print the figures, then one line for each check: what must be acted on is where the eye is."""
    about = f"\nMainstay {report.mainstay}, {report.devices} x {report.device}, {report.software}:"
    print_unfolded(_figures(report), about, _summary(report), width=160)


def _chosen(checks: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in checks.split(",") if name.strip())
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        raise InputError(f"unknown check {unknown[0]!r}: choose from {', '.join(CHECKS)}")
    return tuple(name for name in CHECKS if not names or name in names)


def _figures(report: AcceptanceReport) -> Table:
    table = plain_table("check", "figure", "value", right={"value"}, folding="figure")
    for check in report.checks:
        for figure in check.figures:
            value = format_value(figure.value, figure.unit) if figure.unit else f"{figure.value:g}"
            table.add_row(check.name, figure.name, value)
        for name, fact in check.facts.items():
            if len(fact) <= _WIDEST_FACT:
                table.add_row(check.name, name, fact)
    return table


def _summary(report: AcceptanceReport) -> Table:
    from rich.text import Text  # noqa: PLC0415 - a pipeline that asks for JSON does not pay for it

    table = plain_table("status", "check", "time", "evidence", folding="evidence")
    for check in report.checks:
        status = Text(check.status.value.upper(), style=_STYLES[check.status])
        table.add_row(status, check.name, f"{check.seconds:.0f} s", Text(check.evidence))
    return table


def _tell_start(name: str) -> None:
    sys.stderr.write(f"mainstay accept-gpu: {name}: {CHECKS[name].proves} ...\n")
