"""Write all generated pages below a directory, by default ``docs/``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from docs.generate import benchmark_page, capacity_page, command_page, detector_pages, scenario_page, service_pages

ROOT: Final = Path(__file__).parents[2]

PAGES: Final[dict[str, Callable[[], str]]] = {
    "reference/settings.md": service_pages.settings,
    "reference/cli.md": command_page.commands,
    "reference/rest-api.md": lambda: service_pages.rest_api(ROOT / "web" / "openapi.json"),
    "reference/metrics.md": service_pages.metrics,
    "reference/signals.md": detector_pages.signals,
    "reference/finding-kinds.md": detector_pages.finding_kinds,
    "reference/detectors.md": detector_pages.detectors,
    "reference/xid-policy.md": detector_pages.xid_policy,
    "reference/scenario-files.md": lambda: scenario_page.scenario_files(ROOT / "docs" / "examples"),
    "how-to/capacity.md": lambda: capacity_page.capacity(ROOT / "bench" / "results"),
    "benchmarks/index.md": lambda: benchmark_page.benchmarks(ROOT / "bench"),
}


def write_pages(directory: Path) -> list[Path]:
    """Write every page below ``directory`` and return the files."""
    written = []
    for name, render in PAGES.items():
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        text = render()
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
        written.append(file)
    return written


if __name__ == "__main__":
    pages = write_pages(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs")
    print(f"{len(pages)} pages written")  # noqa: T201 - a command prints
