"""Consistent copies of databases while a service writes to them: SQLite's online backup, and ``pg_dump``."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Final

from psycopg.conninfo import make_conninfo
from sqlalchemy import inspect

from mainstay.service.backup.manifest import BackupError
from mainstay.service.common.db import Database

_TELEMETRY: Final = ("blocks", "blocks_h*", "block_commits", "block_members")
"""Tables of telemetry in PostgreSQL: a service makes them where they are missing."""


def copy_sqlite(source: Path, target: Path, *, check: bool = False) -> None:
    """Copy a database in one read transaction, so as it was at one moment; writers do not wait for it.

    Raises:
        BackupError: it cannot be read, or is damaged (looked for with ``check``).
    """
    try:
        with (
            closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=rw", uri=True, timeout=15)) as reader,
            closing(sqlite3.connect(target)) as copy,
        ):
            reader.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")  # one file, without a log beside it
            fault = copy.execute("PRAGMA quick_check(1)").fetchone()[0] if check else "ok"
    except sqlite3.Error as error:
        raise BackupError(f"cannot copy {source}: {error}") from error
    if fault != "ok":
        raise BackupError(f"{source} is damaged: {fault}")


def dump_postgres(database: Database, target: Path, *, telemetry: bool) -> None:
    """Write a dump in PostgreSQL's custom format, without privileges and owners.

    Raises:
        BackupError: pg_dump is missing, or failed.
    """
    excluded = () if telemetry else (f"--exclude-table={table}" for table in _TELEMETRY)
    _run("pg_dump", database, "--format=custom", f"--file={target}", *excluded)


def restore_postgres(database: Database, dump: Path) -> None:
    """Replace all tables of the database by those of a dump, which is looked at before anything is dropped.

    Raises:
        BackupError: pg_restore is missing, or cannot read the dump.
        SQLAlchemyError: a table is in use.
    """
    _call("pg_restore", "--list", str(dump))
    with database.engine.begin() as connection:
        connection.exec_driver_sql("SET LOCAL lock_timeout = '5s'")
        for table in inspect(connection).get_table_names():
            name = connection.dialect.identifier_preparer.quote(table)
            connection.exec_driver_sql(f"DROP TABLE IF EXISTS {name} CASCADE")
        connection.exec_driver_sql("DROP FUNCTION IF EXISTS refuse_audit_change()")  # of the trigger of the audit log
    _run("pg_restore", database, "--single-transaction", "--exit-on-error", str(dump))


def _run(program: str, database: Database, *arguments: str) -> None:
    """Run a client program on the database; a password goes through the environment, as all users read arguments."""
    options = {name: given if isinstance(given, str) else ",".join(given) for name, given in database.url.query.items()}
    options |= database.url.translate_connect_args(username="user", database="dbname")
    password = options.pop("password", None)
    environment = {} if password is None else {"PGPASSWORD": password}
    where = f"--dbname={make_conninfo(**options)}"
    _call(program, "--no-password", "--no-owner", "--no-privileges", where, *arguments, **environment)


def _call(program: str, *arguments: str, **environment: str) -> None:
    command = [program, *arguments]
    try:
        done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise BackupError(f"{program} is missing: install the client programs of your PostgreSQL version") from None
    if done.returncode:
        why = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip())
        raise BackupError(f"{program} failed: {why.removeprefix(f'{program}: ').removeprefix('error: ')}")
