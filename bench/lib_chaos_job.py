"""The training job of ``bench.chaos``: its ranks are killed at random, and what a service knows of it is compared.

The job reports through a load balancer that does not know which service answers. When it has ended it starts again in
the same place, as a scheduler would, so that it also ends and begins under faults. What the coordinator wrote down
itself, in ``events.jsonl``, is the truth about its recoveries.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, LiteralString

from bench.lib_chaos import Load, until
from bench.lib_cluster import Proxy
from bench.lib_job import Job, Json, run_plain
from bench.service_outage import holes

JOB: Final = "chaos-job"
RANKS: Final = 2
STEPS: Final = 150
WORDS: Final = ("--steps", str(STEPS), "--seed", "11", "--width", "32", "--batch", "1", "--dp", str(RANKS), "--pp", "1")
PACE: Final = ";".join(f"sleep:rank={rank},step=0,ms=60" for rank in range(RANKS))
END_SECONDS: Final = 600.0
OUTCOMES: Final = {"recovery_completed": "recovered", "recovery_failed": "failed", "recovery_verified": "verified"}


def compare_recoveries(
    told: Sequence[Json], events: Iterable[str], recoveries: Mapping[str, str | None]
) -> Counter[str]:
    """Counts of events ``unheard``, and of recoveries ``lost``, ``invented`` and ``wrong``.

    Args:
        told: events as the coordinator wrote them down, in their order.
        events: IDs of those that a service has.
        recoveries: ID → outcome, as a service has them.
    """
    true: dict[str, str] = {}
    for event in told:
        name = event["data"].get("recovery") or (event["data"].get("plan") or {}).get("id")
        if name and (event["kind"] in OUTCOMES or event["kind"] == "recovery_planned"):
            true[name] = OUTCOMES.get(event["kind"], "recovering")
    return Counter(
        unheard=len({event["id"] for event in told} - set(events)),
        lost=len(true.keys() - recoveries.keys()),
        invented=len(recoveries.keys() - true.keys()),
        wrong=sum(recoveries.get(name, how) != how for name, how in true.items()),
    )


def train_undisturbed(place: Path) -> Path:
    """Where the parameters are of a run to which nothing happened.

    Raises:
        JobError: it failed.
    """
    run_plain(place, [*WORDS, "--save", str(place / "saved")], RANKS, 900.0)
    return place / "saved"


@dataclass
class Training:
    """Runs of the job, one after the other, until ``end``."""

    load: Load
    rng: random.Random
    place: Path
    undisturbed: Path
    """Parameters of a run to which nothing happened."""
    kills: int = 0
    runs: int = 0
    failed: list[str] = field(default_factory=list)
    """Runs that did not end well."""
    wrong_bits: list[str] = field(default_factory=list)
    _last: bool = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Train and kill; afterwards wait until the run under way has ended, in peace."""
        ports = [one.port for one in self.load.processes]
        balancer = Proxy(*ports)
        await balancer.start()
        self.place.mkdir()
        body = json.dumps({"name": JOB, "kind": "job", "job": JOB}).encode()
        _, answer = await self.load.people[0].request("POST", "/v1/auth/tokens", body)
        (self.place / "token").write_text(json.loads(answer)["token"])
        training = asyncio.create_task(self._train(f"http://127.0.0.1:{balancer.port}"))
        try:
            yield
            self._last = True
            await training
        finally:
            training.cancel()
            with suppress(asyncio.CancelledError):
                await training
            await balancer.stop()

    async def _train(self, url: str) -> None:
        while not self._last:
            self.runs += 1
            saved = self.place / f"saved-{self.runs}"
            options = ["--service", url, "--service-token-file", str(self.place / "token"), "--max-restarts", "9999"]
            job = Job(
                directory=self.place / "job", arguments=[*WORDS, "--save", str(saved)], nodes=1, per_node=RANKS,
                name=JOB, options=options, environment={"MAINSTAY_EXAMPLE_FAULTS": PACE},
            )  # fmt: skip
            with job:
                await self._kill_ranks(job)
                codes = await asyncio.to_thread(job.wait, END_SECONDS)
            if any(codes):
                self.failed.append(job.tail(8))
                print(self.failed[-1], flush=True)
            elif not _same(saved, self.undisturbed):
                self.wrong_bits.append(saved.name)

    async def _kill_ranks(self, job: Job) -> None:
        """SIGKILL of one rank at random moments, also during a recovery, until the run ends or must."""
        while job.launchers[0].poll() is None and not self._last:
            await asyncio.sleep(self.rng.uniform(1.0, 25.0))
            pid = job.pids().get(self.rng.randrange(RANKS)) if job.step() else None
            if pid is not None and not self._last:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    self.kills += 1

    async def compare(self) -> None:
        """Report what differs between the coordinator's own record and what the services say."""
        row, server = self.load.row, self.load.server
        told = [json.loads(line) for line in (self.place / "job/node-0/events.jsonl").read_text().splitlines()]
        row("ranks of the job killed", self.kills, "", None, note=f"in {self.runs} runs of {STEPS} steps")
        row("runs that failed", len(self.failed), "", 0.0, n=self.runs, note="; ".join(self.failed)[-200:])
        row("runs with other parameters than undisturbed", len(self.wrong_bits), "", 0.0, n=self.runs)

        def counts() -> Counter[str]:
            events = [event for (event,) in server.query("SELECT id FROM events WHERE job = %s", JOB)]
            return compare_recoveries(
                told, events, dict(server.query("SELECT id, outcome FROM recoveries WHERE job = %s", JOB))
            )

        await until(lambda: not counts().total(), 30.0)
        wrong, recoveries = counts(), sum(event["kind"] == "recovery_completed" for event in told)
        row("events of the job that no service has", wrong["unheard"], "", 0.0, n=len(told))
        for what in ("lost", "invented", "wrong"):
            row(f"recoveries of the job {what}", wrong[what], "", 0.0, n=recoveries)
        states = [(await one.json(f"/v1/jobs/{JOB}") or {}).get("state") for one in self.load.people]
        bad = [str(state) for state in states if state != "finished"]
        row("services with a wrong state of the job", len(bad), "", 0.0, n=len(states), note=", ".join(bad))
        hung = server.query("SELECT kind FROM findings WHERE job = %s AND kind LIKE %s", JOB, "%hang%")
        row("hangs found in the job", len(hung), "", 0.0)
        statement: LiteralString = "SELECT stream, sequence FROM blocks WHERE subject = %s AND kind = 'step'"
        stored: Counter[tuple[str, int]] = Counter((s, n) for s, n in server.query(statement, JOB))
        row("step frames of the job missing", holes(stored), "", 0.0, n=len(stored))


def _same(saved: Path, other: Path) -> bool:
    names = [path.name for path in other.iterdir()]
    return bool(names) and all(
        (saved / name).is_file() and (saved / name).read_bytes() == (other / name).read_bytes() for name in names
    )
