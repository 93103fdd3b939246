"""``mainstay relay`` as a process of its own, for tests, and nodes that send frames through it."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import urllib3

from mainstay.probes.frame import Axis
from mainstay.probes.frame_route import FrameRoute
from mainstay.probes.shipper import FrameSender
from mainstay.probes.spool import Spool
from mainstay.probes.transport import Backoff, Transport
from tests.probes.relay_frames import CATALOG

ROOT = Path(__file__).resolve().parents[2]


class RelayProcess:
    """Starts on a free port the first time, and on the same one afterwards."""

    def __init__(
        self, service: str, directory: Path, token: str = "relay-token", options: tuple[str, ...] = ()
    ) -> None:
        self._service = service
        self._options = options
        self._directory = directory
        self._token = token
        self._port = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        is_tls = "--tls-certificate" in self._options
        return f"https://localhost:{self._port}" if is_tls else f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "mainstay", "relay", "--service", self._service, "--name", "r1"]
        command += ["--data-dir", str(self._directory), "--port", str(self._port), "--gather", "0.2", *self._options]
        environment = {**os.environ, "MAINSTAY_TOKEN": self._token}
        with self._directory.with_suffix(".log").open("a") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self._process = process
        assert process.stdout is not None
        with process.stdout:
            line = process.stdout.readline()
        assert "is ready on" in line, self._directory.with_suffix(".log").read_text()
        self._port = int(line.rsplit(":", 1)[1])

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(60)

    def stop(self) -> int:
        """End it in order; its exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(60)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def get(self, path: str) -> str:
        """The answer; "" when the relay shows no certificate of an authority in ``MAINSTAY_CA_FILE``."""
        with urllib3.PoolManager(ca_certs=os.environ.get("MAINSTAY_CA_FILE")) as pool:
            try:
                return pool.request("GET", f"{self.url}{path}", retries=False, timeout=10).data.decode()
            except urllib3.exceptions.SSLError:
                return ""

    def metric(self, name: str) -> float:
        lines = dict(line.rsplit(" ", 1) for line in self.get("/metrics").splitlines() if line[0] != "#")
        return float(lines.get(f"mainstay_relay_{name}", 0))


class RelayedNode:
    """A node's frame sender: its spool, the relay, and the service."""

    def __init__(self, name: str, token: str, directory: Path, relay: str, service: str) -> None:
        self.name = name
        self.sent = 0
        self.spool = Spool(directory / name)
        self.relay, self.service = Transport(relay), Transport(service, token)
        self.route = FrameRoute(self.relay, self.service)
        self.sender = FrameSender(self.spool, self.route, backoff=Backoff(base=0.05, cap=0.5))

    def put(self, t0: float | None = None) -> int:
        """Queue a sample of ``t0``, or of now; its sequence number."""
        number = self.sent
        self.sent += 1
        return self.sender.put(
            subject=self.name, axis=Axis.TIME, t0=t0 or float(int(time.time())), dt=1.0, catalog=CATALOG,
            entities=("host",), samples=1, values=struct.pack("<f", number),
            wide=struct.pack("<q", number),
        )  # fmt: skip

    def close(self) -> None:
        self.sender.stop(0.1)
        self.spool.close()
        self.relay.close()
        self.service.close()


@contextmanager
def running_relay(service: str, directory: Path, token: str = "relay-token", *options: str) -> Iterator[RelayProcess]:
    """A started relay that ends with the block."""
    relay = RelayProcess(service, directory, token, options)
    try:
        relay.start()
        yield relay
    finally:
        relay.close()


@contextmanager
def running_nodes(tokens: dict[str, str], directory: Path, relay: str, service: str) -> Iterator[list[RelayedNode]]:
    """A started sender for each token's node."""
    nodes = [RelayedNode(name, token, directory, relay, service) for token, name in tokens.items()]
    try:
        for node in nodes:
            node.sender.start()
        yield nodes
    finally:
        for node in nodes:
            node.close()
