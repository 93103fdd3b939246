"""A job that torchrun starts beside standalone agents: the service knows it, and says why no rank can move."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.lib_job import free_port
from mainstay.recovery.sdk.job_reporter import OBSTACLE
from mainstay.service.demo.client import ApiClient
from mainstay.service.demo.stack import Stack
from tests.fork_server.processes import Warm
from tests.recovery.adapters.torchrun import BY_NODE, agents, protected, started
from tests.scenarios.test_migration_request import damages

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("control")]

SLOWLY = """
import time, common
train_step = common.train_step
common.train_step = lambda *given: (time.sleep(0.1), train_step(*given))
"""


def until(found: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + 90.0
    while not (value := found()):
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.1)
    return value


def test_the_service_knows_the_job_and_why_it_cannot_move(
    warm: Warm, tmp_path: Path, service_stack: Callable[..., Stack]
) -> None:
    quick = {"MAINSTAY_INCIDENTS__DETECTION_INTERVAL_SECONDS": "0.2", "MAINSTAY_REMEDIATION__INTERVAL_SECONDS": "0.2"}
    stack = service_stack(tmp_path / "stack", free_port(), quick)
    try:
        stack.start_service("serve")
        api = stack.api
        script = tmp_path / "by_node.py"
        script.write_text(SLOWLY + BY_NODE)
        words = (str(protected("ddp", tmp_path / "scripts")), "--save", str(tmp_path / "out"), "--steps", "100000")
        with agents(tmp_path / "shm", "a", "b") as kept:
            token = tmp_path / "token"
            token.write_text(api.post("/auth/tokens", {"name": "job", "kind": "job", "job": kept.job})["token"])
            token.chmod(0o600)
            known = {"MAINSTAY_SERVICE": api.url, "MAINSTAY_SERVICE_TOKEN_FILE": str(token)}
            with started(script, *words, warm=warm, env=kept.environment("ignored") | known):
                (job,) = until(lambda: api.get("/jobs")["items"], "a report")
                assert (job["id"], job["state"]) == (kept.job, "running")
                assert [(rank["rank"], rank["node"]) for rank in job["topology"]["ranks"]] == [(0, "a"), (1, "b")]
                assert set(job["request_obstacles"].values()) == {OBSTACLE}

                api.post(f"/jobs/{kept.job}/requests", {"kind": "migrate", "node": "b", "reason": "it runs hot"})
                answered = lambda: api.get(f"/jobs/{kept.job}/requests")["items"][0]  # noqa: E731
                until(lambda: answered()["state"] == "rejected", "an answer")
                assert answered()["detail"] == OBSTACLE

                told = damages("b")
                for item in told["items"]:
                    item["job"] = kept.job
                ApiClient(api.url, token.read_text()).post("/events", told)
                (item,) = until(lambda: api.get("/remediations")["items"], "a proposal")
                assert (item["recommended_action"], item["node"], item["state"]) == ("migrate_ranks", "b", "held")
                (rule,) = [rule for rule in item["rules"] if rule["verdict"] == "deny" or "hold" in rule["verdict"]]
                assert OBSTACLE in rule["reason"], rule
                before = api.get(f"/jobs/{kept.job}")["last_step"]
                until(lambda: api.get(f"/jobs/{kept.job}")["last_step"] > before, "training that continues")
    finally:
        stack.close()
