"""Stories of ways that a running job's coordinator does not price: planned changes, and a job that is started again.

What predicts them is the same model as the planner's (``recovery/strategies``), with constants that the job itself has
shown until then.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

from bench.lib_job import Job, JobError, Json, descendants, free_port
from bench.lib_journal import times
from bench.lib_strategy_predictions import (
    ANY,
    DEADLINE,
    LAYERS,
    TINY,
    Place,
    Sample,
    ScenarioOutcome,
    ended,
    outcome_of,
    quiet,
)
from mainstay.recovery.cost_inputs import CostInputs, FailureOdds, FaultKind, RollbackCosts
from mainstay.recovery.cost_model.failure_cost import MEASURED
from mainstay.recovery.cost_model.iteration import IterationShape
from mainstay.recovery.job_request import JobRequestResult, RequestKind, RequestState
from mainstay.recovery.planner_input import MachineCosts
from mainstay.recovery.strategies.degrade import Degrade, degraded_s
from mainstay.recovery.strategies.just_in_time import JustInTime


def reshape(place: Place) -> ScenarioOutcome:
    """From dp 2 x pp 2 to 1 x 4 and back, asked for while it trains."""
    directory = place.directory / "reshape"
    count, steps = place.runs + 1, 60 * (place.runs + 2)
    words = ["--steps", str(steps), "--width", "64", "--layers", str(LAYERS), "--seed", "11"]
    more = ["--pause", "0.05", "--journal", str(directory / "journal"), "--save", str(directory / "saved")]
    options = ["--dp", "2", "--pp", "2", "--standbys", "0", "--checkpoint-dir", str(directory / "checkpoints")]
    given: list[JobRequestResult] = []
    with Job(directory=directory / "job", script=ANY, arguments=[*words, *more], options=options) as job:
        for number in range(count):
            dp, pp = ((1, 4), (2, 2))[number % 2]
            job.wait_step((given[-1].step or 0 if given else 0) + 6)
            given.append(_changed(job, dp, pp))
        ended(job)
    still = [answer.seconds or 0.0 for answer in given]
    samples = [Sample("morph", now, fmean(still[: n + 1])) for n, now in enumerate(still[1:])]
    basis = "predicted from this job's own earlier changes; stood still, until the next step that all have committed"
    return outcome_of(place, directory, words, samples, basis, steps=steps, script=ANY)


def _changed(job: Job, dp: int, pp: int) -> JobRequestResult:
    job.until(lambda: quiet(job), DEADLINE, "a time in which nothing else happens")
    answer = job.request(RequestKind.RESHAPE, DEADLINE, dp=dp, pp=pp)
    if answer.state is not RequestState.COMPLETED:
        raise JobError(f"change to dp={dp} pp={pp}: {answer.state}: {answer.detail}")
    return answer


def reinstantiate(place: Place) -> ScenarioOutcome:
    """Six nodes as 3 + 3 stages: one is lost without a spare, 3 + 2 continue, and 3 + 3 when its launcher is back."""
    directory = place.directory / "reinstantiate"
    count, layers = place.runs + 1, 6
    steps = 30 * (count + 1)
    words = ["--steps", str(steps), "--width", "32", "--layers", str(layers), "--micro-batches", "5"]
    # A launcher takes some seconds to start: there must be steps left for it on a quick machine too.
    more = ["--pause", "0.4", "--journal", str(directory / "journal"), "--save", str(directory / "saved")]
    options = ["--dp", "2", "--pp", "3", "--standbys", "0", "--on-loss", "reinstantiate", "--parity-interval", "0",
               "--checkpoint-dir", str(directory / "checkpoints")]  # fmt: skip
    took: list[float] = []
    with Job(directory=directory / "job", script=ANY, arguments=[*words, *more], options=options, nodes=6, per_node=1,
             port=free_port()) as job:  # fmt: skip
        job.wait_step(1)
        for number in range(count):
            job.wait_step(job.step() + 4)
            job.until(lambda: quiet(job), DEADLINE, "3 + 3 stages")
            took.append(_gone_and_back(job, (4, 1, 5, 2, 3)[number % 5], 2 * number))
        ended(job)
    samples = [Sample("reinstantiate", now, fmean(took[: n + 1])) for n, now in enumerate(took[1:])]
    basis = ("predicted from this job's own earlier re-instantiations; SIGKILL of a node with its memory to the next "
             "step that all have committed")  # fmt: skip
    return outcome_of(place, directory, words, samples, basis, steps=steps, script=ANY, layers=layers, pp=3)


def _gone_and_back(job: Job, node: int, before: int) -> float:
    """Node ``node`` is killed with its memory, and its launcher started again; seconds that the loss took."""
    launcher = job.launchers[node]
    doomed = [launcher.pid, *descendants(launcher.pid)]
    # In its place, so that no one mistakes the dead launcher for the job's end.
    job.launchers[node] = job.launchers[(node + 1) % 6]
    killed = time.time()
    for pid in doomed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    launcher.wait()
    for memory in job.shm.rglob(f"node-{node}"):
        shutil.rmtree(memory, ignore_errors=True)
    recovered = job.wait_recoveries(before + 1, DEADLINE)
    job.wait_step(recovered["data"]["epoch"] + 4)
    job.launchers[node] = job.start_again(node)
    job.wait_recoveries(before + 2, DEADLINE)
    return float(recovered["time"] - killed)


def cost_inputs(
    fault: FaultKind,
    *,
    step_s: float,
    state_bytes: float = 0.0,
    costs: MachineCosts | None = None,
    warm_up_s: float = MEASURED.warm_up_s,
    restart_s: float = 0.0,
    speed: float = 1.0,
) -> CostInputs:
    """A job of 2 x 2 ranks with four micro-batches a pipeline, of which one worker of the last stage is concerned."""
    return CostInputs(
        shape=IterationShape(dp=2, pp=2, micro_batches=4),
        slot_s=step_s / 5.0,
        layers=LAYERS, state_bytes=state_bytes, fault=fault, lost=(0, 1), odds=FailureOdds(worker_rate=0.0), broken=1,
        held=RollbackCosts(local_s=step_s / 2.0), costs=costs or MachineCosts(), detect_s=MEASURED.detect_s,
        warm_up_s=warm_up_s,
        restart_s=restart_s, speed=speed,
    )  # fmt: skip


def just_in_time(place: Place) -> ScenarioOutcome:
    """A node is lost for which there is no other: the rest saves and ends, and the job is started again."""
    directory = place.directory / "just-in-time"
    each, count = 25, place.runs
    steps = each * (count + 1)
    words = ["--steps", str(steps), *TINY, "--canonical"]
    options = ["--standbys", "0", "--checkpoint-dir", str(directory / "checkpoints"), "--resume", "auto"]
    journals: list[Path] = []
    samples: list[Sample] = []
    killed = predicted = 0.0
    for number in range(count + 1):
        journals.append(directory / f"journal-{number}")
        more = ["--journal", str(journals[-1]), "--save", str(directory / "saved"), "--faults", "sleep:rank=0,ms=10"]
        begun = time.time()
        with Job(directory=directory / f"job-{number}", arguments=[*words, *more], options=options) as job:
            job.until(partial(_second_step, journals[-1]), DEADLINE, "a committed step")
            first = sorted(times(journals[-1]).items())[1][1][0]
            samples += [Sample("just_in_time", first - killed, predicted)] if number else []
            if number == count:
                ended(job)
                break
            job.wait_step(each * number + each // 2)
            now = cost_inputs(FaultKind.NODE, step_s=0.1, state_bytes=max(job.state()["protection"]["state_bytes"]),
                          restart_s=first - begun, costs=replace(MachineCosts(), spawn_cold_s=1e-6))  # fmt: skip
            predicted = JustInTime().recovery_action(now).downtime_s
            killed = time.time()
            _lose_the_second(job)
    basis = ("predicted by just_in_time with the time that the last start took; SIGKILL of a node, save, start with "
             "--resume auto, to the next committed step")  # fmt: skip
    return outcome_of(place, directory, words, samples, basis, steps=steps, journals=journals)


def _second_step(journal: Path) -> bool:
    return len(times(journal)) > 1


def _lose_the_second(job: Job) -> None:
    """SIGKILL of the launcher of node 1, which takes all of its processes; the other one ends on its own."""
    job.launchers[1].kill()
    job.launchers[1].wait()
    try:
        job.launchers[0].wait(DEADLINE)
    except subprocess.TimeoutExpired as error:
        raise JobError(f"the job did not end though a node is lost for good\n{job.tail()}") from error


def degrade(place: Place) -> ScenarioOutcome:
    """One rank is slow, then none, then another: the job reassigns micro-batches. A rank that raises comes first."""
    directory = place.directory / "degrade"
    steps = 220
    words = ["--steps", str(steps), *TINY, "--canonical"]
    faults = "raise:rank=2,step=6;sleep:rank=3,step=20,until=90,ms=60;sleep:rank=1,step=125,ms=60"
    more = ["--faults", faults, "--journal", str(directory / "journal"), "--save", str(directory / "saved")]
    options = ["--standbys", "0", "--micro-batch-assignment", "proportional", "--parity-interval", "0"]
    with Job(directory=directory / "job", arguments=[*words, *more], options=options) as job:
        ended(job)
        events, said = job.events("recovery_completed"), job.log(0).read_text()
    deals = re.findall(r"work is assigned again by the speed of replicas \(([^)]*)\)", said)
    if len(deals) < place.runs and len(deals) < 3:
        raise JobError(f"degrade: work was assigned again {len(deals)} times only: {deals}\n{job.tail()}")
    begun = times(directory / "journal")
    samples = _assigned(events, ["1.00, 1: 1.00" not in deal for deal in deals], begun)
    basis = ("predicted by degrade with what the job's earlier regroupings took; stood still, until the next step that "
             "all have committed")  # fmt: skip
    return outcome_of(place, directory, words, samples, basis, steps=steps)


def _assigned(events: list[Json], uneven: list[bool], begun: dict[int, list[float]]) -> list[Sample]:
    """Each change of the micro-batch assignment beside its prediction, from what the job had shown until then.

    The next step has the new assignment: a healthy one where no rank is slow any more, else what ``degraded_s`` makes
    of a healthy step and of how much longer the slow one made it. The first event is another one, before any rank is
    slow.
    """
    healthy = _step(begun, events[0]["data"]["epoch"] + 10)
    expected, samples = [healthy], list[Sample]()
    for number, (event, gets_less) in enumerate(zip(events[1:], uneven, strict=True), start=1):
        seconds = [e["data"]["seconds"] for e in events[:number]]
        slow = _step(begun, event["data"]["epoch"])
        warm_up = fmean(s["first_step"] - e for s, e in zip(seconds, expected, strict=True))
        now = cost_inputs(
            FaultKind.SLOW, step_s=healthy, warm_up_s=max(0.0, warm_up), speed=min(1.0, healthy / slow),
            costs=replace(MachineCosts(), **{f"{name}_s": fmean(s[name] for s in seconds) for name in ("fence",
            "regroup")}),
        )  # fmt: skip
        expected.append(degraded_s(now)[0] if gets_less else healthy)
        predicted = now.costs.fence_s + Degrade().recovery_action(now).downtime_s + expected[-1]
        samples.append(Sample("degrade", event["data"]["seconds"]["total"], predicted))
    return samples


def _step(begun: dict[int, list[float]], epoch: int) -> float:
    """Median seconds of the steps just before ``epoch``."""
    ticks = [begun[step][0] for step in range(max(1, epoch - 8), epoch) if step in begun]
    return median(later - sooner for sooner, later in pairwise(ticks))
