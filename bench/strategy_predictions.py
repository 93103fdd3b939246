"""Every recovery strategy that a job carries out: seconds measured beside seconds predicted, and no sample lost.

``python -m bench.strategy_predictions [--json FILE] [--only A,B] [--runs N] [--quick]``: each story is a job of four to
six ranks with real SIGKILLs (``bench/lib_strategy_predictions.py``). Predictions are those that were made before the
failure was over, by the coordinator of the job itself where it chooses the way, else as the row says. A story that
cannot run says why.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.lib_job import JobError
from bench.lib_journal import JournalError
from bench.lib_strategy_predictions import KILLS, Place, ScenarioOutcome, in_process
from bench.lib_strategy_predictions_planned import degrade, just_in_time, reinstantiate, reshape
from bench.report import RESULTS, Row, publish

SEED: Final = 47
WITHIN: Final = 0.25
STORIES: Final[dict[str, Callable[[Place], ScenarioOutcome]]] = {
    **{kill.name: kill.run_scenario for kill in KILLS},
    "just-in-time save": just_in_time,
    "in-process restart": in_process,
    "re-instantiate 3+3 as 3+2": reinstantiate,
    "planned change of (dp, pp)": reshape,
    "degrade for a slow rank": degrade,
}


def rows(name: str, told: ScenarioOutcome) -> list[Row]:
    """Three rows a story: the ratio, the samples, the bits."""
    where = f"load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores"
    n, ways = len(told.samples), ", ".join(sorted({sample.way for sample in told.samples}))
    measured = statistics.median(sample.measured for sample in told.samples)
    pairs = [(s.measured, s.predicted) for s in told.samples if s.predicted]
    ratios = [took / said for took, said in pairs]
    middle = statistics.median(ratios) if ratios else None
    spread = f"from {min(ratios):.2f} to {max(ratios):.2f}" if ratios else "no prediction"
    said = f"predicted {statistics.median(p for _, p in pairs):.3f} s, " if pairs else ""
    phases = dict.fromkeys(phase for sample in told.samples for phase in sample.off)
    off = [f"{p} {statistics.median(s.off[p] for s in told.samples if p in s.off):+.3f}" for p in phases]
    spread += f" (measured less predicted, medians: {', '.join(off)} s)" if off else ""
    counted = told.journal
    return [
        Row(claim=f"{name}: measured / predicted seconds", figure=None if middle is None else round(middle, 2),
            unit="x", target=f"{1 - WITHIN:g} to {1 + WITHIN:g}",
            holds=None if middle is None else abs(middle - 1.0) <= WITHIN, kind="live", n=len(ratios) or n,
            baseline=f"{said}measured {measured:.3f} s",
            note=f"{spread}; by {ways}; {told.basis}; {where}"),
        Row(claim=f"{name}: samples lost or doubled", figure=counted.lost + counted.doubled, unit="samples",
            target="0", holds=counted.lost + counted.doubled == 0, kind="live", n=n,
            baseline=f"{counted.samples} samples",
            note=f"{counted.lost} lost, {counted.doubled} doubled; {counted.repeated} ranks' steps were made again"),
        Row(claim=f"{name}: parameters at the end", figure="equal" if told.equal else "differ", unit="",
            target="bit-equal", holds=told.equal, kind="live", n=n, baseline="a run without failures"),
    ]  # fmt: skip


def left_out(name: str, why: str) -> Row:
    """Of a story that could not be told."""
    return Row(claim=f"{name}: measured / predicted seconds", figure=None, unit="x", target="runs", holds=None,
               kind="live", n=0, note=f"could not run: {why}")  # fmt: skip


def run_scenarios(place: Place, names: Sequence[str]) -> list[Row]:
    """Stories one after the other, each with what it printed last if it fails."""
    found: list[Row] = []
    for name in names:
        try:
            told = STORIES[name](place)
        except (JobError, JournalError, OSError) as error:
            print(error, flush=True)
            found.append(left_out(name, str(error).splitlines()[0]))
        else:
            found += rows(name, told)
            print(f"{name}: {told}", flush=True)
    return found


def chosen(only: str, known: Mapping[str, object] = STORIES) -> list[str]:
    """Names that contain ``only``, or one of its parts between commas.

    Raises:
        ValueError: none does.
    """
    names = [name for name in known if any(part in name for part in only.split(","))]
    if not names:
        raise ValueError(f"--only {only!r}: the stories are {', '.join(known)}")
    return names


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.strategy_predictions")
    parser.add_argument("--json", type=Path, default=RESULTS / "executed.json", metavar="FILE")
    parser.add_argument("--only", default="", metavar="A,B", help="stories whose names contain one of these")
    parser.add_argument("--runs", type=int, default=4, help="failures of each scenario, without the first one")
    parser.add_argument("--quick", action="store_true", help="three failures of each")
    given = parser.parse_args(argv)
    try:
        names = chosen(given.only)
    except ValueError as error:
        parser.error(str(error))
    directory = Path(tempfile.mkdtemp(prefix="executed-"))
    try:
        found = run_scenarios(Place(directory, SEED, 3 if given.quick else given.runs), names)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    publish("strategy_predictions", found, given.json)


if __name__ == "__main__":
    main()
