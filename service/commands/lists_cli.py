"""``mainstay jobs``, ``devices``, ``findings``, and ``report``."""

from __future__ import annotations

import time
from typing import Annotated, Final, Literal

from cyclopts import Parameter

from mainstay.detectors.cli_errors import InputError, one_line
from mainstay.service.commands.cli import CODES, Connection, Listing, pages, span_seconds
from mainstay.service.commands.output import print_data, repeat, show
from mainstay.service.commands.tables import DEVICES, FINDINGS, GOODPUT, JOBS

Table = Literal["jobs", "teams"]
_UNKNOWN: Final = "unknown"


@one_line("mainstay jobs", CODES)
def jobs(
    connection: Connection = Connection(),
    listing: Listing = Listing(),
    *,
    state: str | None = None,
    limit: int = 200,
) -> int:
    """List jobs, the most recently started first.

    Parameters
    ----------
    state
        Only jobs in this state, such as running.
    limit
        Print at most so many.
    """
    transport = connection.open()
    return repeat(
        lambda: show(pages(transport, "/jobs", limit, state=state), JOBS, listing.output, empty="no jobs"),
        watch=listing.watch,
    )


@one_line("mainstay devices", CODES)
def devices(
    connection: Connection = Connection(),
    listing: Listing = Listing(),
    *,
    node: str | None = None,
    limit: int = 1000,
) -> int:
    """List GPUs and network ports with their serial numbers.

    Parameters
    ----------
    node
        Only devices of this node.
    limit
        Print at most so many.
    """
    transport = connection.open()
    return repeat(
        lambda: show(pages(transport, "/devices", limit, node=node), DEVICES, listing.output, empty="no devices"),
        watch=listing.watch,
    )


@one_line("mainstay findings", CODES)
def findings(
    connection: Connection = Connection(),
    listing: Listing = Listing(),
    *,
    node: str | None = None,
    job: str | None = None,
    kind: str | None = None,
    ended: Annotated[bool, Parameter(negative=())] = False,
    limit: int = 200,
) -> int:
    """List active findings, newest first.

    Parameters
    ----------
    node
        Only findings about this node.
    job
        Only findings about this job.
    kind
        Only findings of this kind, such as xid.
    ended
        List findings that have ended instead.
    limit
        Print at most so many.
    """
    transport = connection.open()
    query = {"node": node, "job": job, "kind": kind, "active": "false" if ended else "true"}
    return repeat(
        lambda: show(
            pages(transport, "/findings", limit, **query), FINDINGS, listing.output,
            empty="no ended findings" if ended else "no active findings",
        ),
        watch=listing.watch,
    )  # fmt: skip


@one_line("mainstay report", CODES)
def report(
    connection: Connection = Connection(),
    *,
    output: Annotated[Literal["table", "wide", "json", "yaml"], Parameter(name=("--output", "-o"))] = "table",
    last: str = "30d",
    table: Table = "jobs",
) -> int:
    """Show what failures cost: effective training time, lost GPU hours, and time between failures.

    Parameters
    ----------
    output
        Print a table, a wide table, JSON, or YAML.
    last
        Length of the period up to now, such as 7d or 12h.
    table
        Show one row for each job, or for each team.
    """
    span = span_seconds(last, "--last")
    if not 0 < span <= 366 * 86_400:
        raise InputError(f"--last {last} must be above 0 and at most 366d")
    told = connection.open().json("GET", f"/reports/reliability?since={time.time() - span:.0f}")
    if output in {"json", "yaml"}:
        print_data(told, output)
        return 0
    whole, between = told["summary"], told["summary"]["between_failures"]
    lost = sum(whole["lost_gpu_hours"].values())
    ettr = _UNKNOWN if whole["ettr"] is None else f"{whole['ettr']:.2%}"
    hours = _UNKNOWN if between["hours"] is None else f"{between['hours']:,.0f} node hours"
    print(f"effective training time: {ettr} of {whole['gpu_hours']:,.0f} GPU hours; lost: {lost:,.1f}")
    print(f"recoveries: {whole['recoveries']}, failed: {whole['failed_recoveries']}; between failures: {hours}")
    print()
    show(told[table], GOODPUT[table], output, empty=f"no {table}")
    return 0
