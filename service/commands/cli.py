"""``mainstay status``, ``nodes``, ``incidents``, ``silences``, and what an operator does about them.

Exit codes: 0 done, 1 fewer fit nodes than asked for, 2 invalid input, 5 the service rejected the request or did not
answer.
"""

from __future__ import annotations

import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import quote, urlencode

from cyclopts import Parameter

from mainstay.detectors.cli_errors import BAD_INPUT, NO_SERVICE, InputError, one_line, open_transport
from mainstay.probes.transport import TransportError
from mainstay.service.commands.contexts import Context, store, stored
from mainstay.service.commands.output import Format, Json, age, print_data, repeat, show
from mainstay.service.commands.tables import FIT_NODES, INCIDENTS, JOBS, NODES, SILENCES, covers

if TYPE_CHECKING:
    from mainstay.probes.transport import Transport

_PAGE: Final = 200
_SPAN: Final = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>[smhd])")
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
CODES: Final[dict[type[Exception], int]] = {InputError: BAD_INPUT, TransportError: NO_SERVICE}
Names = Annotated[tuple[str, ...], Parameter(negative=(), consume_multiple=True)]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Which service; without these options, the one of mainstay login."""

    service: Annotated[str | None, Parameter(env_var="MAINSTAY_SERVICE")] = None
    """Connect to the service at this URL."""
    token: Annotated[str | None, Parameter(env_var="MAINSTAY_TOKEN")] = None
    """Use this token; prefer a file, as all users can read a command line."""
    token_file: Annotated[Path | None, Parameter(env_var="MAINSTAY_TOKEN_FILE")] = None
    """Read the token from this file."""

    def open(self) -> Transport:
        """Raises InputError: no service, or no token."""
        if self.service is not None:
            return open_transport(self.service, self.token, self.token_file)
        context = stored()
        if context is None:
            raise InputError("no service: give --service and --token-file, or run mainstay login")
        return open_transport(context.service, self.token or context.token, self.token_file)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """How to print."""

    output: Annotated[Format, Parameter(name=("--output", "-o"))] = "table"
    """Print a table, a wide table, JSON, or YAML."""
    watch: Annotated[bool, Parameter(name=("--watch", "-w"), negative=())] = False
    """Print again each two seconds until Ctrl-C."""


def pages(transport: Transport, path: str, limit: int, **query: object) -> list[Json]:
    """Items of a list, up to ``limit``."""
    found: list[Json] = []
    wanted = {name: value for name, value in query.items() if value is not None}
    cursor: str | None = None
    while len(found) < limit:
        page = {"limit": min(_PAGE, limit - len(found))} | ({"cursor": cursor} if cursor else {})
        answer = transport.json("GET", f"{path}?{urlencode(wanted | page)}")
        found += answer["items"]
        cursor = answer["next_cursor"]
        if cursor is None:
            break
    return found


@one_line("mainstay login", CODES)
def login(service: str, /, *, token_file: Path) -> int:
    """Store a service and a token for later commands.

    Parameters
    ----------
    service
        URL of the service.
    token_file
        Read the token from this file.
    """
    transport = open_transport(service, None, token_file)
    me = transport.json("GET", "/auth/me")
    file = store(Context(transport.url, transport.token))
    scopes = ", ".join(me["scopes"] or me["job_scopes"])
    print(f"signed in to {transport.url} as {me['subject']} ({scopes}); stored in {file}")
    return 0


@one_line("mainstay status", CODES)
def status(connection: Connection = Connection(), listing: Listing = Listing()) -> int:
    """Show what is broken, what needs an operator, and which jobs run."""
    transport = connection.open()

    def print_once() -> None:
        told = transport.json("GET", "/overview")
        if listing.output in {"json", "yaml"}:
            print_data(told, listing.output)
            return
        counts = ", ".join(f"{count} {state}" for state, count in told["nodes"].items() if count)
        print(f"nodes: {counts or 'none'}; newest data {age(told['data_age_seconds'])} old")
        show(told["jobs"], JOBS, listing.output, empty="no jobs")
        known = {incident["id"]: incident for incident in (*told["needs_operator"], *told["active_incidents"])}
        print()
        show(list(known.values()), INCIDENTS, listing.output, empty="no active incidents")

    return repeat(print_once, watch=listing.watch)


@one_line("mainstay nodes", CODES)
def nodes(
    connection: Connection = Connection(),
    listing: Listing = Listing(),
    *,
    fit: int | None = None,
    state: str | None = None,
    rack: str | None = None,
    cohort: str | None = None,
    job: str | None = None,
    text: str | None = None,
    limit: int = 1000,
) -> int:
    """List nodes, or choose nodes that are fit for a new job.

    Parameters
    ----------
    fit
        Choose so many nodes that admission allows now and that run no job. Exit code 1: there are fewer.
    state
        Only nodes in this state.
    rack
        Only nodes in this rack.
    cohort
        Only nodes of this cohort.
    job
        Only nodes of this job; with --fit, the job that is to start.
    text
        Only nodes whose name, host name, rack, or cohort contains this text.
    limit
        Print at most so many.
    """
    if fit is not None:
        if state is not None or text is not None or listing.watch:
            raise InputError("--fit takes neither --state, --text, nor --watch: use --rack, --cohort, and --job")
        chosen = {"racks": [rack] if rack else [], "cohorts": [cohort] if cohort else []}
        return _fit(connection.open(), {"count": fit, "job": job, **chosen}, listing.output)
    transport = connection.open()
    query = {"state": state, "rack": rack, "cohort": cohort, "job": job, "q": text}
    return repeat(
        lambda: show(pages(transport, "/nodes", limit, **query), NODES, listing.output, empty="no nodes"),
        watch=listing.watch,
    )


def _fit(transport: Transport, body: Json, output: Format) -> int:
    told = transport.json("POST", "/admission:select", body)
    if output in {"json", "yaml"}:
        print_data(told, output)
    else:
        show(told["nodes"], FIT_NODES, output, empty="no fit nodes")
    if missing := told["count"] > len(told["nodes"]):
        print(f"mainstay nodes: {told['reason']}", file=sys.stderr)
    return int(missing)


@one_line("mainstay incidents", CODES)
def incidents(
    connection: Connection = Connection(),
    listing: Listing = Listing(),
    *,
    every: Annotated[bool, Parameter(name="--all", negative=())] = False,
    node: str | None = None,
    job: str | None = None,
    limit: int = 200,
) -> int:
    """List incidents that are not closed, newest first.

    Parameters
    ----------
    every
        Closed ones as well.
    node
        Only incidents with a finding about this node.
    job
        Only incidents of this job.
    limit
        Look at no more than so many of the newest.
    """
    transport = connection.open()

    def print_once() -> None:
        found = pages(transport, "/incidents", limit, node=node, job=job)
        chosen = [incident for incident in found if every or incident["state"] != "closed"]
        show(chosen, INCIDENTS, listing.output, empty="no incidents" if every else "no open incidents")

    return repeat(print_once, watch=listing.watch)


@one_line("mainstay ack", CODES)
def ack(incident: str, /, connection: Connection = Connection(), *, reason: str = "acknowledged") -> int:
    """Acknowledge an incident: an operator works on it, and messages are no longer repeated.

    Parameters
    ----------
    incident
        ID of the incident, or its last characters.
    reason
        Record this reason.
    """
    transport = connection.open()
    found = _one(pages(transport, "/incidents", 1000), incident, "incident")
    told = transport.json("POST", f"/incidents/{quote(found['id'])}:acknowledge", {"reason": reason})
    print(f"{told['title']}: acknowledged by {told['acknowledged_by']}")
    return 0


def _one(items: list[Json], end: str, what: str) -> Json:
    found = [item for item in items if item["id"].endswith(end)]
    if len(found) != 1 or not end:
        raise InputError(f"{len(found)} {what}s have an ID that ends with {end!r}")
    return found[0]


@one_line("mainstay silences", CODES)
def silences(
    connection: Connection = Connection(),
    listing: Listing = Listing(),
    *,
    every: Annotated[bool, Parameter(name="--all", negative=())] = False,
    end: str | None = None,
) -> int:
    """List silences that are not over, or end one.

    Parameters
    ----------
    every
        Past ones as well.
    end
        End the silence with this ID, or with these last characters of it.
    """
    transport = connection.open()
    if end is not None:
        found = _one(pages(transport, "/silences", 1000), end, "silence")
        transport.json("POST", f"/silences/{quote(found['id'])}:end", {})
        print(f"ended: {covers(found)}")
        return 0
    query = {"all": "true"} if every else {}
    return repeat(
        lambda: show(pages(transport, "/silences", 1000, **query), SILENCES, listing.output, empty="no silences"),
        watch=listing.watch,
    )


@one_line("mainstay silence", CODES)
def silence(
    connection: Connection = Connection(),
    *,
    reason: str,
    span: Annotated[str, Parameter(name="--for")],
    node: Names = (),
    rack: Names = (),
    switch: Names = (),
    cohort: Names = (),
    job: Names = (),
    kind: Names = (),
    detector: Names = (),
    hours: str | None = None,
    timezone: str = "UTC",
) -> int:
    """Send no messages about some findings for a time. All conditions that are given must hold.

    Parameters
    ----------
    reason
        Record this reason.
    span
        Length, such as 30m, 2h, or 7d.
    node
        Names of nodes, or patterns such as n1*.
    rack
        Racks.
    switch
        Network switches above the nodes.
    cohort
        Cohorts.
    job
        Jobs.
    kind
        Kinds of findings, such as xid or node_lost.
    detector
        Detectors.
    hours
        Only in these hours, such as "Sat 02:00-06:00".
    timezone
        Time zone of the hours.
    """
    body = {
        "reason": reason, "ends_at": time.time() + span_seconds(span, "--for"), "hours": hours, "timezone": timezone,
        "nodes": node, "racks": rack, "switches": switch, "cohorts": cohort, "jobs": job, "kinds": kind,
        "detectors": detector,
    }  # fmt: skip
    told = connection.open().json("POST", "/silences", body)
    print(f"silence {told['id'][-8:]}: {covers(told)}; {told['nodes_matched']} nodes match now")
    return 0


def span_seconds(text: str, option: str) -> float:
    """Seconds of a text such as ``30m``.

    Raises:
        InputError: names the option.
    """
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        raise InputError(f"{option} {text!r} must be a time such as 90s, 30m, 2h, or 7d")
    return float(found["number"]) * _SECONDS[found["unit"]]
