"""Two hosts with a network each, joined by a link on which everything is recorded.

Tests on one machine cannot see an address that means this host on any host: an agent that published 0.0.0.0 was found
by all of them, and by no agent of a real cluster.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bench.lib_job import Job
from tests.fork_server.processes import Warm
from tests.scenarios.pace import FEW, finish, paced
from tests.scenarios.same_bits import assert_same_bits

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("training")]

ARGUMENTS = ["--steps", "200", "--width", "32", "--batch", "1", "--dp", "1", "--pp", "2", "--layers", "2", *FEW]
TOKEN = "bench-or-test"
"""Of ``Job``."""
SPOKEN = b"said in the clear"
RECORD = """
import signal, socket, sys
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
link.bind((sys.argv[1], 0))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
with open(sys.argv[2], "wb", buffering=0) as file:
    print("ready", flush=True)
    while True:
        file.write(link.recv(65536))
"""


@dataclass
class Hosts:
    """Network namespaces with one end of the link each; ``addresses[n]`` is the one of host n."""

    names: tuple[str, str]
    interfaces: tuple[str, str]
    addresses: tuple[str, str] = ("10.99.0.1", "10.99.0.2")

    def command(self, number: int, *words: str) -> list[str]:
        return ["ip", "netns", "exec", self.names[number], *words]


@dataclass
class HostsJob(Job):
    """A job whose node n runs on host n."""

    hosts: Hosts = field(kw_only=True)

    def _begin(self, words: Sequence[str], environment: Mapping[str, str], log: int) -> subprocess.Popen[bytes]:
        number = int(words[words.index("--node-rank") + 1])
        return subprocess.Popen(
            self.hosts.command(number, sys.executable, *words),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**environment, "GLOO_SOCKET_IFNAME": self.hosts.interfaces[number]},
        )


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    number = os.getpid()
    made = Hosts((f"ms{number}a", f"ms{number}b"), (f"ms{number}a", f"ms{number}b"))
    with ExitStack() as stack:
        try:
            for name in made.names:
                _ip("netns", "add", name)
                stack.callback(_ip, "netns", "del", name)
        except OSError as error:
            pytest.skip(f"no network namespaces here: {error}")
        (one, other), (here, there) = made.names, made.interfaces
        _ip("link", "add", here, "netns", one, "type", "veth", "peer", "name", there, "netns", other)
        for name, interface, address in zip(made.names, made.interfaces, made.addresses, strict=True):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", interface)
            _ip("-n", name, "link", "set", interface, "up")
            _ip("-n", name, "link", "set", "lo", "up")
        yield made


@pytest.fixture
def recorded(hosts: Hosts, tmp_path: Path) -> Iterator[Path]:
    """The file with every byte that passes the link."""
    file = tmp_path / "packets"
    command = hosts.command(0, sys.executable, "-c", RECORD, hosts.interfaces[0], str(file))
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield file
        process.send_signal(signal.SIGTERM)


def _listens_everywhere(job: Job) -> set[str]:
    """Command lines of the job's launchers and agents that accept connections at any address of their host."""
    found = set()
    for number, launcher in enumerate(job.launchers):
        for pid in (launcher.pid, *job.children(number)):
            try:
                command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
                own = {str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()}
                table = Path(f"/proc/{pid}/net/tcp").read_text() + Path(f"/proc/{pid}/net/tcp6").read_text()
            except OSError:
                continue  # it has ended
            for words in map(str.split, table.splitlines()):
                wildcard = words[1].rpartition(":")[0].strip("0") == ""
                if words[3] == "0A" and wildcard and f"socket:[{words[9]}]" in own:
                    found.add(command)
    return {command for command in found if "mainstay run" in command or "mainstay.recovery.agent" in command}


def test_snapshots_cross_the_network_and_nobody_reads_them_there(
    warm: Warm, hosts: Hosts, recorded: Path, tmp_path: Path
) -> None:
    """Parity of both hosts, and a rank that migrates with its snapshot; all messages and snapshots are encrypted."""
    job = HostsJob(
        directory=tmp_path / "job", per_node=1,
        arguments=[*ARGUMENTS, *paced(tmp_path / "job", 100), "--save", str(tmp_path / "saved")],
        port=29500, reach=dict.fromkeys(range(2), hosts.addresses[0]), hosts=hosts,
        options=["--parity-interval", "1", "--standbys", "1"],
    )  # fmt: skip
    with job:
        job.wait_step(6)
        assert _listens_everywhere(job) == set()
        move = ["migrate", "job", "--rank", "1", "--state-dir", str(job.directory / "node-0"), "--timeout", "100"]
        moved = subprocess.run(
            [sys.executable, "-m", "mainstay", "job", *move], capture_output=True, text=True, timeout=150, check=False
        )
        assert moved.returncode == 0, moved.stdout + moved.stderr + job.tail()
        assert {rank["node"] for rank in job.state()["topology"]["ranks"]} == {"node-0"}
        speak = f"import socket; socket.socket(type=socket.SOCK_DGRAM).sendto({SPOKEN!r}, ('{hosts.addresses[1]}', 9))"
        subprocess.run(hosts.command(0, sys.executable, "-c", speak), check=True, timeout=60)
        assert finish(job) == [0, 0], job.tail()
    assert_same_bits(tmp_path / "saved", warm.undisturbed(tmp_path / "plain", ARGUMENTS, 2), 2)
    (migration,) = job.events("migration_finished")
    assert migration["data"]["steps_lost"] <= 1
    assert "no agent answers" not in job.tail(1000)
    packets = recorded.read_bytes()
    assert SPOKEN in packets, "the recording works"
    assert not [word for word in (TOKEN, "LauncherHello", "RegroupRank", "SlotHeader") if word.encode() in packets]
