"""A cohort before and after an update or a moment, over REST."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

Json = dict[str, Any]
OLD, NEW = "cpu; driver 550", "cpu; driver 570"
DEVICES = 12


@pytest.fixture
def put_runs(service: Any) -> Callable[..., None]:
    """Stored runs of one metric on many nodes: scale of each node, cohort, and when."""
    from mainstay.service.validation.models import ResultRow, ValidationRow

    def put(scales: dict[str, float], cohort: str, at: float, values: list[float] | None = None) -> None:
        with service.services.database.session() as session:
            for node, scale in scales.items():
                ident = f"{node}-{cohort[-3:]}-{at:.0f}"
                session.add(
                    ValidationRow(
                        id=ident, node=node, suite="quick", state="done", verdict="pass", reason="", created_at=at - 60,
                        deadline_at=at + 60, finished_at=at,
                    )
                )  # fmt: skip
                session.flush()
                session.add(
                    ResultRow(
                        id=ident, validation_id=ident, position=0, cohort=cohort, benchmark="gemm", metric="rate",
                        unit="FLOP/s", better="higher", verdict="pass", device="gpu0", reason="", value=scale,
                        values=[100 * scale * noise for noise in values or [0.999, 1.0, 1.001]],
                    )
                )  # fmt: skip

    return put


def fleet(scale: float = 1.0, **changed: float) -> dict[str, float]:
    return {f"n{i:02d}": scale * (1 + i / 100) for i in range(DEVICES)} | changed


def asked(admin: httpx.Client, status: int = 200, **query: Any) -> Json:
    answer = admin.get("/v1/cohort-comparisons", params=query)
    assert answer.status_code == status, answer.text
    found: Json = answer.json()
    return found


def test_an_update_that_slows_all_is_blamed_and_no_node(admin: httpx.Client, put_runs: Any) -> None:
    now = time.time()
    put_runs(fleet(), OLD, now - 7200)
    put_runs(fleet(0.95), NEW, now - 60)
    told = asked(admin, before=OLD, after=NEW)
    (metric,) = told["metrics"]
    assert (told["verdict"], told["nodes_before"], told["nodes_after"]) == ("fail", DEVICES, DEVICES)
    assert (metric["blame"], metric["paired"], metric["compared"]) == ("update", True, DEVICES)
    assert metric["worse"] == pytest.approx(1 / 0.95 - 1)
    assert metric["worse_low"] <= metric["worse"] <= metric["worse_high"]
    assert {one["assessment"] for one in metric["devices"]} == {"explained"}
    assert metric["before"] == sorted(metric["before"])
    assert len(metric["after"]) == DEVICES
    items = admin.get("/v1/cohort-comparisons/cohorts").json()["items"]
    assert [(one["cohort"], one["hardware"], one["nodes"]) for one in items] == [
        (NEW, "cpu", DEVICES),
        (OLD, "cpu", DEVICES),
    ]


def test_one_device_that_stands_out_is_blamed_and_not_the_moment(admin: httpx.Client, put_runs: Any) -> None:
    now = time.time()
    put_runs(fleet(), OLD, now - 7200)
    put_runs(fleet(n03=0.8), OLD, now - 60)
    told = asked(admin, before="cpu", after="cpu", at=now - 3600)
    (metric,) = told["metrics"]
    assert (metric["verdict"], metric["blame"]) == ("fail", "devices")
    first = metric["devices"][0]
    assert (first["node"], first["device"], first["assessment"]) == ("n03", "gpu0", "slower")
    assert first["worse"] == pytest.approx(1.03 / 0.8 - 1)


def test_where_five_percent_could_hide_nothing_is_claimed(admin: httpx.Client, put_runs: Any) -> None:
    now = time.time()
    few = {f"n{i}": 1.0 for i in range(3)}
    put_runs(few, OLD, now - 7200)
    put_runs(few, NEW, now - 60)
    (metric,) = asked(admin, before=OLD, after=NEW)["metrics"]
    assert (metric["verdict"], metric["blame"], metric["worse"]) == ("unknown", None, 0.0)
    assert "5 of each, or in both, are needed" in metric["reason"]
    put_runs({f"m{i}": 1.0 for i in range(5)}, OLD, now - 7100)
    put_runs({f"m{i}": 1.0 for i in range(5)}, NEW, now - 50)
    (metric,) = asked(admin, before=OLD, after=NEW)["metrics"]
    assert (metric["verdict"], metric["worse_high"]) == ("unknown", None), "eight devices: no interval at 0.5 %"


def test_what_cannot_be_compared_is_named(admin: httpx.Client, put_runs: Any) -> None:
    put_runs(fleet(), OLD, time.time() - 60)
    assert asked(admin, 422, before="cpu", after=OLD)["type"].endswith(":same-selection")
    missing = asked(admin, 404, before=OLD, after=NEW)
    assert "'cpu; driver 570' was not measured after" in missing["detail"]
    absent = asked(admin, 404, before=OLD, after=OLD, at=time.time() - 30, node="absent")
    assert "node absent of cohort" in absent["detail"]
