"""One engine, one Session type, the same code on SQLite and PostgreSQL, in requests and in Celery tasks.

A transaction begins with a session and is committed once, at the edge: by ``Database.session()`` or by the dependency
that lends it. No other code calls commit. A read handler is lent a ``ReadSession``, which code that
writes does not take.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, NewType

from fastapi import Depends, Request
from fastapi.concurrency import contextmanager_in_threadpool
from sqlalchemy import JSON, ColumnElement, DateTime, Double, MetaData, create_engine, event, literal_column, text
from sqlalchemy import orm as sa
from sqlalchemy.engine import URL, Connection, Dialect, Engine, ExceptionContext, make_url
from sqlalchemy.exc import OperationalError
from sqlalchemy.types import TypeDecorator, TypeEngine

from mainstay.service.common.back_pressure import BackPressure, TurnQueue

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}
WRITES: Final = "mainstay_writes"
"""Execution option of connections that write."""
_FIRST: Final = "first"
"""Value of ``WRITES`` of a writer that the others let through."""
_BUSY_SECONDS: Final = 15.0
"""How long a writer waits for SQLite; then the request is answered with 503."""
_WRITERS: Final = {"sqlite": 1, "postgresql": 12}
"""Requests that hold a write transaction at once: SQLite admits one writer, PostgreSQL's pool holds 50 connections."""
LOCKED_SECONDS: Final = 5.0
"""A transaction that lasts longer is stuck: the longest, of 500 findings, takes tenths of a second."""
IDLE_SECONDS: Final = 300
"""PostgreSQL ends a transaction of ours that waits for us so long, unless the site set another bound: one that wrote
holds back all changes (``stream.changes``). A restart reads frames of many kinds, and one reader waits for others."""
WRITER_IDLE_SECONDS: Final = 5.0
"""The same for a transaction that writes: what it wrote or locked, the other processes of a service wait for. A stopped
process, or one on a host that is gone, would hold it."""
CONNECT: Final = {
    "connect_timeout": 5, "tcp_user_timeout": 10_000,
    "keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3,
}  # fmt: skip
"""How libpq notices within 11 s that the server, or the network to it, is gone. By default whoever waits for an answer
waits two hours, and what is sent again comes half a minute after the network is back. The URL may say otherwise."""
_IDLE_IN_TRANSACTION: Final = "25P03"
"""SQLSTATE of a transaction that PostgreSQL ended because it waited for us."""


class UnixTime(TypeDecorator[float]):
    """Unix seconds in Python; ``timestamptz`` (microseconds) in PostgreSQL, a double in SQLite.

    Compare and sort it in SQL; do arithmetic on it in Python, where both databases agree.
    """

    impl = Double
    cache_ok = True

    @property
    def python_type(self) -> type[float]:
        return float

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(DateTime(timezone=True))
        return dialect.type_descriptor(Double())

    def process_bind_param(self, value: float | None, dialect: Dialect) -> Any:
        if value is None or dialect.name != "postgresql":
            return value
        return datetime.fromtimestamp(value, UTC)

    def process_result_value(self, value: Any, dialect: Dialect) -> float | None:
        if value is None or dialect.name != "postgresql":
            return None if value is None else float(value)
        stamp: float = value.timestamp()
        return stamp


