"""The demo's plot: start everything, train, kill a rank, watch the loop, compare with an undisturbed run.

The scenario knows the loop only through its public faces: the command line, the REST API and process ids.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mainstay.probes.transport import TransportError
from mainstay.service.demo.client import Json
from mainstay.service.demo.processes import ChildFailedError
from mainstay.service.demo.reference import compare_parameters, start_reference
from mainstay.service.demo.stack import JOB, NODES, RANKS_PER_NODE, Stack, free_port
from mainstay.service.demo.timeline import DemoTimeline

_SECONDS_A_STEP = 5.0
"""More than a step takes even on a machine that is busy with other things."""
_CHECKPOINT_INTERVAL = 20
"""Steps: the first checkpoint is there within seconds."""
_RANKS = len(NODES) * RANKS_PER_NODE
_PACE = ";".join(f"sleep:rank={rank},step=0,ms=25" for rank in range(_RANKS))
"""All ranks alike, so that none is a straggler: the kill comes in the midst of the steps, also on a fast machine."""
_SMALL = ("--batch", "1", "--micro-batches", "2", "--faults", _PACE)
"""Of both runs: a step lasts a while and computes little."""


class DemoError(RuntimeError):
    """The demo cannot continue; the message contains the step and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    directory: Path
    port: int
    steps: int
    kill_rank: int
    kill_at_step: int
    seed: int


