"""Sick runs, live: a real job made sick in front of a real service, and whom the API blames for it.

The host may be small and busy, so ranks are few, deadlines generous, and the tests assert no durations:
that is ``python -m bench.hang_live``.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from mainstay.detectors.finding import FindingKind
from mainstay.detectors.registry import DETECTORS
from mainstay.service.demo.stack import Stack
from tests.fork_server.processes import Warm
from tests.scenarios.sick.site import Json, Site, hog, pin, serving, training

pytestmark = [
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("control"),
]

SMALL = ("--width", 32, "--layers", 1, "--batch", 1, "--pp", 1)
ONE = ("--micro-batches", 1)
"""In each step, where ranks only have to wait for one another."""
PACE = (*ONE, "--faults", "sleep:rank=1,ms=100")
"""A job that trains until the story ends leaves the cores to others. The slow rank is the one that is to be stopped: it
is stopped outside a collective then, in which it would be like all that wait there."""
FOR_EVER = 100_000
HANGS = ("noncomm_hang", "comm_hang", "collective_mismatch")
DEVICE_MS = 100
"""Every forward pass sleeps this long (one a step), as if a device worked: what neighbors on the processor do then
changes a rank's own compute by a few per cent only."""
NETWORK_MS = 20
"""Likewise every transfer, in the story about a link: over the loopback its duration is unpredictable."""


Start = Callable[..., AbstractContextManager[Site]]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, service_stack: Callable[..., Stack]) -> Iterator[Stack]:
    """One service for all stories: each has a job of its own, and no job is reported in another."""
    with serving(tmp_path_factory.mktemp("sick"), service_stack) as running:
        yield running


@pytest.fixture
def site(warm: Warm, stack: Stack, request: pytest.FixtureRequest) -> Start:
    """Starts a job of this story's own, with arguments for the example script."""

    def start(*arguments: object, **how: Any) -> AbstractContextManager[Site]:
        name = request.node.name.removeprefix("test_").replace("_", "-")[:40]
        name += f"-{again}" if (again := getattr(request.node, "execution_count", 1)) > 1 else ""
        return training(stack, *arguments, warm=warm, name=name, **how)

    return start


def said_by_some_detector(kind: FindingKind) -> pytest.MarkDecorator:
    known = any(kind in detector.kinds for detector in DETECTORS.values())
    return pytest.mark.skipif(not known, reason=f"no detector says {kind.value} yet")


def network(*pairs: tuple[int, int]) -> str:
    return ";".join(f"link:rank={receiver},peer={sender},ms={NETWORK_MS}" for sender, receiver in pairs)


def device(ranks: int) -> str:
    return ";".join(f"sleep:rank={rank},ms={DEVICE_MS}" for rank in range(ranks))


def learned(here: Site, name: str) -> Callable[[], bool]:
    return lambda: here.account(name).get("state") == "active"


def nobody_else(here: Site, rank: int, *kinds: str) -> None:
    """Reports about other ranks, now or before."""
    assert here.blamed(*kinds) <= {rank}, here.account_of_all()


def incident_of(here: Site, finding: Json) -> Json:
    def found() -> Json | None:
        same = [f for f in here.findings(finding["kind"], active=None) if f["id"] == finding["id"] and f["incident"]]
        return same[0] if same else None

    attached = here.until(found, 30.0, "an incident of the finding")
    detail: Json = here.stack.api.get(f"/incidents/{attached['incident']}")
    return detail


def test_a_rank_that_is_stopped_hangs_the_job(site: Start) -> None:
    with site("--steps", FOR_EVER, "--dp", 3, *SMALL, *PACE, ranks=3, options=("--on-hang", "report")) as here:
        here.until(learned(here, "hang"), 120.0, "a learned period")
        assert here.findings(*HANGS, active=None) == []
        here.stop(1)
        finding = here.until_finding("noncomm_hang", 60.0, rank=1)
        assert finding["confidence"] >= 0.9
        assert finding["entity"]["node"] == "node-0"
        incident = incident_of(here, finding)
        assert incident["severity"] == "critical"
        assert here.stack.api.get(f"/jobs/{here.job.name}/progress")["state"] == "hung"
        # The coordinator comes to the same, and shows where the ranks are.
        dumps = here.until(lambda: len(found := here.job.events("stack_dump")) >= 2 and found, 30.0, "stacks")
        suspects = {event["rank"] for event in dumps if event["data"]["suspect"]}
        assert suspects == {1}
        (stopped,) = [event for event in dumps if event["rank"] == 1]
        assert stopped["data"]["process"] == "stopped"
        (other,) = [event for event in dumps if event["rank"] != 1]
        if not other["data"].get("problem"):
            assert any("all_reduce" in frame for frame in other["data"]["stacks"][0]["frames"])
        nobody_else(here, 1, *HANGS)
        here.job.kill(1, signal.SIGCONT)
        here.until(lambda: not here.findings(*HANGS), 60.0, "the hang to be over")
        assert here.job.events("recovery_completed") == []  # it was only to be reported


