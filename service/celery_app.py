"""Celery in its two shapes: worker and beat inside the service's process (memory://), or processes on Redis.

The same tasks either way; only the URL differs. Beat has one static entry, the tick: what is due stands in the
database, so a lost message costs one tick. Messages are JSON, never pickle.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from celery import Celery
from celery.beat import EmbeddedService
from celery.worker import WorkController
from kombu.exceptions import OperationalError as BrokerError
from sqlalchemy.exc import OperationalError

from mainstay.probes.stop_signal import stop_at_signal
from mainstay.service.common.shared_wakeups import SharedWakeups
from mainstay.service.services import Services
from mainstay.service.settings import CelerySettings
from mainstay.service.validation.tasks import Tasks

_log: Final = logging.getLogger(__name__)
TICK: Final = "mainstay.tick"
FAN_OUT: Final = "mainstay.fan_out"
TASK_SECONDS: Final = 120
"""Hard limit of a task, where the pool can enforce one (threads cannot): each is a few short transactions."""
START_SECONDS: Final = 10.0
STOP_SECONDS: Final = 10.0


def make_app(settings: CelerySettings) -> Celery:
    """A Celery app without tasks: enough to send."""
    app = Celery("mainstay", broker=settings.broker_url, set_as_current=False, fixups=[])
    memory = settings.broker_url.startswith("memory")
    app.conf.update(
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_time_limit=TASK_SECONDS,
        task_publish_retry=False,
        broker_connection_timeout=2,
        broker_connection_retry_on_startup=True,
        # Measured: the default polling second makes an idle in-memory worker look broken; this costs < 1 % of a core.
        broker_transport_options={"polling_interval": 0.01} if memory else {"socket_timeout": 10},
        worker_prefetch_multiplier=16,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_enable_remote_control=False,
        beat_schedule={
            "tick": {"task": TICK, "schedule": settings.tick_seconds, "options": {"expires": settings.tick_seconds * 2}}
        },
    )
    return app


def register(app: Celery, services: Services) -> None:
    """Give ``app`` the tasks, around ``services``."""
    options: dict[str, Any] = {
        "shared": False,
        "autoretry_for": (OperationalError,),  # the database is away: try again later
        "retry_backoff": True,
        "max_retries": 5,
    }
    tasks = Tasks(services, lambda run_id: _send(app, FAN_OUT, run_id))

    # Celery reads a task's signature, so each needs to be a plain function with a name.
    def tick() -> None:
        tasks.tick()

    def fan_out(run_id: str) -> None:
        tasks.fan_out(run_id)

    app.task(name=TICK, **options)(tick)
    app.task(name=FAN_OUT, **options)(fan_out)


def _send(app: Celery, task: str, *args: str) -> None:
    """Send a task; a broker that is away costs time, not the caller's work: the next tick finds the row."""
    try:
        app.send_task(task, args=args)
    except BrokerError as error:
        _log.warning("%s was not sent, the next tick does it: %s", task, error)


def connect(services: Services) -> Celery:
    """Let ``services.wakers.wake("tasks")`` reach the workers."""
    app = make_app(services.settings.celery)
    services.wakers.listen("tasks", lambda: _send(app, TICK), only_here=True)
    return app


@contextmanager
def embedded(services: Services) -> Iterator[Celery]:
    """Worker and beat in threads of this process for as long as the block lasts."""
    app = connect(services)
    with working(app, services, tasks=True, beat=True, concurrency=services.settings.celery.concurrency):
        yield app


@contextmanager
def working(app: Celery, services: Services, *, tasks: bool, beat: bool, concurrency: int) -> Iterator[None]:
    """Run tasks, or beat, or both."""
    register(app, services)
    # Pool threads look the app up as the process's default one: one running worker a process.
    app.set_default()
    with ExitStack() as running:
        if tasks:
            running.enter_context(_worker(app, concurrency))
        if beat:
            running.enter_context(_beat(app))
        yield


@contextmanager
def _worker(app: Celery, concurrency: int) -> Iterator[None]:
    ready = threading.Event()
    controller = WorkController(
        app=app,
        pool_cls="threads",
        concurrency=concurrency,
        without_mingle=True,
        without_gossip=True,
        without_heartbeat=True,
        ready_callback=lambda _consumer: ready.set(),
        quiet=True,
    )
    thread = threading.Thread(target=controller.start, name="celery-worker", daemon=True)
    thread.start()
    if not ready.wait(START_SECONDS):
        _log.warning("the task worker has not reached its broker within %.0f s; it keeps trying", START_SECONDS)
    try:
        yield
    finally:
        controller.stop()
        thread.join(STOP_SECONDS)


@contextmanager
def _beat(app: Celery) -> Iterator[None]:
    # The plain scheduler keeps nothing on disk: the schedule is static, and what is due stands in the database.
    service = EmbeddedService(app, thread=True, scheduler_cls="celery.beat:Scheduler")
    service.daemon = True
    service.start()
    try:
        yield
    finally:
        service.stop()


def run(services: Services, *, tasks: bool, beat: bool, concurrency: int) -> None:
    """``mainstay worker``: until a signal ends it."""
    stop = threading.Event()

    stop_at_signal(stop.set)
    app = make_app(services.settings.celery)
    with (
        SharedWakeups(services.database, services.wakers),
        working(app, services, tasks=tasks, beat=beat, concurrency=concurrency),
    ):
        print("mainstay worker is ready", flush=True)  # noqa: T201 - whoever started it waits for this line
        stop.wait()