class Scenario:
    """One demo run. ``play`` goes through the acts in order and fills the story."""

    def __init__(self, options: DemoOptions, story: DemoTimeline, refresh: Callable[[], None]) -> None:
        self.options = options
        self.story = story
        self.refresh = refresh
        self.stack = Stack(options.directory, options.port)

    def run(self) -> None:
        """All acts.

        Raises:
            DemoError: something did not happen in time.
        """
        try:
            self.start_service()
            self.start_training()
            self.kill_a_rank()
            self.watch_recovery()
            self.finish()
            self.compare()
        except (ChildFailedError, TransportError, TimeoutError) as error:
            raise DemoError(str(error)) from error

    # Acts

    def start_service(self) -> None:
        """Service, dashboard, worker, beat and this machine's own node daemon, with embedded defaults."""
        self.story.add_line("starting the service with embedded defaults (SQLite, Celery in memory)")
        self.stack.start_service(between=self.refresh)
        self.story.url = self.stack.api.url
        self.story.sign_in = self.stack.sign_in_link()
        self.story.add_line(f"service is ready: {self.story.sign_in}", "good")

    def start_training(self) -> None:
        """Two node daemons and two launchers on this host, as if they were two nodes."""
        for node in NODES:
            self.stack.start_node(node)
        options = self.options
        disk = {"--checkpoint-dir": options.directory / "checkpoints", "--checkpoint-interval": _CHECKPOINT_INTERVAL}
        self.stack.start_job(
            steps=options.steps, seed=options.seed, save=options.directory / "job", options=disk, words=_SMALL
        )
        self.story.add_line("two nodes train a small transformer: data parallel 2 × pipeline 2", "act")
        target = options.kill_at_step
        self._until(lambda: (self._job().get("last_step") or 0) >= target, 120.0, f"step {target}")
        self.story.add_line(
            f"step {self.story.job['last_step']} committed; snapshots live in agent-owned memory", "good"
        )

    def kill_a_rank(self) -> None:
        """SIGKILL, as a failing host would: no warning, no handler, no shutdown notice."""
        job = self._job()
        self.story.pids_before = {r["rank"]: r["pid"] for r in job["topology"]["ranks"]}
        self.story.failed_rank = self.options.kill_rank
        pid = self.story.pids_before[self.options.kill_rank]
        self.story.killed_at = time.time()
        os.kill(pid, signal.SIGKILL)
        self.story.add_line(f"SIGKILL sent to rank {self.options.kill_rank} (pid {pid})", "bad", self.story.killed_at)

    def watch_recovery(self) -> None:
        """Incident, plan, restore, first new step, verification: each told when the API shows it."""
        self._until(self._find_incident, 30.0, "an incident")
        self.story.seen_at = time.time()
        incident = self.story.incident
        self.story.add_line(f"incident opened: {incident['title']}", "bad", incident["opened_at"])
        self._until(lambda: self._incident().get("plan") is not None, 60.0, "a plan")
        plan = self.story.incident["plan"]
        self.story.add_line(f"plan: {plan['explanation']}", "act", self.story.incident["recovering_at"])
        self._until(lambda: self._timeline("recovered") is not None, 60.0, "the recovery")
        entry = self._timeline("recovered") or {}
        self.story.recovered = entry["data"]
        self.story.recovered_at = entry["time"]
        took = entry["time"] - (self.story.killed_at or 0.0)
        lost = entry["data"].get("steps_lost")
        text = f"training continues {took:.2f} s after the kill, steps lost: {lost}"
        self.story.add_line(text, "good", entry["time"])
        self._until(lambda: self._timeline("verified") is not None, 60.0, "the verification")
        self.story.verified = True
        self.story.add_line("verified: new steps committed, replicas hold equal parameters", "good")
        self.story.pids_after = {r["rank"]: r["pid"] for r in self._job()["topology"]["ranks"]}

    def finish(self) -> None:
        """Wait until every launcher has ended well, and the service knows."""
        patience = 60.0 + _SECONDS_A_STEP * self.options.steps
        self._until(lambda: self._ended([f"run-{node}" for node in NODES]), patience, "the end of the training")
        self.stack.wait_for_job(1.0)
        self._until(lambda: self._job()["state"] == "finished", 30.0, "the job to be reported finished")
        self.story.finished = True
        self.story.job_s = (self.story.job["finished_at"] or time.time()) - self.story.job["started_at"]
        self.story.add_line("training finished", "good")

    def compare(self) -> None:
        """Train the same seed again with no Mainstay and no fault; the parameters must be equal to the bit."""
        self.story.add_line("training the same seed again, undisturbed and unprotected, to compare")
        directory, children = self.options.directory / "reference", self.stack.children
        started = time.monotonic()
        options = self.options
        name = start_reference(
            children, directory, port=free_port(), steps=options.steps, seed=options.seed, words=_SMALL
        )
        patience = 60.0 + _SECONDS_A_STEP * self.options.steps
        self._until(lambda: self._ended([name]), patience, "the end of the undisturbed run")
        if children.exit_code(name):
            raise DemoError(f"the undisturbed run failed:\n{children.tail(name)}")
        self.story.reference_s = time.monotonic() - started
        differing = compare_parameters(self.options.directory / "job", directory)
        self.story.bit_equal = not differing
        if differing:
            self.story.error = f"parameters differ: {', '.join(differing[:5])}"
            self.story.add_line(self.story.error, "bad")
        else:
            self.story.add_line("final parameters are bit-equal to the undisturbed run", "good")
        self._incident()

    # What the acts need

    def _ended(self, names: list[str]) -> bool:
        self._job()  # the live view follows the steps
        return all(self.stack.children.exit_code(name) is not None for name in names)

    def _job(self) -> Json:
        """The job as the API shows it now; an empty job before it is known."""
        try:
            self.story.job = self.stack.api.get(f"/jobs/{JOB}")
        except TransportError:
            if self.story.job:
                raise
        return self.story.job

    def _find_incident(self) -> bool:
        """Whether an incident of the job opened after the kill."""
        for incident in self.stack.api.get("/incidents", job=JOB)["items"]:
            if incident["opened_at"] >= (self.story.killed_at or 0.0):
                self.story.incident = incident
                return True
        return False

    def _incident(self) -> Json:
        self.story.incident = self.stack.api.get(f"/incidents/{self.story.incident['id']}")
        return self.story.incident

    def _timeline(self, kind: str) -> Json | None:
        entries: list[Json] = self._incident()["timeline"]
        return next((entry for entry in entries if entry["kind"] == kind), None)

    def _until(self, happened: Callable[[], bool], seconds: float, what: str) -> None:
        vital = ("service", *(f"run-{node}" for node in NODES))
        self.stack.until(happened, seconds, what, vital=vital, between=self.refresh)
        self.refresh()
