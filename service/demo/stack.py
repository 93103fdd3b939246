"""The whole loop on one machine as child processes: service, node daemons, a protected training job.

The demo, the scenario tests and the benches all start it this way, through the command line, as a user would.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mainstay.service.auth.links import sign_in_link
from mainstay.service.demo.client import ApiClient
from mainstay.service.demo.processes import ChildFailedError, Children, mainstay_command
from mainstay.service.demo.reference import examples_dir

JOB = "demo"
NODES = ("demo-a", "demo-b")
RANKS_PER_NODE = 2
POLL_SECONDS = 0.1
_MEMORY = "/dev/shm"  # noqa: S108 - where snapshots live; the directory in it is made safely


def free_port() -> int:
    """Return a loopback port without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(slots=True)
class Stack:
    """Everything lives under ``directory``; ``close`` ends every process by its own id."""

    directory: Path
    port: int
    env: Mapping[str, str] = field(default_factory=dict)
    children: Children = field(init=False)
    api: ApiClient = field(init=False)
    memory: Path = field(init=False)
    token: str = ""

    def __post_init__(self) -> None:
        # Snapshot memory of its own: two demos on one machine have jobs of the same name.
        self.memory = Path(tempfile.mkdtemp(prefix="mainstay-", dir=_MEMORY))
        # The machine's own kernel faults are no part of the story, and demo nodes would each report them.
        self.env = {"MAINSTAY_SHM_DIR": str(self.memory), "MAINSTAY_KERNEL_LOG": "off", **self.env}
        self.children = Children(self.directory / "logs")
        self.api = ApiClient(f"http://127.0.0.1:{self.port}")

    @property
    def data_dir(self) -> Path:
        return self.directory / "service"

    def start_service(
        self, command: str = "up", *options: str, seconds: float = 60.0, between: Callable[[], None] | None = None
    ) -> None:
        """Start ``mainstay up`` (or ``serve``) and wait until it is ready; ``api`` then has the admin's token.

        Raises:
            ChildFailedError: it ended instead, or is not ready in time.
        """
        config = self.directory / "mainstay.toml"
        self.directory.mkdir(parents=True, exist_ok=True)
        config.touch()  # an empty file, so that settings of a real service on this machine do not apply
        place = ["--port", str(self.port), "--data-dir", str(self.data_dir), "--config", str(config)]
        line = mainstay_command(command, *place, *options)
        self.children.start("service", line, self.env)
        self.until(self.api.ready, seconds, "the service to be ready", vital=("service",), between=between)
        self.token = (self.data_dir / "admin-token").read_text().strip()
        self.api = ApiClient(self.api.url, self.token)

    def sign_in_link(self) -> str:
        """A link that signs a browser in as the administrator, once."""
        return sign_in_link(self.api.url, self.api.post("/auth/sign-in-codes", {})["code"])

    def start_node(self, name: str) -> None:
        """Enroll and start a node daemon with a one-time join token."""
        join = self.api.post("/auth/tokens", {"name": f"join {name}", "kind": "join", "scopes": ["report"]})["token"]
        data = self.directory / f"node-{name}"
        options = ["--service", self.api.url, "--name", name, "--join-token", join, "--data-dir", str(data)]
        self.children.start(f"node-{name}", mainstay_command("node", *options), self.env)

    def start_job(
        self,
        *,
        steps: int,
        seed: int,
        save: Path,
        options: Mapping[str, object] | None = None,
        words: Sequence[str] = (),
    ) -> None:
        """Two launchers on this host, as if they were two nodes: data parallel 2 × pipeline 2.

        ``options`` are the launchers' own, ``words`` more of the training script's.
        """
        token = self._job_token()
        rdzv = f"127.0.0.1:{free_port()}"
        for number, node in enumerate(NODES):
            flags: dict[str, object] = {
                "--nnodes": len(NODES),
                "--node-rank": number,
                "--nproc-per-node": RANKS_PER_NODE,
                "--rdzv-endpoint": rdzv,
                "--node-name": node,
                "--job-id": JOB,
                "--parity-interval": 5,
                "--service": self.api.url,
                "--service-token-file": token,
                "--state-dir": self.directory / f"run-{node}",
                **(options or {}),
            }
            line = [str(part) for pair in flags.items() for part in pair]
            script = [str(examples_dir() / "train.py"), "--steps", steps, "--seed", seed, "--save", save, *words]
            self.children.start(f"run-{node}", mainstay_command("run", *line, *map(str, script)), self.env)

    def _job_token(self) -> Path:
        path = self.directory / "job-token"
        if not path.exists():
            created = self.api.post("/auth/tokens", {"name": "demo job", "kind": "job", "job": JOB})
            path.touch(mode=0o600)
            path.write_text(created["token"])
        return path

    def until(
        self,
        happened: Callable[[], bool],
        seconds: float,
        what: str,
        *,
        vital: tuple[str, ...] = (),
        between: Callable[[], None] | None = None,
    ) -> None:
        """Poll until ``happened``; a vital child that dies meanwhile ends the wait at once.

        Raises:
            TimeoutError: names ``what`` and where the logs are.
            ChildFailedError: a vital child ended badly; carries the end of its log.
        """
        deadline = time.monotonic() + seconds
        while not happened():
            if between:
                between()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} did not come within {seconds:.0f} s (logs: {self.children.log_dir})")
            self._check(vital)
            time.sleep(POLL_SECONDS)

    def _check(self, vital: tuple[str, ...]) -> None:
        """Require that all processes run; only a launcher may exit, with code 0."""
        for name in vital:
            code = self.children.exit_code(name)
            if code is not None and (code or not name.startswith("run-")):
                raise ChildFailedError(f"{name} ended with code {code}:\n{self.children.tail(name)}")

    def wait_for_job(self, seconds: float) -> None:
        """Wait until every launcher has ended well.

        Raises:
            ChildFailedError: one ended with another code than 0, or not in time.
        """
        for node in NODES:
            code = self.children.wait(f"run-{node}", seconds)
            if code:
                raise ChildFailedError(f"run-{node} ended with code {code}:\n{self.children.tail(f'run-{node}')}")

    def close(self) -> None:
        self.children.stop_all()
        shutil.rmtree(self.memory, ignore_errors=True)
