"""``mainstay drain`` and ``mainstay undrain``, for one node or many.

Exit codes: 0 done, 2 invalid input or not confirmed, 5 the service refused a node or did not answer.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from cyclopts import Parameter

from mainstay.detectors.cli_errors import Flag, InputError, one_line
from mainstay.probes.transport import TransportError
from mainstay.service.commands.cli import CODES, Connection, Names, span_seconds
from mainstay.service.commands.output import Json, show
from mainstay.service.commands.tables import MOVES

if TYPE_CHECKING:
    from mainstay.probes.transport import Transport

_READ_SECONDS: Final = 120.0
"""How long the answer about a thousand nodes may take."""
_STORED: Final = Connection()
_NAMED: Final = 5
"""Refused nodes that the error names."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which nodes beside those that are named; all criteria that are given must hold."""

    rack: Names = ()
    """Only nodes in these racks."""
    cohort: Names = ()
    """Only nodes of these cohorts."""
    state: Names = ()
    """Only nodes in these states."""
    preview: Flag = False
    """Show what would happen, and change nothing."""
    yes: Flag = False
    """Do not ask for confirmation."""

    @property
    def criteria(self) -> Json:
        return {"racks": self.rack, "cohorts": self.cohort, "states": self.state}


@one_line("mainstay drain", CODES)
def drain(
    *names: str,
    connection: Connection = _STORED,
    selection: Selection = Selection(),
    reason: str | None = None,
    migrate: Flag = False,
    deadline: str | None = None,
) -> int:
    """Take nodes out of service: they get no new work, and leave when their work has ended.

    Parameters
    ----------
    names
        Names of the nodes.
    reason
        Record this reason; required unless --preview.
    migrate
        Ask running jobs to move their ranks away first.
    deadline
        Quarantine the nodes after this time (30m, 2h) even if work is left.
    """
    options: Json = {"mode": "migrate" if migrate else "wait"}
    options |= {} if deadline is None else {"deadline_seconds": span_seconds(deadline, "--deadline")}
    return _move("drain", names, selection, connection, {"reason": reason or "", **options})


@one_line("mainstay undrain", CODES)
def undrain(
    *names: str,
    connection: Connection = _STORED,
    selection: Selection = Selection(),
    reason: str | None = None,
) -> int:
    """Return drained nodes to service.

    Parameters
    ----------
    names
        Names of the nodes.
    reason
        Record this reason; required unless --preview.
    """
    return _move("undrain", names, selection, connection, {"reason": reason or ""})


def _move(verb: str, names: tuple[str, ...], selection: Selection, connection: Connection, body: Json) -> int:
    selects = any(selection.criteria.values())
    if not names and not selects:
        raise InputError("name at least one node, or give --rack, --cohort, or --state")
    if not body["reason"] and not selection.preview:
        raise InputError("give a reason with --reason")
    if selects and not (selection.preview or selection.yes or sys.stdin.isatty()):
        raise InputError("give --yes to confirm without a terminal, or --preview to see which nodes match")
    transport = connection.open()
    if len(names) == 1 and not selects and not selection.preview:
        told = transport.json("POST", f"/nodes/{quote(names[0], safe='')}:{verb}", body)
        sys.stdout.write(f"{names[0]}: {told['state']}\n")
        return 0
    return _move_many(transport, verb, body | {"nodes": names, **selection.criteria}, selection)


def _move_many(transport: Transport, verb: str, body: dict[str, Any], selection: Selection) -> int:
    seen = transport.json("POST", f"/nodes:{verb}", body | {"preview": True}, read_s=_READ_SECONDS)
    if selection.preview:
        _print(seen)
        return 0
    if not selection.yes and seen["changed"] and sys.stdin.isatty():
        _print(seen)
        _confirm(verb, seen)
    confirmed = body | {"confirm_count": seen["matched"]}
    moved = transport.json("POST", f"/nodes:{verb}", confirmed, read_s=_READ_SECONDS)
    _print(moved)
    refused = [f"{item['node']}: {item['detail']}" for item in moved["items"] if not item["accepted"]]
    if refused:
        more = f"; and {len(refused) - _NAMED} more" if len(refused) > _NAMED else ""
        raise TransportError("; ".join(refused[:_NAMED]) + more)
    return 0


def _print(moved: Json) -> None:
    show(moved["items"], MOVES, "table", empty="no nodes match")


def _confirm(verb: str, seen: Json) -> None:
    jobs = {job for item in seen["items"] if item["accepted"] for job in item["jobs"]}
    question = f"{verb.capitalize()} {len(seen['changed'])} of {seen['fleet']} nodes, with {len(jobs)} jobs? [y/N] "
    if input(question).strip().lower() not in {"y", "yes"}:
        raise InputError("not confirmed: nothing was changed")
