"""Everything that is claimed of validation, in one table: runs the benches of the parts one after the other.

``python -m bench.validation [--json FILE] [--quick]``: half an hour, quick a third of that. Each part can be run alone
(``make bench-validator``…) and keeps its own results; a part that cannot run here is a row with the reason. ``--quick``
makes fewer runs where a part allows it, and keeps nothing of those.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from bench.detect import part
from bench.report import RESULTS, Row, publish
from mainstay.probes.benchmarks.suites import SUITES, TYPICAL

PARTS: dict[str, tuple[str, ...]] = {
    "validator": ("--quick",),  # criteria learned from distributions and over sessions, replayed and simulated
    "diagnose": (),  # SuperBench rule files, its own test data, 10,000 nodes
    "selector": (),  # what to run before a job, simulated fleets
    "localize": ("--seeds", "50"),  # who is named from pairs, simulated fabrics
    "admission": (),  # the gate before a job, live
    "validation_faults": ("--quick",),  # real faults around real benchmarks, live
    "sdc": ("--quick",),  # one wrong bit in one product, live
}
"""Bench → what makes it quick; nothing: it is quick, or knows no other way."""


LIMIT_SECONDS = {"quick": 60.0, "standard": 600.0, "deep": 2700.0}
"""Suite → what all of it may take on eight GPUs."""


def budgets() -> list[Row]:
    """What the suites may take on a node of eight GPUs: sums of the times that their benchmarks state."""
    device = TYPICAL["cuda"]
    return [
        Row(claim=f"suite {suite.name} on {device.count} GPUs, stated times", figure=round(stated, 1), unit="s",
            target=f"<= {LIMIT_SECONDS[suite.name]:g}", holds=stated <= LIMIT_SECONDS[suite.name], kind="simulated",
            n=len(suite.benchmarks("cuda")),
            note="sum of budgets; measured times: docs/reference/validation-benchmarks.md")
        for suite in SUITES.values()
        for stated in [suite.expected_seconds(device)]
    ]  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    """Print the whole table."""
    parser = argparse.ArgumentParser(prog="python -m bench.validation")
    parser.add_argument("--json", type=Path, default=RESULTS / "validation.json", metavar="FILE")
    parser.add_argument("--quick", action="store_true", help="fewer runs where a part allows it")
    given = parser.parse_args(argv)
    rows = budgets()
    for name, quick in PARTS.items():
        rows += part(name, *(quick if given.quick else ()))
        print(f"bench.{name}: done", flush=True)
    publish("validation", rows, given.json)


if __name__ == "__main__":
    main()
