"""What VictoriaMetrics and Prometheus spend to ingest the samples that ``bench.fleet`` sends.

``python -m bench.lib_peers [--samples N]``. Both come from ``PATH`` (Debian: ``victoria-metrics``, ``prometheus``);
one that is absent is left out. Processor time is the server's own, from ``/proc``. Where a choice exists, it favors
the peer: the first round, which registers the series, is not counted; 1024 nodes need a smaller index than 10,000;
three short labels a series; remote write arrives as Snappy literals, which cost nothing to decompress; one client
sends 16 nodes a request, cheaper for VictoriaMetrics than a relay's 128; no head of Prometheus is old enough to be
compacted. Of the texts that VictoriaMetrics imports, JSON lines name a series once for all its samples of a request.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bench.lib_fleet import cpu_seconds
from bench.lib_remote_write import FRAME_SECONDS, JSON_LINES, PROTOBUF, Body, Format, series
from mainstay.service.demo.stack import free_port

NODES = 1024
NODES_A_REQUEST = 16
_PATIENCE = 60.0  # Seconds.


@dataclass(frozen=True)
class Peer:
    name: str
    way: str
    version: str
    samples: int
    cpu_seconds: float

    @property
    def per_million(self) -> float:
        return self.cpu_seconds / self.samples * 1e6


_FLUSH = "/internal/force_flush"
_VICTORIA = "-storageDataPath={data} -httpListenAddr=127.0.0.1:{port} -search.latencyOffset=0s"
_PROMETHEUS = (
    "--config.file={data}/none.yml --storage.tsdb.path={data} --web.listen-address=127.0.0.1:{port}"
    " --web.enable-remote-write-receiver"
)


class _Way(NamedTuple):
    name: str
    binary: str
    way: str
    options: str
    ready: str
    write: str
    form: Format
    flush: str | None
    """Returns once all that was accepted can be found; without it, that is so when a write is answered."""


_WAYS = (
    _Way(
        "VictoriaMetrics", "victoria-metrics", "remote write", _VICTORIA, "/health", "/api/v1/write", PROTOBUF, _FLUSH
    ),
    _Way(
        "VictoriaMetrics", "victoria-metrics", "JSON lines", _VICTORIA, "/health", "/api/v1/import", JSON_LINES, _FLUSH
    ),
    _Way("Prometheus", "prometheus", "remote write", _PROMETHEUS, "/-/ready", "/api/v1/write", PROTOBUF, None),
)


class _Server:
    """A peer as a process of its own, with its data below ``directory``."""

    def __init__(self, way: _Way, directory: Path) -> None:
        self.way, self._port = way, free_port()
        directory.mkdir()
        (directory / "none.yml").touch()
        options = way.options.format(port=self._port, data=directory).split()
        with (directory / "server.log").open("wb") as log:
            self._child = subprocess.Popen([way.binary, *options], stdout=log, stderr=log)
        self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_PATIENCE)

    def until_ready(self) -> None:
        ends = time.monotonic() + _PATIENCE
        while True:
            try:
                self.request("GET", self.way.ready)
            except (OSError, http.client.HTTPException, RuntimeError):
                if time.monotonic() > ends or self._child.poll() is not None:
                    raise
                self._connection.close()
                time.sleep(0.1)
            else:
                return

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        self._connection.request(method, path, body)
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status in {200, 204}:
            return text
        raise RuntimeError(f"{self.way.name}, {path}: {answer.status} {text[:500]!r}")

    def send(self, bodies: Sequence[Body], start: int, rounds: int) -> float:
        """Processor seconds until every sample can be found."""
        before = self._cpu_seconds()
        for number in range(rounds):
            for body in bodies:
                self.request("POST", self.way.write, body.at(start + number * FRAME_SECONDS))
        if self.way.flush:
            self.request("GET", self.way.flush)
        return self._cpu_seconds() - before

    def count(self, seconds: int, end: int) -> int:
        """Samples of the last ``seconds``; name by name, as Prometheus drops the name before it adds up."""
        found = 0
        for name in {labels["__name__"] for labels, _ in series(range(1))}:
            query = {"query": f"sum(count_over_time({name}[{seconds}s]))", "time": end}
            answer = self.request("GET", "/api/v1/query?" + urllib.parse.urlencode(query))
            found += sum(int(float(one["value"][1])) for one in json.loads(answer)["data"]["result"])
        return found

    def _cpu_seconds(self) -> float:
        return cpu_seconds(self._child.pid)

    def stop(self) -> None:
        self._connection.close()
        self._child.terminate()
        try:
            self._child.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


def _version(binary: str) -> str:
    """Debian's VictoriaMetrics does not know its own."""
    debian = ["dpkg-query", "-W", "-f=${Version}", binary]
    for command in [[binary, "--version"], *([debian] if shutil.which("dpkg-query") else [])]:
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        if found := re.search(r"\d+\.\d+\.\d+", said.stdout + said.stderr):
            return found[0]
    return "unknown"


def _measure(way: _Way, directory: Path, samples: int) -> Peer:
    bodies = [Body(way.form, series(range(at, at + NODES_A_REQUEST))) for at in range(0, NODES, NODES_A_REQUEST)]
    a_round = sum(body.samples for body in bodies)
    rounds = -(-samples // a_round)
    seconds, expected = (rounds + 1) * FRAME_SECONDS, (rounds + 1) * a_round  # With the round that is not counted.
    start = int(time.time()) - seconds
    server = _Server(way, directory)
    try:
        server.until_ready()
        server.send(bodies, start, 1)
        cpu_seconds = server.send(bodies, start + FRAME_SECONDS, rounds)
        # A range leaves out its start in one server and not in the other; nothing lies there.
        if (found := server.count(seconds + 1, start + seconds)) != expected:
            raise RuntimeError(f"{way.name}, {way.way}: {found} of {expected} samples can be found")
    finally:
        server.stop()
    return Peer(way.name, way.way, _version(way.binary), rounds * a_round, cpu_seconds)


def measure_peers(directory: Path, samples: int = 20_000_000) -> list[Peer]:
    """Each way of each peer that is installed; whole rounds of the fleet, ``samples`` at least."""
    peers = []
    for number, way in enumerate(_WAYS):
        if shutil.which(way.binary):
            peers.append(_measure(way, directory / f"peer-{number}", samples))
        else:
            print(f"{way.name}, {way.way}: skipped, no {way.binary} on PATH", file=sys.stderr)
    return peers


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.lib_peers")
    parser.add_argument("--samples", type=int, default=20_000_000)
    told = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mainstay-peers-") as directory:
        for peer in measure_peers(Path(directory), told.samples):
            cost = f"{peer.per_million:.3f} CPU seconds per million of {peer.samples} samples"
            print(f"{peer.name} {peer.version}, {peer.way}: {cost}", flush=True)


if __name__ == "__main__":
    main()
