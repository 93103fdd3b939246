"""From evidence against a living node to a moved rank: service, coordinator and ranks as they are.

An operator accepts the move, and moves the rank back with ``mainstay job migrate``. For a grave finding in automatic
mode the rank leaves, and then its node leaves service, without an operator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.lib_job import Job, free_port
from mainstay.detectors.cli_errors import BAD_INPUT
from mainstay.probes.ids import uuid7
from mainstay.recovery.job_cli import RequestOptions, migrate
from mainstay.service.demo.client import ApiClient
from mainstay.service.demo.stack import Stack
from tests.fork_server.processes import Warm
from tests.scenarios.pace import throttled
from tests.scenarios.pair import REPORT

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("control")]

HOUR = 3600.0
ARGUMENTS = [
    "--steps", "1000000", "--seed", "5", "--width", "64", "--batch", "2", "--dp", "1", "--pp", "2", "--layers", "2",
    "--micro-batches", "1", "--faults", "sleep:rank=0,step=0,ms=100",
]  # fmt: skip


AUTOMATIC = {
    "MAINSTAY_REMEDIATION__MODE": "automatic",
    "MAINSTAY_REMEDIATION__MIGRATE": "automatic",
    "MAINSTAY_FLEET__HEARTBEAT_TIMEOUT_SECONDS": "600",  # no daemon reports the nodes of the test again
}


@pytest.fixture
def stack(tmp_path: Path, request: pytest.FixtureRequest, service_stack: Callable[..., Stack]) -> Iterator[Stack]:
    environment = {
        "MAINSTAY_INCIDENTS__DETECTION_INTERVAL_SECONDS": "0.2",
        "MAINSTAY_REMEDIATION__INTERVAL_SECONDS": "0.2",
        **getattr(request, "param", {}),
    }
    stack = service_stack(tmp_path / "stack", free_port(), environment)
    try:
        stack.start_service("serve")
        yield stack
    finally:
        stack.close()


def damages(node: str) -> dict[str, Any]:
    """What an agent found there at three times: evidence that no single accident leaves."""
    data = {"found": 1, "flipped": 1, "repaired": 1, "lost": 0, "drills": 0, "what": "rank 1 was repaired"}
    times = [time.time() - hours * HOUR for hours in (5, 3, 1)]
    return {
        "items": [
            {"id": uuid7(), "time": at, "kind": "snapshot_corrupted", "node": node, "job": "job", "data": data}
            for at in times
        ]
    }


def options(stack: Stack, tmp_path: Path) -> list[str]:
    """Of a job that the service knows, with a warm standby on each node."""
    token = tmp_path / "token"
    token.write_text(stack.api.post("/auth/tokens", {"name": "job", "kind": "job", "any_job": True})["token"])
    return ["--standbys", "1", "--service", stack.api.url, "--service-token-file", str(token)]


def nodes(job: Job) -> list[str]:
    return [rank["node"] for rank in job.state()["topology"]["ranks"]]


def test_a_rank_leaves_a_node_whose_memory_forgets(warm: Warm, stack: Stack, tmp_path: Path, capsys: Any) -> None:
    api = stack.api
    known = options(stack, tmp_path)
    with warm.job(directory=tmp_path / "job", arguments=ARGUMENTS, nodes=2, per_node=1, options=known) as job:
        job.wait_step(5)
        before = job.pids()
        ApiClient(api.url, (tmp_path / "token").read_text()).post("/events", damages("node-1"))

        def proposed() -> Any:
            items = api.get("/remediations")["items"]
            return items if items and items[0]["state"] == "proposed" else None

        (item,) = job.until(proposed, 60.0, "the offer to move")
        assert (item["recommended_action"], item["node"]) == ("migrate_ranks", "node-1")
        assert "Memory of node-1 had bit flips at 3 times" in item["reason"]
        assert nodes(job) == ["node-0", "node-1"], "no request was made yet"

        api.post(f"/remediations/{item['id']}:accept", {"reason": "better before it dies"})
        (finished,) = job.until(lambda: job.events("migration_finished"), 60.0, "the end of the migration")
        assert finished["data"]["ok"], finished
        assert finished["data"]["steps_lost"] <= 1
        finding = api.get("/findings", kind="memory_bit_flips")["items"][0]
        assert job.events("migration_started")[0]["data"]["finding"] == finding["id"]
        job.until(lambda: api.get(f"/remediations/{item['id']}")["state"] == "done", 60.0, "the proposal's end")
        story = [one["text"] for one in api.get(f"/incidents/{item['incident']}")["timeline"]]
        assert any("job job: completed, ranks [1] moved" in text for text in story), story
        assert nodes(job) == ["node-0", "node-0"]
        assert job.pids()[0] == before[0], "no other rank was stopped"

        admin = tmp_path / "admin"
        admin.write_text(stack.token)
        where = RequestOptions(service=api.url, token_file=admin, reason="its memory was changed", timeout=60.0)
        waiting = lambda: api.get("/jobs/job")["topology"]["standbys"].get("node-1")  # noqa: E731
        assert waiting() == 0, "no rank goes to a node that is suspect"
        code = migrate("job", where, rank=1, target="node-1")
        assert code == BAD_INPUT
        assert "1 warm standby(s) on node-1 are needed and 0 are ready" in capsys.readouterr().err
        api.post(f"/incidents/{item['incident']}:close", {"reason": "its memory was changed"})
        job.until(waiting, 60.0, "a warm standby where the rank was")
        assert migrate("job", where, rank=1, target="node-1") == 0
        assert "Done: ranks [1] moved" in capsys.readouterr().out
        assert nodes(job) == ["node-0", "node-1"]
        step = job.step()
        job.wait_step(step + 3)


@pytest.mark.parametrize("stack", [AUTOMATIC], indirect=True)
def test_a_rank_leaves_before_its_node_is_taken_out_of_service(warm: Warm, stack: Stack, tmp_path: Path) -> None:
    """XID 119 where no other replica exists: a warm standby on the other node is enough, and no operator is asked."""
    api, known = stack.api, options(stack, tmp_path)
    for name in ("node-0", "node-1"):
        api.put(f"/nodes/{name}", REPORT)
    with warm.job(directory=tmp_path / "job", arguments=ARGUMENTS, nodes=2, per_node=1, options=known) as job:
        job.wait_step(5)
        before = job.pids()
        job.until(lambda: api.get("/jobs/job")["topology"]["standbys"].get("node-0"), 60.0, "a warm standby")
        event = {"id": uuid7(), "time": time.time(), "kind": "xid", "node": "node-1", "device": "GPU-119"}
        api.post("/events", {"items": [event | {"data": {"code": 119}}]})
        job.until(lambda: api.get("/nodes/node-1")["state"] == "quarantined", 120.0, "the end of the drain")
        (item,) = api.get("/remediations")["items"]
        assert (item["state"], item["decided_by"], item["recommended_action"]) == ("accepted", "mainstay", "reset_gpu")
        (finished,) = job.events("migration_finished")
        assert finished["data"]["ok"], finished
        assert finished["data"]["steps_lost"] <= 1
        assert nodes(job) == ["node-0", "node-0"]
        assert job.pids()[0] == before[0], "no other rank was stopped"
        moves = {move["to_state"]: move for move in api.get("/nodes/node-1/transitions")["items"]}
        assert moves["draining"]["time"] < finished["time"] < moves["quarantined"]["time"], moves
        assert "no work is left" in moves["quarantined"]["reason"]
        step = job.step()
        job.wait_step(step + 3)


def test_a_job_without_standbys_continues_without_the_node(warm: Warm, stack: Stack, tmp_path: Path) -> None:
    """The operator sees why no rank can move and what the job can do instead, and accepts that."""
    api = stack.api
    token = tmp_path / "token"
    token.write_text(api.post("/auth/tokens", {"name": "job", "kind": "job", "any_job": True})["token"])
    known = ["--standbys", "0", "--service", api.url, "--service-token-file", str(token)]
    words = ["--dp" if word == "--pp" else "--pp" if word == "--dp" else word for word in ARGUMENTS]  # two replicas
    with warm.job(directory=tmp_path / "job", arguments=words, nodes=2, per_node=1, options=known) as job:
        job.wait_step(5)
        ApiClient(api.url, token.read_text()).post("/events", damages("node-1"))
        (item,) = job.until(lambda: api.get("/remediations")["items"], 60.0, "the offer")
        assert (item["recommended_action"], item["state"]) == ("migrate_ranks", "held")
        (rule,) = [rule for rule in item["rules"] if rule["verdict"] != "allow"]
        assert (rule["name"], rule["verdict"]) == ("full_strength", "hold")
        assert "it can continue without these ranks, more slowly" in rule["reason"]

        api.post(f"/remediations/{item['id']}:accept", {"reason": "before it takes the job with it"})
        done = job.until(
            lambda: (found := api.get(f"/remediations/{item['id']}"))["state"] == "done" and found, 90.0, "the end"
        )
        (request,) = api.get("/jobs/job/requests")["items"]
        assert (request["kind"], request["node"], request["state"]) == ("degrade", "node-1", "completed")
        assert "ranks [1] stay away" in done["reason"]
        assert job.pids()[1] is None
        step = job.step()
        job.until(lambda: job.state()["last_step"] > step + 3, 60.0, "training without the node")
        assert not [event for event in job.events("process_exit") if not event["data"]["expected"]]


@pytest.mark.parametrize("stack", [AUTOMATIC], indirect=True)
def test_a_rank_whose_device_is_slow_moves(warm: Warm, stack: Stack, tmp_path: Path) -> None:
    """The same kernels on both ranks tell which device is slow; that is certain, and no person is asked."""
    api = stack.api
    for name in ("node-0", "node-1"):
        api.put(f"/nodes/{name}", REPORT)
    words = ["--dp" if word == "--pp" else "--pp" if word == "--dp" else word for word in ARGUMENTS]  # two replicas
    known = options(stack, tmp_path)
    with warm.job(directory=tmp_path / "job", arguments=words, nodes=2, per_node=1, options=known) as job:
        job.wait_step(5)
        job.until(lambda: api.get("/jobs/job")["topology"]["standbys"].get("node-0"), 60.0, "a warm standby")
        with throttled(job.pids()[1]):
            check = api.post("/jobs/job/requests", {"kind": "check", "rank": 1, "reason": "it may be slow"})
            ended = lambda: [one for one in api.get("/jobs/job/requests")["items"] if one["state"] == "completed"]  # noqa: E731
            (told,) = job.until(ended, 120.0, "the check")
        assert told["id"] == check["id"]
        assert "rank 1 is slow: " in told["detail"]
        (finished,) = job.until(lambda: job.events("migration_finished"), 60.0, "the move")
        assert finished["data"]["ok"], finished
        assert nodes(job) == ["node-0", "node-0"]
        (found,) = api.get("/findings", kind="device_slow")["items"]
        assert (found["entity"]["rank"], found["entity"]["node"]) == (1, "node-1")
        assert job.events("migration_started")[0]["data"]["finding"] == found["id"]
