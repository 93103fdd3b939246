"""The image is built from packages whose bytes are pinned; the lock file says the same as the other files."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = (ROOT / "requirements.lock").read_text()
ENTRY = re.compile(
    r"^([a-z0-9][a-z0-9._-]*)==([^\s;]+)[^\n\\]*((?:\\\n\s+--hash=sha256:[0-9a-f]{64}[^\S\n]*)+)$", re.MULTILINE
)


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def locked() -> dict[str, str]:
    return {canonical(match[1]): match[2] for match in ENTRY.finditer(LOCK)}


def test_every_line_belongs_to_a_package_with_digests() -> None:
    rest = [line for line in ENTRY.sub("", LOCK).splitlines() if line.strip() and not line.startswith("#")]
    assert rest == []
    assert len(locked()) > 50


def test_the_versions_are_those_that_the_tests_run_with() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {canonical(name): version for name, version in (line.split("==") for line in lines if "==" in line)}
    assert {name: pins.get(name) for name in locked()} == locked()


def test_every_requirement_of_the_control_plane_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras, wanted, seen = ["service"], set(project["dependencies"]), set()
    while extras:
        extra = extras.pop()
        for requirement in project["optional-dependencies"][extra]:
            inner = re.fullmatch(r"mainstay\[(.*)\]", requirement)
            if inner is None:
                wanted.add(requirement)
            else:
                extras += [name for name in inner[1].split(",") if name not in seen]
        seen.add(extra)
    names = {canonical(re.match(r"[A-Za-z0-9._-]+", requirement)[0]) for requirement in wanted}  # type: ignore[index]
    assert names <= locked().keys()


def test_the_image_installs_what_is_locked_and_nothing_else() -> None:
    installs = re.findall(r"pip install[^&\n]*", (ROOT / "Dockerfile").read_text())
    assert installs == [
        "pip install --require-hashes -r /build/requirements.lock ",
        "pip install --no-deps --no-index /build/dist/mainstay-*.whl",
    ]
