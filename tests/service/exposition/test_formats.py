"""Both formats of ``/metrics`` hold the same series; a client gets the one that it prefers."""

from __future__ import annotations

import shutil
import subprocess
import time
from typing import Any

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from docs.generate.service_pages import metric_references
from mainstay.probes.ids import uuid7
from mainstay.service import health
from mainstay.service.common.histogram import BOUNDS, Histogram
from tests.service.exposition.fleet import Fleet

PROMETHEUS = (  # what version 3 sends
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1"
    ";q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture(scope="module")
def running(lasting_service: Any, any_report: dict[str, Any]) -> Any:
    """A service that has one of everything, and has answered one of everything."""
    Fleet(lasting_service, any_report).add_one_of_everything()
    event = {"id": uuid7(), "time": time.time(), "kind": "xid", "node": "n1", "device": "gpu0", "data": {"code": 79}}
    assert lasting_service.client().post("/v1/events", json={"items": [event]}).status_code == 200
    return lasting_service


def scrape(service: Any, accept: str) -> tuple[str, str]:
    """Content type and page."""
    answer = service.client("").get("/metrics", headers={"Accept": accept})
    assert answer.status_code == 200
    assert "Accept," in answer.headers["vary"]
    return answer.headers["content-type"], answer.text


def series_of(families: Any) -> Series:
    found: Series = {}
    for family in families:
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"{key} stands twice"
            found[key] = sample.value
    return found


def of_text(page: str) -> Series:
    return series_of(text_string_to_metric_families(page))


def value(page: Series, name: str, **labels: str) -> float:
    return page.get((name, tuple(sorted(labels.items()))), 0.0)


def both(service: Any) -> tuple[Series, Series] | None:
    """The series of both formats; None where one came between the two scrapes."""
    kind, page = scrape(service, PROMETHEUS)
    plain_kind, plain = scrape(service, "text/plain")
    assert kind == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert page.endswith("\n# EOF\n")
    assert page.count("# EOF") == 1
    assert plain_kind == "text/plain; version=0.0.4; charset=utf-8"
    assert "# EOF" not in plain
    assert "# UNIT" not in plain
    told = series_of(openmetrics.text_string_to_metric_families(page)), of_text(plain)
    return told if set(told[0]) == set(told[1]) else None


def test_both_formats_hold_the_same_series(running: Any, eventually: Any) -> None:
    one, other = eventually(lambda: both(running))
    steady = [key for key in one if key[0].startswith(("mainstay_gpu_", "mainstay_node_state", "mainstay_build"))]
    assert len(steady) > 50
    assert [one[key] for key in steady] == [other[key] for key in steady]


def test_the_reference_lists_every_metric(running: Any) -> None:
    documented = {metric.name for metric in metric_references()}
    families = openmetrics.text_string_to_metric_families(scrape(running, PROMETHEUS)[1])
    endings = {"counter": "_total", "info": "_info"}
    assert {f"{family.name}{endings.get(family.type, '')}" for family in families} - documented == set()


def test_promtool_reads_the_text(running: Any) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool on this machine: the parsers of the client library read both formats")
    page = scrape(running, "")[1]
    done = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, text=True, check=False)
    assert done.returncode in {0, 3}, done.stderr  # 3: it would rather have other names


def test_openmetrics_names_units_and_counters(running: Any) -> None:
    families = {f.name: f for f in openmetrics.text_string_to_metric_families(scrape(running, PROMETHEUS)[1])}
    for name, unit, kind in (
        ("mainstay_gpu_energy_joules", "joules", "counter"),
        ("mainstay_gpu_power_watts", "watts", "gauge"),
        ("mainstay_host_memory_used_ratio", "ratio", "gauge"),
        ("mainstay_ring_bytes", "bytes", "gauge"),
        ("mainstay_frames_stored", "", "counter"),
        ("mainstay_commit_duration_seconds", "seconds", "histogram"),
    ):
        assert (families[name].unit, families[name].type) == (unit, kind)
        assert families[name].documentation
    assert [s.name for s in families["mainstay_gpu_energy_joules"].samples] == ["mainstay_gpu_energy_joules_total"]


@pytest.mark.parametrize(("accept", "wanted"), [
    ("", False), ("*/*", False), ("text/plain", False), (PROMETHEUS, True),
    ("application/openmetrics-text", True), ("application/openmetrics-text; version=1.0.0", True),
    ("application/openmetrics-text; version=0.0.1", False), ("application/openmetrics-text;q=0", False),
    ("application/openmetrics-text;q=0.3, text/plain;q=0.5", False), ("application/openmetrics-text;q=x", False),
    ("text/*;q=0.5, application/openmetrics-text;q=0.5", True), (";;,=,q=1;version", False),
])  # fmt: skip
def test_the_client_chooses(accept: str, *, wanted: bool) -> None:
    assert health.prefers_openmetrics(accept) is wanted


def test_a_bucket_holds_its_upper_bound() -> None:
    histogram = Histogram()
    for seconds in (0.0, BOUNDS[0], BOUNDS[0] * 1.01, BOUNDS[-1], 1e9):
        histogram.observe(seconds)
    buckets, total = histogram.read()
    counts = dict(buckets)
    assert (counts["0.001"], counts["0.0025"], counts["10.0"], counts["30.0"], counts["+Inf"]) == (2, 3, 3, 4, 5)
    assert total == pytest.approx(1e9 + 30, abs=0.01)


def test_what_takes_time_is_in_a_histogram(running: Any, eventually: Any) -> None:
    names = {
        "mainstay_frame_acknowledgement_seconds_count": {},
        "mainstay_commit_duration_seconds_count": {},
        "mainstay_event_to_finding_seconds_count": {},
        "mainstay_loop_turn_duration_seconds_count": {"loop": "detection"},
    }
    page = eventually(
        lambda: (
            (found := of_text(scrape(running, "")[1]))
            and all(value(found, name, **labels) for name, labels in names.items())
            and found
        )
    )
    assert value(page, "mainstay_event_to_finding_seconds_count") == 1
    assert 0 < value(page, "mainstay_event_to_finding_seconds_sum") < 60
    assert value(page, "mainstay_commit_duration_seconds_count") == value(page, "mainstay_commits_total")
    assert value(page, "mainstay_commit_duration_seconds_sum") == value(page, "mainstay_commit_seconds_total")
    assert value(page, "mainstay_frame_acknowledgement_seconds_sum") > 0


@pytest.mark.parametrize(("request_line", "route", "status"), [
    ("GET /v1/nodes/n1", "/v1/nodes/{name}", "2xx"), ("GET /v1/nodes/none", "/v1/nodes/{name}", "4xx"),
    ("GET /healthz", "/healthz", "2xx"), ("DELETE /healthz", "/healthz", "4xx"),
    ("GET /some/view", "other", "2xx"), ("GET /v1/nothing", "other", "4xx"),
    ("DELETE /v1/telemetry/frames", "/v1/telemetry/frames", "4xx"),
])  # fmt: skip
def test_requests_are_counted_by_template_and_class(
    running: Any, eventually: Any, request_line: str, route: str, status: str
) -> None:
    name, labels = "mainstay_http_request_duration_seconds_count", {"route": route, "status": status}
    before = value(of_text(scrape(running, "")[1]), name, **labels)
    running.client().request(*request_line.split())
    eventually(lambda: value(of_text(scrape(running, "")[1]), name, **labels) == before + 1)
