"""What each extra installs: packages, size and seconds, and whether its commands run with that set alone.

The bench builds the wheel and installs it with the requirements of one extra into an empty virtual environment. torch
is left out everywhere: the site chooses its build. Sizes are those of site-packages, byte code included.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from email.parser import Parser
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

from bench.report import Row, publish, target_file

_ROOT: Final = Path(__file__).resolve().parents[1]
_MB: Final = 1e6
_SDK: Final = (
    "from mainstay.recovery.memory import arena; import mainstay.recovery.agent.server, mainstay.recovery.node.launcher"
)
COMMANDS: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "train": (("-m", "mainstay", "run", "--help"), ("-m", "mainstay", "agent", "--help"), ("-c", _SDK)),
    "train,cli": (("-m", "mainstay", "checkpoint", "--help"), ("-m", "mainstay", "job", "migrate", "--help")),
    "node": (
        ("-m", "mainstay", "node", "--help"),
        ("-m", "mainstay", "doctor", "--json"),
        ("-c", "import mainstay.probes.daemon"),
    ),
    "relay": (("-m", "mainstay", "relay", "--help"), ("-c", "import mainstay.probes.relay")),
    "bench": (
        ("-m", "mainstay", "validate", "--help"),
        ("-c", "import mainstay.detectors.validation.validator, mainstay.detectors.superbench.rules"),
    ),
    "recordings": (("-m", "mainstay", "replay", "--help"), ("-c", "import mainstay.detectors.registry")),
    "service": (
        ("-m", "mainstay", "serve", "--help"),
        ("-c", "import mainstay.service.app, mainstay.service.celery_app"),
    ),
    "all": (("-m", "mainstay", "demo", "--help"), ("-m", "mainstay", "checkpoint", "--help")),
}
"""Per extra, what must run without a further package. ``doctor`` may exit with 1: it says what is missing."""
LIMITS: Final = {"train": (8, 25.0), "node": (None, 30.0)}


@dataclass(frozen=True, slots=True)
class Installed:
    """One extra in an environment of its own."""

    sizes: dict[str, float]
    """MB of each package; mainstay's own among them."""
    seconds: float
    failures: tuple[str, ...]


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this checkout."""
    _pip("wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(_ROOT))
    return next(folder.glob("mainstay-*.whl"))


def requirements_of(wheel: Path, extra: str) -> set[str]:
    """Return what ``extra``, or several with commas, needs in addition to torch; extras that it names are resolved."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        lines = Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist") or []
    requirements = [Requirement(line) for line in lines]
    return {found for one in extra.split(",") for found in _resolved(requirements, one)}


def _resolved(requirements: list[Requirement], extra: str) -> Iterator[str]:
    for one in requirements:
        if one.name == "torch" or (one.marker is not None and not one.marker.evaluate({"extra": extra})):
            continue
        if one.name == "mainstay":
            for inner in one.extras:
                yield from _resolved(requirements, inner)
        else:
            one.marker = None
            yield str(one)


def measure_extra(wheel: Path, extra: str, folder: Path) -> Installed:
    """Install ``extra`` into an empty environment in ``folder`` and run its commands."""
    environment = folder / extra
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    begun = time.perf_counter()
    _pip("--python", str(python), "install", "--quiet", *sorted(requirements_of(wheel, extra)))
    _pip("--python", str(python), "install", "--quiet", "--no-deps", str(wheel))
    seconds = time.perf_counter() - begun
    site = next((environment / "lib").glob("python*/site-packages"))
    sizes = {one.name.lower(): _size(one.files or ()) for one in distributions(path=[str(site)])}
    return Installed(sizes, seconds, tuple(_failures(python, extra, folder)))


def _size(files: object) -> float:
    paths = (Path(str(one.locate())) for one in files)  # type: ignore[attr-defined]
    return sum(path.stat().st_size for path in paths if path.exists()) / _MB


def _failures(python: Path, extra: str, folder: Path) -> Iterator[str]:
    for words in COMMANDS[extra]:
        done = subprocess.run([python, *words], cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode not in ({0, 1} if "doctor" in words else {0}):
            yield f"{' '.join(words[1:])}: {(done.stderr.strip().splitlines() or ['no output'])[-1]}"


def _pip(*words: str) -> None:
    quiet = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    subprocess.run([sys.executable, "-m", "pip", *words], check=True, env=quiet)


def rows(extra: str, found: Installed) -> list[Row]:
    """Two claims and the commands of one extra."""
    most_packages, most_mb = LIMITS.get(extra, (None, None))
    packages, total = len(found.sizes) - 1, sum(found.sizes.values())
    numpy = found.sizes.get("numpy", 0.0)
    largest = ", ".join(f"{name} {mb:.1f}" for name, mb in sorted(found.sizes.items(), key=lambda one: -one[1])[:6])
    commands = len(COMMANDS[extra])
    made = [
        Row(
            claim=f"mainstay[{extra}]: packages beside mainstay and torch", figure=packages, unit="packages",
            target=f"<= {most_packages}" if most_packages else "", kind="live",
            holds=packages <= most_packages if most_packages else None,
            note=", ".join(sorted(found.sizes)),
        ),
        Row(
            claim=f"mainstay[{extra}]: installed size without torch", figure=total, unit="MB",
            target=f"<= {most_mb:g}" if most_mb else "", kind="live", holds=total <= most_mb if most_mb else None,
            note=f"largest: {largest}; installed in {found.seconds:.1f} s",
        ),
        Row(
            claim=f"mainstay[{extra}]: commands and imports that run", figure=commands - len(found.failures),
            unit=f"of {commands}", target="all", kind="live", holds=not found.failures,
            note="; ".join(found.failures),
        ),
    ]  # fmt: skip
    if extra == "train":
        beside = Row(
            claim="mainstay[train]: installed size without torch and numpy", figure=total - numpy, unit="MB",
            target=f"<= {most_mb:g}", kind="live", holds=total - numpy <= (most_mb or 0.0),
            note="for an environment that has numpy beside torch already",
        )  # fmt: skip
        made.insert(2, beside)
    return made


def main() -> None:
    file = target_file("install_size")
    with tempfile.TemporaryDirectory(prefix="mainstay-bench-install-") as name:
        folder = Path(name)
        wheel = build_wheel(folder)
        made = [row for extra in COMMANDS for row in rows(extra, measure_extra(wheel, extra, folder))]
    publish("install_size", made, file)


if __name__ == "__main__":
    main()
