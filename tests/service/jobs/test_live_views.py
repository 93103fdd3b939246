"""A running job from inside, over real HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest

from mainstay.detectors.base import DetectorState, DetectorStatus
from mainstay.detectors.hang.detector import JobActivity
from mainstay.probes.frame import Frame, encode
from mainstay.service.incidents.detector_status import JobAccount
from mainstay.service.jobs import live_views
from mainstay.service.telemetry.pairs import PairStore
from mainstay.service.telemetry.progress import ProgressStore
from mainstay.service.telemetry.steps import StepStore
from tests.service.run_frames import checked, pair_frame, progress_frame, step_frame

T = 1_800_000_000


@pytest.fixture
def client(service: Any, report_job: Callable[..., Any]) -> httpx.Client:
    made: httpx.Client = service.client()
    assert made.put("/v1/jobs/demo-1", json=report_job()).status_code == 200
    return made


def send(client: httpx.Client, frame: Frame) -> None:
    answer = client.post("/v1/telemetry/frames", content=encode(frame))
    assert answer.status_code == 204, answer.text


def slug(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, str(answer.json()["type"]).removeprefix("urn:mainstay:problem:")


def test_signals_by_rank_and_step(client: httpx.Client) -> None:
    seconds = {"forward_seconds": [[0.1], [0.2], [0.3], [0.4]], "loss": [[np.nan]] * 3 + [[2.5]]}
    for step in range(1, 11):
        send(client, step_frame(step, seconds, end=time.time() - 20 + step))
    url = "/v1/jobs/demo-1/signals"
    got = client.get(url, params={"names": "forward_seconds,loss", "start": 4, "stop": 7})
    body = got.json()
    assert set(body) == {"steps", "ranks", "signals"}
    assert (body["steps"], body["ranks"]) == ([4, 5, 6], [0, 1, 2, 3])
    assert body["signals"] == {
        "forward_seconds": [[0.1] * 3, [0.2] * 3, [0.3] * 3, [0.4] * 3],
        "loss": [[None] * 3] * 3 + [[2.5] * 3],
    }
    again = client.get(
        url,
        params={"names": "forward_seconds,loss", "start": 4, "stop": 7},
        headers={"If-None-Match": got.headers["etag"]},
    )
    assert (again.status_code, again.content) == (304, b"")
    thin = client.get(url, params={"names": "loss", "points": 3, "ranks": "3,0"}).json()
    assert thin["ranks"] == [0, 3]
    assert len(thin["steps"]) <= 3
    for names, words in (("loss,nonsense", "'nonsense'"), (",", "no signal"), ("gpu_power_watts", "'gpu_power_watts'")):
        refused = client.get(url, params={"names": names})
        assert slug(refused) == (422, "unknown-signal")
        assert words in refused.json()["detail"]
    assert slug(client.get(url, params={"names": "loss", "ranks": "1,x"})) == (422, "invalid-ranks")
    assert slug(client.get("/v1/jobs/absent/signals", params={"names": "loss"})) == (404, "unknown-job")


def test_a_large_job_is_answered_with_fewer_steps() -> None:
    store = StepStore(2048)
    for step in range(100):
        store.write(checked(step_frame(step, {"loss": 1.0}, end=float(T + step), ranks=4000)))
    whole = live_views.signals(store, "demo-1", names="loss,tokens", ranks=None, start=0, stop=None, points=600)
    assert len(whole.ranks) == 4000
    assert 2 * len(whole.ranks) * len(whole.steps) <= live_views.MAX_CELLS
    some = live_views.signals(store, "demo-1", names="loss", ranks=[3, 3999], start=0, stop=None, points=600)
    assert (some.ranks, len(some.steps)) == ([3, 3999], 100)


def test_where_every_rank_is(client: httpx.Client) -> None:
    url, now = "/v1/jobs/demo-1/progress", float(int(time.time()))
    nothing = client.get(url).json()
    assert (nothing["state"], nothing["ranks"], nothing["quiet_seconds"]) == ("unknown", [], None)
    for second, count in ((3, 10), (2, 11)):
        values = {"progress_step": 7, "progress_phase": 0.0, "in_collective_seconds": [[0.0], [0.0], [0.0], [2.5]],
                  "dp_completed": count, "dp_enqueued": count + 1, "pp_completed": 2**40}  # fmt: skip
        send(client, progress_frame(now - second, values))
    send(client, progress_frame(now - 1, {"progress_phase": 0.0, "dp_completed": 11}, ranks=[0]))
    body = client.get(url).json()
    assert set(body) == {
        "time", "state", "quiet_seconds", "limit_seconds", "phase", "kinds", "ranks", "omitted",
    }  # fmt: skip
    assert body["state"] in {"moving", "waiting"}
    assert 1.0 <= body["quiet_seconds"] < 60.0
    assert (body["phase"], body["kinds"], body["omitted"]) == (0, ["dp", "pp"], 0)
    last = body["ranks"][3]
    assert {**last, "age_seconds": None} == {
        "rank": 3, "node": "n1", "step": 7, "phase": 0, "in_collective_seconds": 2.5, "age_seconds": None,
        "enqueued": {"dp": 12}, "completed": {"dp": 11, "pp": 2**40},
    }  # fmt: skip
    assert last["age_seconds"] >= 2.0
    assert body["ranks"][0]["age_seconds"] < last["age_seconds"]
    short = client.get(url, params={"limit": 1}).json()
    assert [rank["rank"] for rank in short["ranks"]] == [0], "it told no step last: it may lag most"
    assert short["omitted"] == 3
    assert client.get(url, params={"limit": 0}).status_code == 422
    assert slug(client.get("/v1/jobs/absent/progress")) == (404, "unknown-job")


def latest(**values: Any) -> Any:
    store = ProgressStore(60)
    store.write(checked(progress_frame(T, values)))
    return store.latest("demo-1")


ABSENT = JobAccount()


def state(told: JobAccount = ABSENT, *, now: float = T + 1.0, hung: bool = False, **values: Any) -> str:
    return live_views.progress(latest(**values), told, {}, hung=hung, now=now, limit=10).state


def test_the_state_is_the_detectors_word_where_it_has_one() -> None:
    assert state(JobAccount(activity=JobActivity.WAITING), progress_phase=0.0) == "waiting"
    assert state(JobAccount(activity=JobActivity.MASKED), progress_phase=0.0) == "masked"
    assert state(JobAccount(activity=JobActivity.HUNG), progress_phase=0.0) == "hung"
    assert state(JobAccount(activity=JobActivity.MOVING), progress_phase=0.0, now=T + 60.0) == "unknown", "of long ago"
    assert state(JobAccount(activity=JobActivity.MOVING), progress_phase=0.0, hung=True) == "hung"
    assert state(JobAccount(activity=JobActivity.MOVING), world_completed=-(2**63)) == "unknown", (
        "told of, but not heard"
    )
    assert state(progress_phase=4.0) == "masked"
    assert state(progress_phase=0.0) == "unknown", "one reading shows no movement"
    assert live_views.progress(None, JobAccount(), {}, hung=False, now=T, limit=1).state == "unknown"


def test_quiet_and_limit_are_the_detectors() -> None:
    account = DetectorStatus(state=DetectorState.ACTIVE, numbers={"quiet_seconds": 4.0, "limit_seconds": 9.5})
    body = live_views.progress(
        latest(progress_phase=0.0), JobAccount([("hang", account)]), {}, hung=False, now=T + 1.0, limit=1
    )
    assert (body.quiet_seconds, body.limit_seconds) == (4.0, 9.5)


def test_transfers_as_a_matrix(client: httpx.Client) -> None:
    url = "/v1/jobs/demo-1/transfers"
    assert client.get(url).json() == {"first": None, "last": None, "ranks": [], "seconds": [], "bytes": []}
    now = time.time()
    for step in range(1, 31):
        slow = 0.9 if step > 25 else 0.1
        send(client, pair_frame(step, [[slow], [0.2]], pairs=("0>1", "3>0"), end=now - 40 + step))
    got = client.get(url, params={"steps": 5})
    assert got.json() == {
        "first": 26, "last": 30, "ranks": [0, 1, 3],
        "seconds": [[None, 0.9, None], [None, None, None], [0.2, None, None]],
        "bytes": [[None, 1e6, None], [None, None, None], [1e6, None, None]],
    }  # fmt: skip
    assert client.get(url).json()["first"] == 11, "twenty steps by default"
    assert client.get(url).json()["seconds"][0][1] == 0.1, "a median"
    tag = {"If-None-Match": got.headers["etag"]}
    assert client.get(url, params={"steps": 5}, headers=tag).status_code == 304
    assert client.get(url, params={"steps": 0}).status_code == 422
    assert slug(client.get("/v1/jobs/absent/transfers")) == (404, "unknown-job")


def test_of_many_ranks_those_of_the_slowest_transfers_are_answered() -> None:
    store = PairStore(8)
    pairs = [f"{rank}>{rank + 1}" for rank in range(1000)]
    seconds = np.full((1000, 1), 0.1)
    seconds[900] = 5.0
    store.write(checked(pair_frame(1, seconds, pairs=pairs, end=float(T))))
    matrix = live_views.pairs(store, "demo-1", steps=20)
    assert len(matrix.ranks) <= live_views.MAX_PAIR_RANKS
    assert {900, 901} <= set(matrix.ranks)
    assert matrix.seconds[matrix.ranks.index(900)][matrix.ranks.index(901)] == 5.0


def test_what_each_detector_says_of_itself(service: Any, client: httpx.Client) -> None:
    url = "/v1/jobs/demo-1/detectors"
    told = DetectorStatus(
        state=DetectorState.ABSTAINING, reason="too noisy", numbers={"noise": 0.25, "limit": float("inf")}
    )
    body = live_views.detector_status([("straggler", told)]).model_dump()
    expected = {
        "name": "straggler",
        "state": "abstaining",
        "reason": "too noisy",
        "numbers": {"noise": 0.25, "limit": None},
    }
    assert body == {"detectors": [expected]}
    deadline = time.monotonic() + 60
    while not (detectors := client.get(url).json()["detectors"]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert {"hang", "straggler"} <= {detector["name"] for detector in detectors}
    assert {detector["state"] for detector in detectors} <= {state.value for state in DetectorState}
    assert slug(client.get("/v1/jobs/absent/detectors")) == (404, "unknown-job")
    page = client.get("/metrics").text
    assert 'mainstay_job_detectors_abstaining{job="demo-1"} 0' in page


def test_metrics_say_since_when_a_job_is_quiet(client: httpx.Client) -> None:
    now = float(int(time.time()))
    for second in (12, 10):
        send(client, progress_frame(now - second, {"dp_completed": 100 - second}))
    (line,) = [
        x for x in client.get("/metrics").text.splitlines() if x.startswith("mainstay_job_last_progress_age_seconds{")
    ]
    name, value = line.rsplit(" ", 1)
    assert name == 'mainstay_job_last_progress_age_seconds{job="demo-1"}'
    assert 10.0 <= float(value) < 60.0


def test_findings_that_hold_and_incidents_by_cause(client: httpx.Client, service: Any) -> None:
    from mainstay.detectors.finding import Cause, Entity, Evidence, Finding, FindingKind
    from mainstay.probes.core_types import Severity
    from mainstay.service.incidents import finding_ingest
    from mainstay.service.incidents.service import Context

    way = Entity(job="demo-1", rank=3, peer=1)
    finding = Finding(
        kind=FindingKind.CONGESTION, entity=way, time=time.time(), severity=Severity.WARNING,
        detector="transfer_delays", confidence=0.9, evidence=Evidence(summary="A slow way."), cause=Cause.NETWORK,
    )  # fmt: skip
    with service.services.database.session() as session:
        context = Context(session, service.settings, time.time())
        finding_ingest.ingest_findings(context, [finding])
    (incident,) = client.get("/v1/incidents", params={"cause": "network"}).json()["items"]
    assert (incident["cause"], incident["job"]) == ("network", "demo-1")
    assert client.get("/v1/incidents", params={"cause": "storage"}).json()["items"] == []
    assert client.get("/v1/incidents", params={"cause": "moon"}).status_code == 422
    query = {"job": "demo-1", "kind": "congestion"}
    (held,) = client.get("/v1/findings", params=query | {"active": True}).json()["items"]
    assert held["entity"] == {"node": None, "device": None, "job": "demo-1", "rank": 3, "peer": 1}
    assert held["cause"] == "network"
    assert client.get("/v1/findings", params=query | {"active": False}).json()["items"] == []
    assert 'mainstay_job_findings_active{job="demo-1",kind="congestion"} 1' in client.get("/metrics").text
