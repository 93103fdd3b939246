"""``mainstay cluster``: the processes of a service, read from its database, so that it works while none answers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from cyclopts import App

from mainstay.detectors.cli_errors import AsJson
from mainstay.probes.command_options import fail
from mainstay.service.config.options import DatabaseOptions, settings_of

if TYPE_CHECKING:  # commands import what they need when they run
    from mainstay.service.cluster.schemas import ClusterRead

cluster = App(name="cluster", help="Show the processes of a service on PostgreSQL.")


@cluster.command
def status(options: DatabaseOptions = DatabaseOptions(), *, as_json: AsJson = False) -> None:
    """Show which processes run, and which of them does detection, remediation, and other work of one process.

    The command exits with 1 if no process holds some lease.
    """
    from mainstay.service import server
    from mainstay.service.cluster.status import read_shared

    settings = settings_of(options, "cluster status")
    if settings.resolved_database_url.startswith("sqlite"):
        fail("cluster status", "a service on SQLite is one process: give --database-url postgresql://…")
    try:
        server.check_database(settings.model_copy(update={"migrate": False}))
        with server.open_database(settings) as database, database.reading() as session:
            found = read_shared(session, settings.cluster.lease_seconds)
    except server.CannotServeError as error:
        fail("cluster status", str(error), 1)
    print(found.model_dump_json(indent=2) if as_json else "\n".join(_lines(found)))
    if not found.leases or any(lease.holder is None for lease in found.leases):
        sys.exit(1)


def _lines(found: ClusterRead) -> list[str]:
    lines = [f"{'process':16}  {'state':8} {'last report':>11}  {'pending':>7}  {'lag':>6}  version  role     address"]
    lines += [
        f"{one.id}  {one.state:8} {one.seen_seconds:9.1f} s  {one.pending_frames:7d}  {one.lag_seconds:4.1f} s"
        f"  {one.version:7}  {one.role:7}  {one.url} ({one.host}, process {one.pid})"
        for one in found.processes
    ]
    lines += ["", f"{'lease':16}  {'held by':16}  {'epoch':>5}"]
    return lines + [f"{one.name:16}  {one.holder or 'no process':16}  {one.epoch:5d}" for one in found.leases]