def test_a_stopped_rank_is_replaced_by_default(site: Start) -> None:
    """That such a job then ends well: ``tests/recovery/launcher/test_processes.py``."""
    with site("--steps", FOR_EVER, "--dp", 2, *SMALL, *PACE, ranks=2) as here:
        here.until(learned(here, "hang"), 120.0, "a learned period")
        before = here.job.pids()
        here.stop(1)
        recovered = here.job.wait_recoveries(1, 90.0)
        assert recovered["data"]["steps_lost"] <= 1
        assert here.job.pids()[0] == before[0]
        assert here.job.pids()[1] != before[1]
        finding = here.until(lambda: here.findings("noncomm_hang", active=None), 30.0, "the finding")[0]
        assert finding["entity"]["rank"] == 1
        here.until(lambda: not here.findings(*HANGS), 60.0, "the hang to be over")
        (verified,) = here.until(lambda: here.job.events("recovery_verified"), 60.0, "the proof of equal state")
        assert verified["data"]["digest_match"] is True
        back = here.job.step()
        here.until(lambda: here.job.step() > back + 20, 60.0, "more steps")
        assert len(here.job.events("recovery_completed")) == 1


@pytest.mark.exclusive
@said_by_some_detector(FindingKind.CPU_CONTENTION)
def test_a_busy_loop_on_the_core_of_a_rank(site: Start) -> None:
    with site("--steps", FOR_EVER, "--dp", 2, *SMALL, ranks=2) as here:
        here.until(lambda: here.job.step() >= 10, 120.0, "step 10")
        pin(here.training_thread(1), {1})
        pin(here.training_thread(0), {0})
        here.until(lambda: here.job.step() >= 100, 240.0, "a hundred steps alone")
        with hog(1, processes=3):
            here.until_finding("cpu_contention", 120.0, rank=1)
            nobody_else(here, 1, "straggler")


@said_by_some_detector(FindingKind.STRAGGLER)
def test_a_sleep_in_the_forward_pass_of_a_rank(site: Start) -> None:
    faults = f"{device(3)};sleep:rank=2,step=80,ms={DEVICE_MS}"
    with site("--steps", FOR_EVER, "--dp", 3, *SMALL, *ONE, "--faults", faults, ranks=3) as here:
        here.until_finding("straggler", 240.0, rank=2)
        assert here.job.step() >= 80
        nobody_else(here, 2, "straggler", *HANGS)


@said_by_some_detector(FindingKind.CONGESTION)
def test_a_link_that_is_slow(site: Start) -> None:
    """From rank 2 to rank 3, the second of two pipelines of two stages."""
    healthy = network((0, 1), (1, 0), (2, 3), (3, 2))
    faults = f"{healthy};link:rank=3,peer=2,step=80,ms={2 * NETWORK_MS}"
    shape = ("--dp", 2, "--pp", 2, "--width", 32, "--layers", 2, "--batch", 1)
    with site("--steps", FOR_EVER, *shape, "--faults", faults, ranks=4) as here:
        kinds = ("congestion", "nic_degraded")
        finding = here.until(lambda: here.findings(*kinds), 240.0, "a finding about the link")[0]
        assert here.job.step() >= 80
        named = {finding["entity"]["rank"], finding["entity"]["peer"]} - {None}
        assert named, finding
        assert named <= {2, 3}, finding
        nobody_else(here, -1, "straggler", *HANGS)


@said_by_some_detector(FindingKind.NAN)
def test_a_nan_in_a_gradient(site: Start) -> None:
    faults = "nan:rank=1,step=40"
    with site("--steps", FOR_EVER, "--dp", 2, *SMALL, "--faults", faults, ranks=2) as here:
        here.until_finding("nan", 180.0, rank=1)
        nobody_else(here, 1, "nan", "sdc_suspect")
        assert json.dumps(here.detector_status())  # no NaN on its way to a browser
