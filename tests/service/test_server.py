"""The commands as a user runs them: one clear line for what is wrong, and a service that starts and stops well."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest

from mainstay.service.server import CannotServeError, bind, check_data_dir, check_listen, lock_data_dir
from mainstay.service.settings import Settings
from tests.fork_server.processes import Warm

pytestmark = pytest.mark.slow  # each starts the real command
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def mainstay(warm_service: Warm) -> Command:
    """Runs the command to its end."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [str(warm_service.python), "-m", "mainstay", *arguments]
        env = {**os.environ, **environment}
        return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=env)

    return run


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode != 0
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


@contextmanager
def serving(
    tmp_path: Path, *options: str, command: str = "serve", warm: Warm | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``mainstay serve`` on a free port, from nothing unless a ``warm`` process has imported the service already, which
    takes three seconds; the process and its first lines up to the sign-in link."""
    line = [
        warm.python if warm else sys.executable,
        "-m",
        "mainstay",
        command,
        "--port",
        "0",
        "--data-dir",
        str(tmp_path / "data"),
        *options,
    ]
    with (tmp_path / "serve.log").open("w") as log:
        child = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert child.stdout is not None
        lines = child.stdout.readline() + child.stdout.readline()
        yield child, lines
    finally:
        if child.poll() is None:
            child.kill()
        child.wait(60)
        assert child.stdout is not None
        child.stdout.read()  # a fork of the warm process ends a moment after the client that speaks for it
        child.stdout.close()


def test_the_first_start_prints_a_link_that_signs_in_once(mainstay: Command, tmp_path: Path) -> None:
    with serving(tmp_path) as (child, lines):
        url = lines.split("ready on ")[1].split()[0]
        assert f"{url}/sign-in#code=" in lines
        secret = (tmp_path / "data" / "admin-token").read_text().strip()
        code = lines.split("#code=")[1].strip()
        again = mainstay("token", "login-link", "--quiet", "--url", url, "--data-dir", str(tmp_path / "data"))
        assert again.stdout.startswith(f"{url}/sign-in#code=mst_code_")
        assert secret not in lines + again.stdout + (tmp_path / "serve.log").read_text()
        for link_code in (code, again.stdout.split("#code=")[1].strip()):
            with httpx.Client(base_url=url) as client:
                assert client.post("/v1/auth/session", json={"token": link_code}).status_code == 204
                assert client.get("/v1/auth/me").json()["kind"] == "admin"
                assert client.post("/v1/auth/session", json={"token": link_code}).status_code == 401
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) in {0, -signal.SIGTERM}


def test_a_second_service_on_the_directory_is_refused_and_names_the_first(mainstay: Command, tmp_path: Path) -> None:
    with serving(tmp_path) as (child, _):
        second = mainstay("serve", "--port", "0", "--data-dir", str(tmp_path / "data"))
        assert f"data directory {tmp_path / 'data'} is in use by process {child.pid} on " in one_line(second)
        child.kill()
        child.wait(60)
    lock_data_dir(tmp_path / "data").close()  # the kernel unlocked it when the process ended


def test_stopping_does_not_wait_for_open_streams(warm_service: Warm, tmp_path: Path) -> None:
    with serving(tmp_path, warm=warm_service) as (child, lines):
        url, token = lines.split("ready on ")[1].split()[0], (tmp_path / "data" / "admin-token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=url, headers=headers) as client, client.stream("GET", "/v1/watch") as response:
            assert response.status_code == 200
            started = time.monotonic()
            child.send_signal(signal.SIGTERM)
            response.read()
            child.wait(60)
    assert time.monotonic() - started < 60  # a stream ends after ten minutes


def test_tokens_from_the_command_line(mainstay: Command, warm_service: Warm, tmp_path: Path) -> None:
    data = ("--data-dir", str(tmp_path / "data"))
    with serving(tmp_path, warm=warm_service) as (_, lines):
        url = lines.split("ready on ")[1].split()[0]
        reader = mainstay("token", "create", "ci", "--scopes", "read,act", "--quiet", *data).stdout.strip()
        join = mainstay("token", "join", "--node", "n1", "--quiet", *data).stdout.strip()
        for racks in (("--rack", "rack-1", "--rack", "rack-2"), ("--all-racks",)):
            assert mainstay("token", "relay", "--name", "r1", *racks, "--quiet", *data).stdout.startswith("mst_relay_")
        listed = json.loads(mainstay("token", "list", "--json", *data).stdout)
        assert [token["racks"] for token in listed[:2]] == [["*"], ["rack-1", "rack-2"]]
        del listed[:2]
        assert [(token["kind"], token["scopes"]) for token in listed] == [
            ("join", ["report"]), ("user", ["read", "act"]), ("admin", ["admin"]),
        ]  # fmt: skip
        with httpx.Client(base_url=url) as client:
            me = client.get("/v1/auth/me", headers={"Authorization": f"Bearer {reader}"})
            assert me.json()["scopes"] == ["act", "read"]
            bearer = {"Authorization": f"Bearer {join}"}
            assert client.post("/v1/nodes:enroll", json={"name": "n1"}, headers=bearer).status_code == 201
        assert mainstay("token", "revoke", listed[1]["id"], *data).returncode == 0
        assert "no live token" in one_line(mainstay("token", "revoke", listed[1]["id"], *data))


def test_what_the_service_keeps_is_its_owners_alone(mainstay: Command, warm_service: Warm, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(tmp_path, warm=warm_service):
        kept = [data, *data.rglob("*")]
        assert {path.name for path in kept} >= {"mainstay.db", "blocks", "admin-token", "serve.lock"}
        assert [path for path in kept if path.stat().st_mode & 0o077] == []
    database = data / "mainstay.db"
    database.chmod(0o644)
    line = one_line(mainstay("serve", "--port", "0", "--data-dir", str(data)))
    assert f"other users may use the file {database} (mode 0644): run 'chmod 600 {database}'" in line
    database.chmod(0o600)
    data.chmod(0o750)
    line = one_line(mainstay("serve", "--port", "0", "--data-dir", str(data)))
    assert f"run 'chmod 700 {data}'" in line


def test_a_database_of_a_newer_version_is_refused_in_one_line(
    mainstay: Command, warm_service: Warm, tmp_path: Path
) -> None:
    with serving(tmp_path, warm=warm_service):
        pass
    database = tmp_path / "data" / "mainstay.db"
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    before = database.read_bytes()
    for command in (("serve", "--port", "0"), ("up", "--port", "0"), ("token", "list")):
        line = one_line(mainstay(*command, "--data-dir", str(tmp_path / "data")))
        assert "is of a newer version of Mainstay (schema 9999)" in line
    assert database.read_bytes() == before


def test_a_damaged_database_is_refused_in_one_line(mainstay: Command, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    (tmp_path / "data" / "mainstay.db").write_bytes(b"this is no database" * 1000)
    (tmp_path / "data" / "mainstay.db").chmod(0o600)
    assert "not a database" in one_line(mainstay("serve", "--port", "0", "--data-dir", str(tmp_path / "data")))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("serve", "--port", "99999"), "port"),
        (("serve", "--host", "0.0.0.0"), "not a loopback"),
        (("serve", "--tls-certificate", "x.pem"), "both"),
        (("serve", "--database-url", "mysql://u@h/d"), "mysql"),
        (("serve", "--database-url", "postgresql://u:secret@127.0.0.1:1/d"), "does not answer"),
        (("serve", "--data-dir", "/proc/nowhere"), "cannot be written"),
        (("worker",), "memory://"),
        (("token", "create", "x", "--scopes", "root"), "root"),
        (("token", "join", "--node", "a b"), "a b"),
        (("token", "relay", "--name", "r1"), "--all-racks"),
        (("token", "relay", "--name", "r1", "--rack", "a b"), "a b"),
        (("token", "relay", "--name", "r1", "--rack", "a", "--all-racks"), "--all-racks"),
        (("token", "list", "--data-dir", "/nonexistent"), "no database"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    mainstay: Command, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    line = one_line(mainstay(*arguments, MAINSTAY_DATA_DIR=str(tmp_path)))
    assert words in line
    assert "secret" not in line


def test_a_taken_port_is_said_in_one_line(mainstay: Command, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        line = one_line(mainstay("serve", "--port", port, "--data-dir", str(tmp_path)))
    assert f"cannot listen on 127.0.0.1:{port}" in line


@pytest.mark.postgres
def test_an_old_schema_is_not_changed_unasked(
    mainstay: Command, warm_service: Warm, tmp_path: Path, postgres_url: str
) -> None:
    line = one_line(mainstay("serve", "--port", "0", "--data-dir", str(tmp_path), "--database-url", postgres_url))
    assert "start once with --migrate" in line
    with serving(tmp_path, "--database-url", postgres_url, "--migrate", warm=warm_service) as (_, lines):
        assert "ready on" in lines


# the checks on their own


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.1.2.3"])
def test_loopback_needs_no_tls(host: str) -> None:
    check_listen(Settings(host=host))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])
def test_beyond_loopback_needs_tls_or_a_word(tmp_path: Path, host: str) -> None:
    with pytest.raises(CannotServeError, match="loopback"):
        check_listen(Settings(host=host))
    check_listen(Settings(host=host, insecure_listen=True))
    pem = tmp_path / "x.pem"
    pem.touch()
    check_listen(Settings(host=host, tls_certificate=pem, tls_key=pem))
    with pytest.raises(CannotServeError, match="not a file"):
        check_listen(Settings(host=host, tls_certificate=pem, tls_key=tmp_path / "none"))


def test_bind_takes_a_free_port(free_port: Callable[[], int]) -> None:
    port = free_port()
    with bind(Settings(port=port)) as first:
        assert first.getsockname()[1] == port
        with pytest.raises(CannotServeError, match=str(port)):
            bind(Settings(port=port))


def test_a_data_directory_that_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(CannotServeError, match="cannot be written"):
        check_data_dir(file)


def test_up_ends_cleanly_while_nodes_wait_for_tasks(warm_service: Warm, tmp_path: Path) -> None:
    with serving(tmp_path, command="up", warm=warm_service) as (child, lines):
        url, token = lines.split("ready on ")[1].split()[0], (tmp_path / "data" / "admin-token").read_text().strip()
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=30) as client:
            deadline = time.monotonic() + 90
            while not (nodes := client.get("/v1/nodes").json()["items"]):
                assert time.monotonic() < deadline, "the node daemon of this machine did not report"
                time.sleep(0.1)
            request = f"GET /v1/nodes/{nodes[0]['name']}/tasks?wait=20 HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as waiting:
                waiting.sendall(f"{request}Authorization: Bearer {token}\r\n\r\n".encode())
                assert client.get("/readyz").status_code == 200  # the request before it has arrived too
                child.send_signal(signal.SIGTERM)
                assert b" 200 " in waiting.recv(4096)
        assert child.wait(60) in {0, -signal.SIGTERM}
    log = (tmp_path / "serve.log").read_text()
    assert "Traceback" not in log, log
    assert "[error" not in log, log
