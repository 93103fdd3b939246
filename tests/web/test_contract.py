"""The dashboard's types come from the service's own OpenAPI document; neither may drift from the other unseen."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

WEB = Path(__file__).resolve().parents[2] / "web"


@pytest.mark.slow
def test_the_committed_document_is_the_services_own() -> None:
    checked = subprocess.run(
        [sys.executable, "export_openapi.py", "--check"],
        cwd=WEB,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr


@pytest.mark.slow
def test_the_committed_types_are_the_documents() -> None:
    generator = WEB / "node_modules" / ".bin" / "openapi-typescript"
    if not generator.exists():
        pytest.skip("web/node_modules is missing: `make web` installs it, and `make test` always has it")
    command = [str(generator), "openapi.json", "-o", "src/api/schema.ts", "--check"]
    checked = subprocess.run(command, cwd=WEB, capture_output=True, text=True, timeout=100, check=False)
    assert checked.returncode == 0, (
        f"web/src/api/schema.ts has drifted from web/openapi.json: run `npm run generate` in web/\n{checked.stderr}"
    )


def test_reads_are_exact() -> None:
    """An output schema with an optional field would make every reader of the types guess."""
    schemas = json.loads((WEB / "openapi.json").read_text())["components"]["schemas"]
    loose = {
        name: sorted(set(schema["properties"]) - set(schema.get("required", [])))
        for name, schema in schemas.items()
        if name.endswith(("Read", "Detail", "Page")) and set(schema["properties"]) - set(schema.get("required", []))
    }
    assert not loose


def test_the_lock_file_names_no_registry() -> None:
    assert '"resolved"' not in (WEB / "package-lock.json").read_text()


def test_the_lock_file_covers_every_platform() -> None:
    """`npm ci` refuses a lock file that leaves out an optional package, even one for another platform."""
    packages = json.loads((WEB / "package-lock.json").read_text())["packages"]
    missing = {
        name
        for place, package in packages.items()
        for name in package.get("optionalDependencies", {})
        if f"node_modules/{name}" not in packages and f"{place}/node_modules/{name}" not in packages
    }
    assert missing == set()


def test_no_file_of_the_dashboard_is_too_long_to_read() -> None:
    paths = [
        p
        for folder in ("src", "mock")
        for p in (WEB / folder).rglob("*")
        if p.suffix in {".ts", ".tsx", ".mjs", ".css"}
    ]
    lengths = {str(p.relative_to(WEB)): len(p.read_text().splitlines()) for p in paths if p.name != "schema.ts"}
    assert lengths
    assert {path: n for path, n in lengths.items() if n > 250} == {}
