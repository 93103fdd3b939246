"""The compose file is compared with the commands that it starts; the tests have no container engine."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from mainstay import cli
from mainstay.probes.command_options import NodeOptions, RelayOptions, options_of

ROOT = Path(__file__).resolve().parents[1]


class Compose(yaml.SafeLoader):
    """YAML that refuses a key given twice, as Compose does."""


def _mapping(loader: Compose, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key) for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
    assert len(keys) == len(set(keys)), f"a key stands twice near line {node.start_mark.line + 1}"
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


Compose.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return dict(yaml.load((ROOT / "docker-compose.yml").read_text(), Compose))


def test_the_scaled_shape_is_complete(compose: dict[str, Any]) -> None:
    services = {"postgres", "redis", "service", "service-2", "gateway", "gateway-2", "worker", "beat", "relay", "node"}
    assert set(compose["services"]) == services


def test_every_base_image_is_pinned_by_digest(compose: dict[str, Any]) -> None:
    images = [service["image"] for service in compose["services"].values() if "build" not in service]
    images += re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert len(images) == 5
    assert [i for i in images if not re.fullmatch(r"[a-z]+:[\d.]+-[a-z-]+@sha256:[0-9a-f]{64}", i)] == []


def test_dependencies_exist(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for name, service in services.items():
        for needed, how in service.get("depends_on", {}).items():
            assert needed in services
            if how["condition"] == "service_healthy":
                assert "healthcheck" in services[needed], f"{name} waits for the health of {needed}"


def test_nothing_is_published_beyond_loopback(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_named_volumes_are_declared(compose: dict[str, Any]) -> None:
    used = {
        v.split(":")[0] for s in compose["services"].values() for v in s.get("volumes", []) if not v.startswith("/")
    }
    assert used == set(compose["volumes"])


@pytest.mark.parametrize("name", ["service", "gateway", "worker", "beat", "relay", "node"])
def test_commands_use_options_that_exist(compose: dict[str, Any], name: str) -> None:
    command, *options = compose["services"][name]["command"]
    assert command in cli.COMMANDS
    asked = [sys.executable, "-m", "mainstay", command, "--help"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    for option in (o for o in options if o.startswith("--")):
        assert option in done.stdout, f"mainstay {command} has no {option}"


def test_settings_named_in_the_environment_exist(compose: dict[str, Any]) -> None:
    from mainstay.service.settings import Settings

    for name in ("service", "worker", "beat"):
        for variable in compose["services"][name]["environment"]:
            first, *rest = variable.removeprefix("MAINSTAY_").lower().split("__")
            field = Settings.model_fields[first]
            for part in rest:
                field = field.annotation.model_fields[part]


@pytest.mark.parametrize("name", ["relay", "node"])
def test_variables_of_nodes_and_relays_exist(compose: dict[str, Any], name: str) -> None:
    assert set(compose["services"][name]["environment"]) <= variables(RelayOptions if name == "relay" else NodeOptions)


def test_the_relay_reaches_both_gateways_under_a_name_that_they_allow(compose: dict[str, Any]) -> None:
    services = compose["services"]
    command = services["relay"]["command"]
    host = urlsplit(command[command.index("--service") + 1]).hostname
    for name in ("gateway", "gateway-2"):
        assert services[name]["networks"]["default"]["aliases"] == [host]
        assert host in services[name]["environment"]["MAINSTAY_ALLOWED_HOSTS"].split(",")


def variables(options: type) -> set[str]:
    """The environment variables that set the options of a command."""
    return {option.variable for _, option in options_of(options).values()}


def test_the_image_is_built_from_what_is_here() -> None:
    stages, copied = 0, []
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        if line.startswith("FROM"):
            stages += 1
            assert re.search(r":\d", line), "pin the base image"
        if line.startswith("COPY") and "--from=" not in line:
            copied += line.split()[1:-1]
    assert stages == 3
    missing = [path for path in copied if not (ROOT / path).exists()]
    assert not missing
    assert "." in copied, "the wheel is built from the whole repository: the package contains links to its layers"
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert not {"mainstay", "probes", "detectors", "recovery", "service", "migrations", "docs"} & set(ignored)
