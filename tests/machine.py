"""Finds, starts or installs what the tests need from the machine: PostgreSQL, Redis, Chromium, and a few programs.

The order is the same for each: what the environment names, what answers on localhost, a private one from installed
binaries, an apt install when we are root; otherwise one message that says exactly what to install. Only a private
PostgreSQL comes before one on localhost, and only the test that wants a real Prometheus is skipped without one.

``python tests/machine.py`` prepares everything and prints what it found.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import redis

_PROGRAMS = {
    "gcc": ("gcc", "libc6-dev"),
    "openssl": ("openssl",),
    "unshare": ("util-linux",),
    "ip": ("iproute2",),
    "prometheus-alertmanager": ("prometheus-alertmanager",),
    # The one SMTP server of Debian that runs as any user, from a folder, and takes no other one's place on a machine.
    "chasquid": ("chasquid",),
}
"""What tests call, and the Debian packages that have it."""
_BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
Started = tuple[str, int]
"""URL of a private server and the process id to end it by."""


class MissingError(RuntimeError):
    """Something that the tests need is not on this machine; the message says how to get it."""


def _apt_install(*packages: str) -> None:
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise MissingError(f"please install: sudo apt-get install -y {' '.join(packages)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update", "-qq"], ["install", "-y", "-qq", *packages]):
        # Another run may be installing just now.
        command = ["apt-get", "-o", "DPkg::Lock::Timeout=300", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            raise MissingError(f"{' '.join(command)} failed: {done.stderr.strip()[-300:]}")


def program(name: str) -> str:
    """Path of one of ``_PROGRAMS``."""
    if not shutil.which(name):
        _apt_install(*_PROGRAMS[name])
    path = shutil.which(name)
    if path is None:
        raise MissingError(f"{' '.join(_PROGRAMS[name])} was installed but has no program {name}")
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(answers: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not answers():
        if time.monotonic() > deadline:
            raise MissingError(f"{what} was started but did not answer within {seconds:.0f} s")
        time.sleep(0.05)


# PostgreSQL


def postgres_answers(url: str) -> bool:
    try:
        with psycopg.connect(url.replace("postgresql+psycopg://", "postgresql://"), connect_timeout=3):
            return True
    except psycopg.Error:
        return False


def _postgres_binaries() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).parent if on_path else None


def _as_postgres(command: list[str]) -> list[str]:
    """PostgreSQL refuses to run as root."""
    return ["runuser", "-u", "postgres", "--", *command] if os.geteuid() == 0 else command


def _installed_postgres() -> Path:
    binaries = _postgres_binaries()
    if binaries is None:
        _apt_install("postgresql")
        binaries = _postgres_binaries()
    if binaries is None:
        raise MissingError("PostgreSQL was installed but its initdb is nowhere to be found")
    return binaries


def start_postgres(directory: Path, *, durable: bool = False) -> Started:
    """Start a private cluster in ``directory`` (not ``durable`` without fsync: it lives as long as the tests)."""
    directory.mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0:
        shutil.chown(directory, "postgres")
    initdb = [str(_installed_postgres() / "initdb"), "-D", str(directory / "data")]
    initdb += ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"]
    subprocess.run(_as_postgres(initdb), check=True, capture_output=True, timeout=60)
    return run_postgres(directory, free_port(), durable=durable)


def run_postgres(directory: Path, port: int, *, durable: bool) -> Started:
    """Start the server of a cluster that ``start_postgres`` made, also again."""
    data = directory / "data"
    kept = "on" if durable else "off"
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c fsync={kept} -c full_page_writes={kept} -k {directory}"
    control = [str(_installed_postgres() / "pg_ctl"), "-D", str(data), "-o", options, "-l", str(directory / "log")]
    subprocess.run(_as_postgres([*control, "-w", "start"]), check=True, stdout=subprocess.DEVNULL, timeout=60)
    url = f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres"
    _wait(lambda: postgres_answers(url), "a private PostgreSQL")
    return url, int((data / "postmaster.pid").read_text().split()[0])


def find_postgres() -> str | None:
    """What the environment names, or else what answers on localhost."""
    local = "postgresql+psycopg://postgres@127.0.0.1:5432/postgres"
    return _named_postgres() or (local if postgres_answers(local) else None)


def find_postgres_for_tests() -> str | None:
    """Likewise, unless a private one can be started: hundreds of databases on a disk cost a quarter of their tests."""
    return _named_postgres() or (None if _postgres_binaries() else find_postgres())


def _named_postgres() -> str | None:
    named = os.environ.get("MAINSTAY_TEST_POSTGRES_URL")
    if named and not postgres_answers(named):
        raise MissingError(f"MAINSTAY_TEST_POSTGRES_URL is set, but nothing answers at {named}")
    return named or None


# Redis


def redis_answers(url: str) -> bool:
    try:
        with redis.Redis.from_url(url, socket_timeout=3) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


def start_redis(directory: Path) -> Started:
    """Start a private Redis that keeps nothing on disk."""
    if not shutil.which("redis-server"):
        _apt_install("redis-server")
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", str(directory)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    url = f"redis://127.0.0.1:{port}"
    _wait(lambda: redis_answers(url), "a private Redis")
    return url, server.pid


def find_redis() -> str | None:
    named = os.environ.get("MAINSTAY_TEST_REDIS_URL")
    if named:
        if not redis_answers(named):
            raise MissingError(f"MAINSTAY_TEST_REDIS_URL is set, but nothing answers at {named}")
        return named
    local = "redis://127.0.0.1:6379"
    return local if redis_answers(local) else None


# Chromium


def chromium() -> str:
    """Path of a Chromium that Playwright can drive: the one without windows computes a third less."""
    for name in (os.environ.get("MAINSTAY_TEST_CHROMIUM", ""), *_BROWSERS):
        path = shutil.which(name) if name else None
        if path:
            return path
    for package in _BROWSERS[:2]:
        with contextlib.suppress(MissingError):
            _apt_install(package)
            if path := shutil.which(package):
                return path
    raise MissingError("please install Chromium, or name one in MAINSTAY_TEST_CHROMIUM")


def main() -> int:
    """Say what is here and install what is not; servers that must be started are left to the test run."""
    try:
        print(f"chromium    {chromium()}")
        postgres = find_postgres_for_tests()
        if postgres is None and _postgres_binaries() is None:
            _apt_install("postgresql")
        print(f"postgresql  {postgres or f'private, from {_postgres_binaries()}'}")
        answering = find_redis()
        if answering is None and not shutil.which("redis-server"):
            _apt_install("redis-server")
        print(f"redis       {answering or 'private, from ' + str(shutil.which('redis-server'))}")
        for name in _PROGRAMS:
            print(f"{name:<11} {program(name)}")
        if not shutil.which("prometheus"):
            with contextlib.suppress(MissingError):
                _apt_install("prometheus")
        print(f"prometheus  {shutil.which('prometheus') or 'none: one test is skipped'}")
    except MissingError as missing:
        print(f"tests cannot run here: {missing}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
