"""Fixtures that every layer's tests share: real servers, free ports, a browser.

Private servers are started once a run, by whichever worker needs one first, and ended by the controller by their own
process ids. Each test gets a database of its own; of a Redis that was there before us only an empty database is used.
Temporary folders lie in memory where there is room, a private PostgreSQL's too: thousands of small databases need not
reach a disk, and what tests kill is processes, whose files outlive them there just as well.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib.util
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from tests.data import DATA
from tests.groups import GroupScheduling
from tests.retries import read_list

if TYPE_CHECKING:
    from xdist.remote import Producer

    from mainstay.service.demo.stack import Stack
    from tests.fork_server.processes import Warm

# A shared machine has slow moments, and a test that fails must fail again: what is drawn depends on nothing else, and
# not on the modules that a worker happens to have imported, whose constants would be drawn too. To draw at random:
# ``--hypothesis-profile default``.
settings.register_profile("mainstay", deadline=None, derandomize=True)
settings.load_profile("mainstay")
if hasattr(providers, "_get_local_constants"):
    providers._get_local_constants = Constants

for _library in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    # Several workers share the cores: a pool of threads in each of them spins more than it computes. What asks for
    # threads itself still has them. Before any module imports numpy or torch; workers and children inherit it.
    os.environ.setdefault(_library, "1")

# Hundreds of processes start here, and each would compile the project again; workers would rewrite every assertion.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

_RUN_DIR = "MAINSTAY_TEST_RUN_DIR"
_MEMORY = Path("/dev/shm")
_MEMORY_NAME = "mst-tests-"
_RUN_NAME = "mainstay-tests-"
_ROOM_BYTES = 4 * 2**30
"""Free memory from which temporary folders lie there: a whole run leaves some 300 MB, and ranks have arenas beside."""


def _load_machine() -> ModuleType:
    if "mainstay_tests_machine" in sys.modules:
        return sys.modules["mainstay_tests_machine"]
    spec = importlib.util.spec_from_file_location("mainstay_tests_machine", Path(__file__).with_name("machine.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mainstay_tests_machine"] = module
    spec.loader.exec_module(module)
    return module


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return
    memory = _memory()
    run_dir = tempfile.mkdtemp(prefix=f"{_RUN_NAME}{os.getpid()}-", dir=memory)
    Path(run_dir).chmod(0o755)  # PostgreSQL runs as another user when we are root
    os.environ[_RUN_DIR] = run_dir
    if memory and config.option.basetemp is None:
        config.option.basetemp = str(memory / f"{_MEMORY_NAME}{os.getpid()}")


def _memory() -> Path | None:
    """Where there is room in memory."""
    if not os.access(_MEMORY, os.W_OK):
        return None
    for name in (_MEMORY_NAME, _RUN_NAME):
        for old in _MEMORY.glob(f"{name}*"):
            pid = old.name.removeprefix(name).split("-")[0]
            if not Path(f"/proc/{pid}").exists():  # that run was killed
                shutil.rmtree(old, ignore_errors=True)
    return _MEMORY if shutil.disk_usage(_MEMORY).free >= _ROOM_BYTES else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """Collect no garbage among what stays: its passes over more and more items took a seventh of a worker's start."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Exempt what was collected from garbage collection: passes over 11,000 items took a third of the tests' time.

    What little of it is garbage stays: to find that took each worker a second.
    """
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """``-m exclusive`` is a handful of tests: to import all the other files took longer than they do."""
    others = config.option.markexpr == "exclusive" and collection_path.suffix == ".py"
    return True if others and "mark.exclusive" not in collection_path.read_text(encoding="utf-8") else None


@pytest.hookimpl(optionalhook=True)  # absent under ``-p no:xdist``
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> GroupScheduling | None:
    """Our own in the place of ``--dist loadgroup``."""
    return GroupScheduling(config, log) if config.getoption("dist") == "loadgroup" else None


def pytest_unconfigure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return
    run_dir = Path(os.environ.pop(_RUN_DIR))
    for record in run_dir.glob("*.json"):
        pid = json.loads(record.read_text())["pid"]
        if pid:
            os.kill(pid, signal.SIGINT)
            _wait_until_gone(pid)  # it would write to a folder that is being removed
    shutil.rmtree(run_dir, ignore_errors=True)
    shutil.rmtree(_MEMORY / f"{_MEMORY_NAME}{os.getpid()}", ignore_errors=True)


def _wait_until_gone(pid: int, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):  # without workers, a server may be this process's own child
            os.waitpid(pid, os.WNOHANG)
        time.sleep(0.02)


def _shared(name: str, find: Callable[[], str | None], start: Callable[[Path], tuple[str, int]]) -> str:
    """URL of the run's server ``name``: found once, or started once, whichever worker comes first."""
    run_dir = Path(os.environ[_RUN_DIR])
    record = run_dir / f"{name}.json"
    with (run_dir / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not record.exists():
            url, pid = find() or "", 0
            if not url:
                url, pid = start(run_dir / name)
            record.write_text(json.dumps({"url": url, "pid": pid}))
        return str(json.loads(record.read_text())["url"])


@pytest.fixture(scope="session")
def postgres_server() -> str:
    """SQLAlchemy URL of a real PostgreSQL."""
    machine = _load_machine()
    return _shared("postgres", machine.find_postgres_for_tests, machine.start_postgres)


@dataclass
class Databases:
    """Makes databases on the real PostgreSQL, and drops them beside the tests: a drop waits for the server's disk."""

    server: str
    dropper: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    dropping: list[Future[None]] = field(default_factory=list)

    @cached_property
    def strategy(self) -> str:
        """To copy the files of a template takes half of what it takes to write its blocks to the log, the default."""
        import psycopg

        with psycopg.connect(self.plain) as connection:
            return "STRATEGY FILE_COPY" if connection.info.server_version >= 150000 else ""

    @property
    def plain(self) -> str:
        return self.server.replace("postgresql+psycopg://", "postgresql://")

    def run(self, statement: str) -> None:
        import psycopg

        with psycopg.connect(self.plain, autocommit=True) as connection:
            connection.execute(statement)

    def make(self, template: str = "template1") -> str:
        """The URL of a new one: empty, or a copy of ``template``."""
        name = f"mainstay_test_{uuid.uuid4().hex[:16]}"
        self.run(f'CREATE DATABASE "{name}" TEMPLATE "{template}" {self.strategy}')
        self.run(f'ALTER DATABASE "{name}" SET synchronous_commit TO off')  # no test stops the server
        return self.server.rsplit("/", 1)[0] + f"/{name}"

    def drop(self, url: str) -> None:
        name = url.rsplit("/", 1)[1]
        self.dropping.append(self.dropper.submit(self.run, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'))

    def close(self) -> None:
        self.dropper.shutdown()
        for done in self.dropping:
            done.result()


@pytest.fixture(scope="session")
def databases(postgres_server: str) -> Iterator[Databases]:
    made = Databases(postgres_server)
    yield made
    made.close()


@pytest.fixture
def postgres_url(databases: Databases) -> Iterator[str]:
    """A fresh, empty database on the real PostgreSQL, dropped after the test."""
    url = databases.make()
    yield url
    databases.drop(url)


@pytest.fixture(scope="session")
def redis_server() -> str:
    """URL of a real Redis, without a database number."""
    machine = _load_machine()
    return _shared("redis", machine.find_redis, machine.start_redis)


@pytest.fixture
def redis_url(redis_server: str) -> Iterator[str]:
    """An empty database of the real Redis, claimed for this test and emptied after it."""
    import redis

    run_dir = Path(os.environ[_RUN_DIR])
    for number in range(1, 16):
        url = f"{redis_server.rstrip('/')}/{number}"
        with (run_dir / f"redis-{number}.claim").open("w") as claim, redis.Redis.from_url(url) as client:
            try:
                fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            if client.dbsize():
                continue
            yield url
            client.flushdb()
            return
    pytest.fail("all 15 databases of the Redis on this machine hold data; set MAINSTAY_TEST_REDIS_URL")


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """A process that has imported torch, to fork ranks and launchers from."""
    from tests.fork_server.processes import warm_process

    with warm_process(tmp_path_factory.mktemp("warm"), "torch", "mainstay.recovery.node.main") as process:
        yield process


@pytest.fixture(scope="session")
def warm_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """A process that has imported the service and the node daemon, to fork them and other commands from."""
    from tests.fork_server.processes import warm_process

    modules = ("app", "server", "cli", "celery_app", "local_node")
    names = [*(f"mainstay.service.{name}" for name in modules), "mainstay.probes.daemon", "uvloop"]
    with warm_process(tmp_path_factory.mktemp("warm-service"), *names) as process:
        yield process


@pytest.fixture(scope="session")
def service_stack(warm_service: Warm) -> Callable[..., Stack]:
    """Like ``Stack``, for services and node daemons without a job."""
    from tests.fork_server.processes import warm_stack

    return partial(warm_stack, warm_service, warm_service)


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    """Ask for as many unused loopback ports as the test needs."""
    port: Callable[[], int] = _load_machine().free_port
    return port


@pytest.fixture(scope="session")
def chromium_path() -> str:
    return str(_load_machine().chromium())


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The shared reference data; tests over it skip, saying so, where it is absent."""
    if not DATA.is_dir():
        pytest.skip(f"no reference data at {DATA}: set MAINSTAY_TEST_DATA")
    return DATA


_OWN_WORLD = {"postgres", "redis", "browser", "processes"}
"""Markers of tests that start something outside this process."""
_PROCESSES = {"agents", "warm", "warm_service"}
"""Fixtures that do."""
_IN_REAL_TIME = "play"
"""The fixture that runs a coordinator and its launchers' sockets by the wall clock."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The fast lane (``-m "not slow"``) starts no database, browser or process of its own; apps inside pytest are fine.

    Tests that ``retried_tests.toml`` lists have a second try, and the summary says RERUN. The fast lane has none, but
    for a coordinator that runs by the wall clock.
    """
    retried = read_list()
    for item in items:
        fixtures = {*getattr(item, "fixturenames", ())}
        if fixtures & _PROCESSES or any(mark.name in _OWN_WORLD for mark in item.iter_markers()):
            item.add_marker(pytest.mark.slow)
        live = _IN_REAL_TIME in fixtures or item.get_closest_marker("slow")
        if live and item.nodeid in retried:
            item.add_marker(pytest.mark.flaky(reruns=1, reruns_delay=2))