class Base(sa.DeclarativeBase):
    """Every table of the control plane; relations are never loaded by accident (``lazy="raise"``)."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy reads it as a class attribute
        dict[str, Any]: JSON(none_as_null=True),
        list[Any]: JSON(none_as_null=True),
        list[str]: JSON(none_as_null=True),
        list[int]: JSON(none_as_null=True),
        float: Double(),
    }


def partial(condition: str, *, sqlite: str | None = None) -> dict[str, Any]:
    """Arguments of an index over the rows with ``condition``; ``sqlite`` is how SQLite puts it, if otherwise."""
    return {"sqlite_where": text(sqlite or condition), "postgresql_where": text(condition)}


def is_one_of(column: sa.InstrumentedAttribute[str], values: Iterable[str]) -> ColumnElement[bool]:
    """The condition of a partial index in a query, word by word: SQLite uses no such index for parameters."""
    return column.in_([literal_column(f"'{value}'") for value in values])


class Session(sa.Session):
    """A session whose transaction can carry work to its own edge."""


ReadSession = NewType("ReadSession", Session)
WriteSession = NewType("WriteSession", Session)
AnySession = ReadSession | WriteSession


def before_commit(session: WriteSession, name: str, work: Callable[[WriteSession], None]) -> None:
    """Run ``work`` once as the last statements of the transaction; a second call with the same name replaces it."""
    session.info.setdefault("before_commit", {})[name] = work


def after_commit(session: WriteSession, work: Callable[[], None]) -> None:
    """Run ``work`` when the transaction is durable; dropped when it rolls back. Send tasks and wake loops here."""
    session.info.setdefault("after_commit", []).append(work)


_FENCE: Final[ContextVar[Callable[[WriteSession], None] | None]] = ContextVar("fence", default=None)


@contextmanager
def fenced(check: Callable[[WriteSession], None]) -> Iterator[None]:
    """Begin each ``Database.session()`` of this thread with ``check``, which raises where it must not commit."""
    token = _FENCE.set(check)
    try:
        yield
    finally:
        _FENCE.reset(token)


def _run_before(session: Session) -> None:
    session.flush()
    for work in session.info.pop("before_commit", {}).values():
        work(WriteSession(session))


def _run_after(session: Session) -> None:
    for work in session.info.pop("after_commit", ()):
        work()


class _WriterQueue:
    """SQLite's one writer: people before loops and reports, first come first served among each.

    SQLite's own lock lets whoever asks often starve the others.
    """

    def __init__(self) -> None:
        self._guard, self._held_since = threading.Lock(), 0.0
        self._people: deque[threading.Event] = deque()
        self._others: deque[threading.Event] = deque()

    def held_seconds(self) -> float:
        """How long the current writer has held the database; 0 without one."""
        since = self._held_since
        return time.monotonic() - since if since else 0.0

    def acquire(self, *, first: bool) -> None:
        """Wait to be the writer.

        Raises:
            OperationalError: for longer than ``_BUSY_SECONDS``.
        """
        mine, waiting = threading.Event(), self._people if first else self._others
        with self._guard:
            if not self._held_since:
                self._held_since = time.monotonic()
                return
            waiting.append(mine)
        if mine.wait(_BUSY_SECONDS):
            return
        with self._guard:
            if not mine.is_set():
                waiting.remove(mine)
                raise OperationalError("BEGIN IMMEDIATE", None, TimeoutError("database is locked"))

    def release(self) -> None:
        """Hand over to the writer that has waited longest: no other can come in between."""
        with self._guard:
            waiting = self._people or self._others
            self._held_since = time.monotonic() if waiting else 0.0
            if waiting:
                waiting.popleft().set()

    def on_begin(self, connection: Connection) -> None:
        # A writer takes the lock at once: upgrading a read lock later fails without waiting when another writer came
        # first.
        writes = connection.get_execution_options().get(WRITES, False)
        if not writes:
            connection.exec_driver_sql("BEGIN")
            return
        self.acquire(first=writes == _FIRST)
        connection.info[WRITES] = True
        with ExitStack() as unless_begun:
            unless_begun.callback(self.on_end, connection)
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            unless_begun.pop_all()

    def on_end(self, connection: Connection) -> None:
        if connection.info.pop(WRITES, False):
            self.release()


class Database:
    """The control plane's database behind one URL.

    Args:
        url: ``sqlite:///FILE`` or ``postgresql+psycopg://…`` (``postgresql://`` means the same).
    """

    def __init__(self, url: str) -> None:
        self.url = normalize_url(url)
        self._queue = _WriterQueue()
        self.engine = _engine(self.url, self._queue)
        self._sessions, self._first = (
            sa.sessionmaker(self.engine.execution_options(**{WRITES: how}), class_=Session, expire_on_commit=False)
            for how in (True, _FIRST)
        )
        self._readers = sa.sessionmaker(self.engine, class_=Session, expire_on_commit=False, autoflush=False)
        # A request waits for its turn to write without a thread. Were the threads to wait for SQLite's lock instead,
        # none would be left for the request that holds it: 40 simultaneous writers would block one another.
        self.pressure, at_once = BackPressure(), _WRITERS[self.engine.dialect.name]
        shed = self.pressure.shed
        # A person waits longer than a node, which keeps its data and comes again.
        self.writers = TurnQueue("requests", at_once=at_once, longest=200, seconds=10.0, shed=shed)
        # Claims of idempotency keys wait in threads, of which they may not take all.
        self.claims = TurnQueue("requests", at_once=4, longest=200, seconds=10.0, shed=shed)
        self.reporters = TurnQueue("reports", at_once=at_once, longest=500, seconds=5.0, shed=shed)

    @property
    def is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    @contextmanager
    def session(self, *, first: bool = False) -> Iterator[WriteSession]:
        """One transaction: committed when the block ends, rolled back when it raises. A person's goes ``first``."""
        fence = _FENCE.get()
        with (self._first if first else self._sessions)() as session:
            if fence is not None:
                fence(WriteSession(session))
            yield WriteSession(session)
            _run_before(session)
            session.commit()
            _run_after(session)

    @contextmanager
    def reading(self) -> Iterator[ReadSession]:
        """A snapshot to read from; all writes in it are rolled back."""
        with self._readers() as session:
            yield ReadSession(session)

    def ping(self) -> None:
        """Raise ``OperationalError`` when the database does not answer."""
        with self.engine.connect() as connection:
            connection.exec_driver_sql("SELECT 1")

    def lock_fault(self) -> str | None:
        """Why nothing can be written now; None when it can. Cheap, and no writer waits for it."""
        if not self.is_sqlite:
            return None  # it has no lock that stops all writers
        held = self._queue.held_seconds()
        if held > LOCKED_SECONDS:
            return f"a transaction has held the database for {held:.0f} s: another process locks it, or the disk hangs"
        return None if held else self._foreign_lock()

    def _foreign_lock(self) -> str | None:
        """Whether another process holds SQLite's lock; asked while this one writes nothing."""
        probe = sqlite3.connect(self.url.database or "", timeout=0.5, isolation_level=None)
        try:
            probe.execute("BEGIN IMMEDIATE")
            probe.execute("ROLLBACK")
        except sqlite3.OperationalError as error:
            return None if self._queue.held_seconds() else f"{error}: another process holds its lock"
        finally:
            probe.close()
        return None

    def close(self) -> None:
        self.engine.dispose()


