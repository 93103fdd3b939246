"""A disk that is really full: a small tmpfs in a mount namespace of the service, filled through /proc."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.slow
SIZE = 160 * 2**20


@dataclass
class Confined:
    """``mainstay serve`` whose data directory is all of a small disk."""

    child: subprocess.Popen[bytes]
    url: str
    data: Path
    """As seen from here."""

    def client(self) -> httpx.Client:
        token = (self.data / "admin-token").read_text().strip()
        return httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {token}"}, timeout=30)

    def fill(self) -> None:
        with (self.data / "filler").open("wb", buffering=0) as file:
            for size in (2**20, 4096, 1):
                try:
                    while file.write(bytes(size)):
                        pass
                except OSError:
                    continue

    def make_room(self) -> None:
        (self.data / "filler").unlink()


@contextmanager
def confined(tmp_path: Path, port: int) -> Iterator[Confined]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f'mount -t tmpfs -o size={SIZE},mode=0700 tmpfs "$0" && exec "$@"'
    namespace = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    serve = [sys.executable, "-m", "mainstay", "serve", "--port", str(port), "--data-dir", str(disk)]
    with (tmp_path / "log").open("wb") as log:
        child = subprocess.Popen([*namespace, "sh", "-c", mount, str(disk), *serve], stdout=log, stderr=log)
    try:
        running = Confined(child, f"http://127.0.0.1:{port}", Path(f"/proc/{child.pid}/root{disk}"))
        _until_ready(running, tmp_path / "log")
        yield running
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait(60)


def _until_ready(running: Confined, log: Path) -> None:
    deadline = time.monotonic() + 100
    while True:
        assert running.child.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        try:
            if httpx.get(f"{running.url}/readyz").status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.05)


def send(client: httpx.Client, body: bytes) -> int:
    headers = {"Content-Type": "application/msgpack"}
    return client.post("/v1/telemetry/frames", content=body, headers=headers).status_code


def test_reads_go_on_nothing_acknowledged_is_lost_and_the_state_is_visible(
    tmp_path: Path, free_port: Callable[[], int], frames: Any, report: dict[str, Any], eventually: Any
) -> None:
    assert shutil.which("unshare"), "install util-linux"
    with confined(tmp_path, free_port()) as running, running.client() as client:
        assert client.put("/v1/nodes/n1", json=report).status_code == 200
        assert send(client, frames.body(1)) == 204
        running.fill()
        stored = [1]
        for sequence in range(2, 200):  # until what SQLite had reserved is used up
            status = send(client, frames.body(sequence))
            if status == 204:
                stored.append(sequence)
            elif status == 503:
                break
        assert status == 503
        ready = httpx.get(f"{running.url}/readyz")
        assert ready.status_code == 503
        assert "0 MiB are free" in ready.json()["checks"]["disk"]
        assert httpx.get(f"{running.url}/healthz").status_code == 200
        assert client.get("/v1/nodes/n1").json()["name"] == "n1"
        query = {"node": "n1", "signal": "load_1m", "from": time.time() - 1200}
        before = client.get("/v1/telemetry/query", params=query)
        assert before.status_code == 200
        assert before.json()["series"]
        assert client.get("/v1/incidents").status_code == 200
        running.make_room()
        eventually(lambda: httpx.get(f"{running.url}/readyz").status_code == 200)
        assert send(client, frames.body(250)) == 204
        for sequence in stored:
            again = client.post(
                "/v1/telemetry/frames", content=frames.body(sequence), headers={"Content-Type": "application/msgpack"}
            )
            assert (again.status_code, again.headers.get("x-mainstay-duplicate")) == (204, "1"), sequence
