"""``mainstay serve`` and one ``mainstay run`` that reports to it; what the API says of the job.

The job is small (2 to 4 ranks), because the host may be: what is measured is who is named, not how fast.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.lib_job import Job
from mainstay.probes.transport import TransportError
from mainstay.service.demo.stack import Stack, free_port
from tests.fork_server.processes import Warm

Json = dict[str, Any]
POLL_SECONDS = 0.1
JOB = "job"
HOG = "import os\nos.sched_setaffinity(0, {%d})\nwhile True:\n    pass\n"


@dataclass(slots=True)
class Site:
    """A service, and the job that reports to it."""

    stack: Stack
    job: Job

    def findings(self, *kinds: str, active: bool | None = True) -> list[Json]:
        """What the API says of the job's ranks, newest first: of all kinds or of the given ones."""
        query = {} if active is None else {"active": str(active).lower()}
        items: list[Json] = self.stack.api.get("/findings", job=self.job.name, limit=200, **query)["items"]
        return [item for item in items if not kinds or item["kind"] in kinds]

    def incidents(self) -> list[Json]:
        found: list[Json] = self.stack.api.get("/incidents", limit=200)["items"]
        return found

    def detector_status(self) -> Json:
        """Each detector's own account; none before the service knows the job."""
        try:
            return self.stack.api.get(f"/jobs/{self.job.name}/detectors")
        except TransportError:  # it has not heard of the job yet
            return {"detectors": []}

    def account(self, name: str) -> Json:
        """One detector's."""
        return next((d for d in self.detector_status()["detectors"] if d["name"] == name), {})

    def until(self, happened: Callable[[], Any], seconds: float, what: str) -> Any:
        """Poll until ``happened`` gives something true, and return that.

        Raises:
            AssertionError: not in time; says what the service thinks of the job instead.
        """
        deadline = time.monotonic() + seconds
        while not (found := happened()):
            if time.monotonic() > deadline:
                raise AssertionError(f"{what} did not come within {seconds:g} s\n{self.account_of_all()}")
            time.sleep(POLL_SECONDS)
        return found

    def until_finding(self, kind: str, seconds: float, **about: Any) -> Json:
        """The first active finding of this kind whose entity has these fields."""

        def holds() -> Json | None:
            fits = [f for f in self.findings(kind) if all(f["entity"].get(k) == v for k, v in about.items())]
            return fits[0] if fits else None

        found: Json = self.until(holds, seconds, f"{kind} of {about}")
        return found

    def account_of_all(self) -> str:
        """For whoever has to find out why a story failed."""
        said = [
            f"{f['kind']} {f['entity']} {f['active']}: {f['evidence']['summary']}" for f in self.findings(active=None)
        ]
        thinks = [f"{d['name']}: {d['state']} {d['why']} {d['numbers']}" for d in self.detector_status()["detectors"]]
        state = self.job.state()
        where = f"job {state.get('state')} at step {state.get('last_step')}"
        return "\n".join([where, "-- findings", *said, "-- detectors", *thinks, "-- log", self.job.tail(12)])

    def blamed(self, *kinds: str) -> set[int]:
        """Ranks that findings of these kinds name, now or before."""
        return {f["entity"]["rank"] for f in self.findings(*kinds, active=None) if f["entity"].get("rank") is not None}

    def training_thread(self, rank: int) -> int:
        """A rank's process id: also that of its first thread, which trains."""
        pid = self.job.pids()[rank]
        assert pid is not None
        return pid

    def stop(self, rank: int) -> float:
        """SIGSTOP; the monotonic time of it."""
        os.kill(self.training_thread(rank), signal.SIGSTOP)
        return time.monotonic()


@contextmanager
def serving(directory: Path, make: Callable[..., Stack] = Stack) -> Iterator[Stack]:
    """A service, with a token for jobs in the file ``job-token``."""
    directory.mkdir(parents=True, exist_ok=True)
    stack = make(directory, free_port())
    try:
        stack.start_service("serve")
        token = directory / "job-token"
        token.touch(mode=0o600)
        created = stack.api.post("/auth/tokens", {"name": "job", "kind": "job", "any_job": True})
        token.write_text(created["token"])
        yield stack
    finally:
        stack.close()


@contextmanager
def training(
    stack: Stack,
    *arguments: object,
    warm: Warm | None = None,
    ranks: int = 2,
    name: str = JOB,
    options: Sequence[str] = (),
    script: Path | None = None,
) -> Iterator[Site]:
    """A job of ``ranks``, with ``arguments`` for the example script, that reports to the service."""
    to_service = ["--service", stack.api.url, "--service-token-file", str(stack.directory / "job-token")]
    made = (warm.job if warm else Job)(
        directory=stack.directory / name,
        arguments=[str(word) for word in arguments],
        nodes=1,
        per_node=ranks,
        options=["--parity-interval", "0", *to_service, *options],
        name=name,
    )
    if script is not None:
        made.script = script
    with made:
        try:
            yield Site(stack, made)
        finally:
            # A rank that was stopped on purpose cannot end in order.
            for pid in made.pids().values() if made.state() else ():
                if pid is not None:
                    _continue(pid)


@contextmanager
def site(directory: Path, *arguments: object, **how: Any) -> Iterator[Site]:
    """A service and a job; see ``training``."""
    with serving(directory) as stack, training(stack, *arguments, **how) as here:
        yield here


@contextmanager
def hog(core: int, processes: int = 1) -> Iterator[None]:
    """Busy loops pinned to a core."""
    hogs = [subprocess.Popen([sys.executable, "-c", HOG % core]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in hogs:
            process.kill()
            process.wait()


def pin(pid: int, cores: set[int]) -> None:
    """Every thread of a process to these cores."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), cores)


def _continue(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return
