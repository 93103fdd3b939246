"""A million messages and faults in simulated time: what may never happen to a job, and how each run ends.

``python -m bench.simulated_jobs [--json FILE] [--events N] [--first SEED]``. Real launchers, coordinators, and
elections of 2 to 6 nodes in one process; the network, ranks, and agents are simulated (``tests.recovery.simulated``).
Faults come at random moments: processes and launchers are killed or stopped, hosts lose power, the network is cut,
connections break, ranks hang, nodes start again, ranks migrate and are restored, nodes are cordoned, left, and used
again. A violation names its seed, which gives the same run again: ``python -m tests.recovery.simulated.run SEED``.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from bench.report import RESULTS, Row, publish
from tests.recovery.simulated.ranks import ViolationError
from tests.recovery.simulated.run import RunResult, simulate

NAME = "simulated_jobs"
EVENTS = 1_000_000


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog=f"python -m bench.{NAME}")
    parser.add_argument("--json", type=Path, default=RESULTS / f"{NAME}.json", metavar="FILE")
    parser.add_argument("--events", type=int, default=EVENTS, metavar="N", help="Stop after so many.")
    parser.add_argument("--first", type=int, default=100_000, metavar="SEED", help="Seed of the first run.")
    options = parser.parse_args(argv)
    logging.getLogger("mainstay").setLevel(logging.ERROR)  # thousands of failures are reported here
    began, seed, events = time.process_time(), options.first, 0
    results: list[RunResult] = []
    violations: list[str] = []
    while events < options.events:
        try:
            results.append(simulate(seed))
            events += results[-1].events
        except ViolationError as violation:
            violations.append(f"seed {seed}: {violation}")
        seed += 1
    publish(NAME, _rows(results, violations, time.process_time() - began), options.json)


def _rows(results: Sequence[RunResult], violations: Sequence[str], seconds: float) -> list[Row]:
    events, runs = sum(r.events for r in results), len(results) + len(violations)
    ends = Counter(r.end for r in results)
    kinds = Counter(fault for r in results for fault in r.faults)
    rules = (
        "a generation commits after a newer one, a rank has two processes in a generation, ranks begin with different "
        "states, a step that all committed and no node lost is repeated, a rank begins on a cordoned node, the job "
        "neither trains nor ends, a coordinator or launcher fails, the replay of a recording gives other effects"
    )
    return [
        Row(
            claim="violations of the rules of a job",
            figure=len(violations),
            unit="violations",
            target="0",
            holds=not violations,
            kind="simulated",
            n=runs,
            note="; ".join(violations[:5]) or f"none of: {rules}",
        ),
        Row(
            claim="messages delivered and faults",
            figure=events,
            unit="events",
            target=">= 1,000,000",
            holds=events >= EVENTS,
            kind="simulated",
            n=runs,
            note=f"{runs} runs, {seconds:.0f} s of processor time; {sum(r.generations for r in results)} generations, "
            f"{sum(r.coordinators - 1 for r in results)} coordinators after the first, "
            f"{sum(r.commits for r in results)} steps; ends: {dict(ends)}; faults: {dict(kinds.most_common())}",
        ),
        Row(
            claim="events of the job state, recorded and replayed through the reducer",
            figure=sum(r.replayed for r in results),
            unit="events",
            target="",
            holds=None,
            kind="simulated",
            n=runs,
            note="other effects, or a broken rule of the state, would be a violation",
        ),
    ]


if __name__ == "__main__":
    main()