def normalize_url(url: str) -> URL:
    """Parse ``url``; PostgreSQL always goes through psycopg 3.

    Raises:
        ValueError: the URL names another database.
    """
    parsed = make_url(url)
    if parsed.get_backend_name() == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() != "sqlite":
        raise ValueError(f"database {parsed.get_backend_name()!r} is not supported: use sqlite or postgresql")
    return parsed


def _engine(url: URL, queue: _WriterQueue) -> Engine:
    options: dict[str, Any] = {"json_serializer": _to_json, "pool_size": 20, "max_overflow": 30, "pool_timeout": 10}
    if url.get_backend_name() == "sqlite":
        if not url.database or url.database == ":memory:":
            raise ValueError("an in-memory SQLite is one database per connection: give it a file")
        file = Path(url.database)
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            file.touch(mode=0o600)  # SQLite gives its log the same mode
        engine = create_engine(url, connect_args={"timeout": _BUSY_SECONDS}, **options)
        event.listen(engine, "connect", _on_sqlite_connect)
        event.listen(engine, "begin", queue.on_begin)
        event.listen(engine, "commit", queue.on_end)
        event.listen(engine, "rollback", queue.on_end)
        return engine
    # The pool checks a connection before lending it: a restarted server costs one ping, not one failed request.
    connect = {name: value for name, value in CONNECT.items() if name not in url.query}
    engine = create_engine(url, pool_pre_ping=True, connect_args=connect, **options)
    event.listen(engine, "connect", _on_postgres_connect)
    event.listen(engine, "begin", _on_postgres_begin)
    event.listen(engine, "handle_error", _on_postgres_error, retval=True)
    return engine


def _on_postgres_connect(connection: Any, _record: Any) -> None:
    statement = "SELECT set_config(name, %s, false) FROM pg_settings WHERE name = %s AND setting = '0'"
    connection.execute(statement, (f"{IDLE_SECONDS}s", "idle_in_transaction_session_timeout"))
    connection.commit()


def _on_postgres_begin(connection: Connection) -> None:
    if connection.get_execution_options().get(WRITES, False):
        connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = '{WRITER_IDLE_SECONDS}s'")


def _on_postgres_error(context: ExceptionContext) -> Exception | None:
    # The driver calls it an internal error, as those of statements that are wrong. It is a connection that is gone.
    cause = context.original_exception
    if getattr(cause, "sqlstate", None) != _IDLE_IN_TRANSACTION:
        return None
    return OperationalError(context.statement, context.parameters, cause, connection_invalidated=True)


def _to_json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _on_sqlite_connect(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # SQLAlchemy's begin event issues BEGIN; the driver must not issue its own
    for pragma in (
        "journal_mode=WAL",
        "foreign_keys=ON",
        f"busy_timeout={_BUSY_SECONDS * 1000:.0f}",
        "synchronous=FULL",
    ):
        connection.execute(f"PRAGMA {pragma}")


async def _lend_write(request: Request) -> AsyncIterator[WriteSession]:
    database: Database = request.app.state.database
    async with database.writers.hold_turn(), contextmanager_in_threadpool(database.session(first=True)) as session:
        yield session
        if record := getattr(request.state, "record_act", None):  # from the guard, which knows who acts
            before_commit(session, "audit", record)


async def _lend_report(request: Request) -> AsyncIterator[WriteSession]:
    database: Database = request.app.state.database
    async with database.reporters.hold_turn(), contextmanager_in_threadpool(database.session()) as session:
        yield session


def _lend_read(request: Request) -> Iterator[ReadSession]:
    database: Database = request.app.state.database
    with database.reading() as session:
        yield session


# scope="function": the commit happens before the answer is sent, so an acknowledged change is a durable one.
Writing = Annotated[WriteSession, Depends(_lend_write, scope="function")]
"""Dependency of a handler that writes."""
Reporting = Annotated[WriteSession, Depends(_lend_report, scope="function")]
"""Dependency of a handler that stores what nodes and jobs report: a burst of them does not delay what people do."""
Reading = Annotated[ReadSession, Depends(_lend_read, scope="function")]
"""Dependency of a handler that reads."""
