"""What holds for the whole app: problems everywhere, careful headers, health, metrics, the dashboard's files."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest
from fastapi.routing import APIRoute
from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import Request
from starlette.responses import FileResponse

from mainstay.service.app import create_app
from mainstay.service.common.web import Dashboard, content_policy
from mainstay.service.settings import Settings


@pytest.fixture
def client(lasting_service) -> httpx.Client:
    return lasting_service.client()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404), ("GET", "/v1", 404), ("PATCH", "/v1/nodes", 405),
        ("GET", "/v1/telemetry/frames", 405), ("GET", "/v1/nodes:enroll", 405), ("PUT", "/healthz", 405),
        ("POST", "/v1/auth/tokens", 422), ("GET", "/v1/nodes?limit=0", 422), ("GET", "/v1/nodes?limit=501", 422),
        ("GET", "/v1/nodes?cursor=%ff", 422), ("GET", "/v1/nodes?q=%00", 422), ("DELETE", "/v1/auth/tokens/x", 422),
    ],
)  # fmt: skip
def test_every_error_is_a_problem(client: httpx.Client, method: str, path: str, status: int) -> None:
    answer = client.request(method, path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert set(problem) == {"type", "title", "status", "detail", "instance", "errors"}
    assert problem["status"] == status
    assert problem["instance"] == path.partition("?")[0]
    assert status != 405 or answer.headers["allow"]


def test_a_fault_inside_says_nothing_about_the_inside(start, monkeypatch, caplog) -> None:
    service = start()

    def fail(_fleet: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(service.services.layout, "get", fail)
    answer = service.client().get("/v1/fleet/heatmap-layout")
    assert (answer.status_code, answer.json()["type"]) == (500, "urn:mainstay:problem:internal")
    assert "secret" not in answer.text
    deadline = time.monotonic() + 60
    while "secret detail" not in caplog.text:  # the server logs after it has answered
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("announced", [True, False])
def test_large_bodies_are_refused_before_they_are_read(client: httpx.Client, *, announced: bool) -> None:
    body = b"x" * (9 * 1024 * 1024)
    answer = client.post("/v1/auth/tokens", content=body if announced else iter([body[:5_000_000], body[5_000_000:]]))
    assert answer.status_code == 413
    assert answer.headers["content-type"] == "application/problem+json"


def test_careful_headers_on_every_answer(client: httpx.Client) -> None:
    for path in ("/v1/nodes", "/v1/nothing", "/", "/healthz"):
        headers = client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert client.get("/v1/nodes").headers["cache-control"] == "no-store"
    assert "server" not in client.get("/v1/nodes").headers or "uvicorn" in client.get("/v1/nodes").headers["server"]


def test_health_and_readiness(client: httpx.Client) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}
    ready = client.get("/readyz")
    assert ready.status_code == 200
    assert ready.json()["checks"] == dict.fromkeys(
        ("database", "disk", "ingest", "loops", "detection", "shedding"), "ok"
    )


def test_a_dead_writer_is_not_ready(start) -> None:
    service = start()
    service.services.ingest.writer.stop()
    ready = service.client().get("/readyz")
    assert ready.status_code == 503
    assert ready.json()["checks"]["ingest"] != "ok"


def test_metrics_are_prometheus_text_with_our_names(client: httpx.Client) -> None:
    answer = client.get("/metrics")
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    assert all(name.startswith(("mainstay_", "process_", "python_")) for name in families)
    assert {"mainstay_frames_stored", "mainstay_nodes", "mainstay_loop_iterations", "mainstay_ring_bytes"} <= set(
        families
    )
    loops = {
        sample.labels["loop"] for sample in families["mainstay_loop_iterations"].samples if "loop" in sample.labels
    }
    assert {"fleet-voices", "stream-tell", "telemetry-retention"} <= loops


def test_the_openapi_document_declares_problems(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    assert "HTTPValidationError" not in document["components"]["schemas"]
    operations = [op for path in document["paths"].values() for op in path.values()]
    refusals = document["components"]["responses"]
    assert all(set(answer["content"]) == {"application/problem+json"} for answer in refusals.values())
    for operation in operations:
        answers = operation["responses"]
        assert answers["default"] == {"$ref": "#/components/responses/Problem"}
        assert all("$ref" in answer for status, answer in answers.items() if status >= "4")
    ids = [op["operationId"] for op in operations]
    assert len(set(ids)) == len(ids)
    assert "/v1/telemetry/frames" in document["paths"]
    required = document["components"]["schemas"]["NodeRead"]
    assert set(required["required"]) == set(required["properties"]), "output schemas have no defaults"


def test_the_document_needs_no_running_service(tmp_path: Path) -> None:
    app = create_app(Settings(data_dir=tmp_path / "never-made"))
    assert app.openapi()["info"]["title"] == "Mainstay"
    assert not (tmp_path / "never-made").exists()


def test_routes_are_built_once_a_process_and_lie_under_v1(tmp_path: Path) -> None:
    """FastAPI takes half a second of a core to build them."""
    first, second = (create_app(Settings(data_dir=tmp_path)).routes for _ in range(2))
    built = [route for route in first if isinstance(route, APIRoute)]
    assert len(built) > 50
    assert all(any(route is other for other in second) for route in built)
    assert all(route.path.startswith("/v1/") for route in built)


# the dashboard's files


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    build = tmp_path / "dist"
    (build / "assets").mkdir(parents=True)
    (build / "index.html").write_text("<html><script>go()</script></html>")
    (build / "assets" / "app-abc.js").write_text("1")
    (tmp_path / "secret.txt").write_text("secret")
    return build


async def request_path(dashboard: Dashboard, path: str) -> tuple[int, dict[str, str]]:
    scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b"", "server": ("h", 80)}
    response = await dashboard(Request(scope))
    return response.status_code, dict(response.headers)


def serve_path(dashboard: Dashboard, path: str) -> tuple[int, dict[str, str]]:
    import asyncio

    return asyncio.run(request_path(dashboard, path))


def test_every_view_is_the_index_and_assets_are_kept(dist: Path) -> None:
    dashboard = Dashboard(dist)
    for path in ("/", "/nodes/n1", "/index.html", "/../secret.txt", "/nodes/v1.2"):
        status, headers = serve_path(dashboard, path)
        assert (status, headers["content-type"].split(";")[0]) == (200, "text/html"), path
        assert headers["cache-control"] == "no-cache"
        assert "script-src 'self' 'sha256-" in headers["content-security-policy"]
    status, headers = serve_path(dashboard, "/assets/app-abc.js")
    assert status == 200
    assert "immutable" in headers["cache-control"]


@pytest.mark.parametrize(
    ("accept", "file", "encoding"),
    [(b"gzip, br", "app-abc.js.br", "br"), (b"gzip, br;q=0", "app-abc.js", None), (b"", "app-abc.js", None)],
)
def test_an_asset_is_sent_as_the_build_compressed_it(
    dist: Path, accept: bytes, file: str, encoding: str | None
) -> None:
    import asyncio

    (dist / "assets" / "app-abc.js.br").write_text("packed")
    scope = {"type": "http", "method": "GET", "path": "/assets/app-abc.js", "headers": [(b"accept-encoding", accept)]}
    response = asyncio.run(Dashboard(dist)(Request(scope | {"query_string": b"", "server": ("h", 80)})))
    assert isinstance(response, FileResponse)
    assert Path(response.path).name == file
    assert response.headers.get("content-encoding") == encoding
    assert response.media_type in {"text/javascript", "application/javascript"}
    assert response.headers["vary"] == "Accept-Encoding"


def test_a_missing_asset_is_missing(dist: Path) -> None:
    from starlette.exceptions import HTTPException

    with pytest.raises(HTTPException):
        serve_path(Dashboard(dist), "/assets/gone.js")


def test_without_a_build_the_page_says_how_to_make_one(tmp_path: Path) -> None:
    status, headers = serve_path(Dashboard(tmp_path / "none"), "/")
    assert status == 200
    assert headers["cache-control"] == "no-store"


def test_inline_scripts_are_allowed_by_digest_only() -> None:
    policy = content_policy("<script>a</script><script src='x'></script><script>b</script>")
    assert policy.count("'sha256-") == 2
    assert "unsafe-inline" not in policy.split("style-src")[0]
