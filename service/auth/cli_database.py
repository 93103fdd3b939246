"""The database under commands that manage users and tokens while no service need run; each act is recorded."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mainstay.probes.command_options import fail
from mainstay.service.config.options import DatabaseOptions, settings_of

if TYPE_CHECKING:  # commands import what they need when they run
    from mainstay.service.common.db import Database, WriteSession


def database_of(options: DatabaseOptions, command: str) -> Database:
    """The database of the service, whose schema is current; ends the command where there is none."""
    from sqlalchemy.engine import make_url

    from mainstay.service import server as server_module
    from mainstay.service.common.db import Database

    settings = settings_of(options, command).model_copy(update={"migrate": False})
    file = make_url(settings.resolved_database_url).database or ""
    if settings.resolved_database_url.startswith("sqlite") and not Path(file).is_file():
        fail(command, f"there is no database at {file}: give the service's --data-dir or --database-url", 1)
    try:
        server_module.check_database(settings)
    except server_module.CannotServeError as error:
        fail(command, str(error), 1)
    return Database(settings.resolved_database_url)


@contextmanager
def changing(
    options: DatabaseOptions, command: str, action: str, target: str, detail: dict[str, Any]
) -> Iterator[tuple[WriteSession, float]]:
    """A transaction and its time (Unix seconds); with the record of whoever runs the command.

    A ``ProblemError`` ends the command with its text.
    """
    from mainstay.service.audit.record import record_act
    from mainstay.service.common.clock import SystemClock
    from mainstay.service.common.problem import ProblemError

    now = SystemClock().now()
    try:
        actor = getpass.getuser()
    except (KeyError, OSError):  # a container may know no names
        actor = f"uid {os.getuid()}"
    try:
        with database_of(options, command).session() as session:
            yield session, now
            record_act(session, at=now, actor=actor, actor_kind="command", action=action, target=target, detail=detail)
    except ProblemError as error:
        fail(command, str(error), 1 if error.status == 404 else 2)
