"""How well the detectors judge, in one table: the public data sets, and generated runs with every fault and trap.

``python -m bench.judgment [--quick] [--kept] [--log FILE] [--minutes N] [--json FILE]``: an hour on two cores. The
parts run as programs of their own and keep their results; splits and seeds are fixed in them. ``--kept`` takes their
newest results instead. ``--log`` keeps each generated run, and continues from there if it is given again;
``--minutes`` limits them, in a fixed random order, and ``n`` says how many there were.
``--quick``, about a minute: kept results, and twenty small generated runs; nothing is written.
It also writes the table as ``docs/reference/judgment.md``. A set without its data is a skipped row.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import lib_runs
from bench.detect import part
from bench.lib_runs import Played
from bench.report import RESULTS, Row, publish
from mainstay.detectors.generator.catalog import FAULTS, TRAPS

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "judgment.md"
DATA = Path(os.environ.get("MAINSTAY_TEST_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
MEASURES = ("recall", "false alarms", "delay", "right culprit", "baseline")
QUICK_RUNS = 20
_LIMIT_SECONDS = 1800.0


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A data set (no folder: a simulated one), the bench that judges it, and which of its claims are the columns."""

    name: str
    folder: str
    detector: str
    bench: str
    claims: dict[str, str]
    """Column to the claim, or to its beginning."""


SETS = (
    DataSet(
        name="Megatron step times", folder="step-times", detector="slowdown", bench="job_pace",
        claims={
            "recall": "published run 10% slower", "false alarms": "false job slowdowns a day of published",
            "delay": "published run 10% slower", "baseline": "false job slowdowns a day of published",
        },
    ),
    DataSet(
        name="uneven healthy runs, simulated", folder="", detector="slowdown", bench="job_pace",
        claims={
            "recall": "uneven run 10% slower", "false alarms": "false job slowdowns a day of uneven",
            "delay": "uneven run 10% slower",
        },
    ),
    DataSet(
        name="Megatron losses", folder="step-times", detector="numeric_anomalies", bench="numeric_anomalies",
        claims={
            "recall": "loss × 5 → finding", "false alarms": "false findings per 10,000 steps",
            "right culprit": "NaN: first rank named",
        },
    ),
    *(
        DataSet(
            name=f"{name}, each machine left out", folder=name.lower(), detector="machine model", bench="machines",
            claims={
                "recall": f"{name}, each machine left out: events found",
                "false alarms": f"{name}, each machine left out: false alarms a machine-day",
                "right culprit": f"{name}: HitRate@150 %",
                "baseline": f"{name}, each machine left out: events found",
            },
        )
        for name in ("SMD", "ASD")
    ),
    DataSet(
        name="straggler traces", folder="straggler-traces", detector="straggler", bench="failslow",
        claims={
            "recall": "SE trace, missing and stuck: >= 5 % slow, found", "false alarms": "healthy imbalanced jobs",
            "delay": "SE trace, missing and stuck: >= 5 % slow", "baseline": "healthy imbalanced jobs",
            "right culprit": "SE trace, missing and stuck: >= 5 % slow",
        },
    ),
    DataSet(
        name="flight-recorder dumps", folder="flight-recorder", detector="analyze-hang", bench="damaged_dumps",
        claims={"recall": "undamaged sets", "false alarms": "damaged dump sets", "right culprit": "a faulty rank"},
    ),
    *(
        DataSet(
            name=f"GPU variability, {name}", folder="gpu-variability", detector="validation", bench="validator",
            claims={
                "recall": f"{name}: recall at 5%", "false alarms": f"{name}: healthy GPUs flagged",
                "baseline": f"{name}: recall at 5%",
            },
        )
        for name in ("SGEMM", "BERT", "PAGERANK")
    ),
)  # fmt: skip
Line = dict[str, str]
"""A line of the table: its name, detector, measures, and n, as text."""


def results(one: DataSet, *, kept: bool) -> list[Row]:
    """Rows of its bench, run now or as it last was."""
    file = RESULTS / f"{one.bench}.json"
    if kept:
        return [Row(**row) for row in json.loads(file.read_text())] if file.exists() else []
    return list(part(one.bench, limit=_LIMIT_SECONDS))


def of_set(one: DataSet, rows: Sequence[Row]) -> tuple[Line, list[Row]]:
    """Its line, and a row for each column."""
    line: Line = {"set": one.name, "detector": one.detector, "n": ""}
    if not rows or not (DATA / one.folder).is_dir():
        return line | {"recall": "skipped: no data"}, [_skipped(one)]
    made: list[Row] = []
    for column, claim in one.claims.items():
        matching = sorted((row for row in rows if row.claim.startswith(claim)), key=lambda row: len(row.claim))
        row = matching[0] if matching else None
        if row is not None:
            line[column] = row.baseline if column == "baseline" else _figure(column, row)
            line["n"] = line["n"] or str(row.n)
            made += [] if column == "baseline" else [_row(f"{one.name}: {one.detector}: {column}", line[column], row)]
    return line, made


def _skipped(one: DataSet) -> Row:
    claim = f"{one.name}: {one.detector}"
    return Row(claim=claim, figure=None, unit="", target="", holds=None, kind="replayed", n=0, note="skipped: no data")


def _row(claim: str, figure: str, row: Row) -> Row:
    """The target is that of the figure itself, not of what its note tells."""
    own = figure.startswith(_number(row))
    return Row(
        claim=claim, figure=figure, unit="", target=row.target if own else "", holds=row.holds if own else None,
        kind=row.kind, baseline=row.baseline, n=row.n, note=row.claim,
    )  # fmt: skip


def _figure(column: str, row: Row) -> str:
    """As text with its unit; the note of a delay tells its recall and its culprits."""
    if column == "recall" and (found := re.search(r"found ([\d.]+%)", row.note)):
        return found[1]
    if column == "recall" and (missed := re.search(r"missed (\d+)", row.note)):
        return f"{1 - int(missed[1]) / row.n:.3f}"
    if column == "right culprit" and (right := re.search(r"right rank first ([\d.]+%)", row.note)):
        return right[1]
    return f"{row.figure} of {row.n}" if column != "false alarms" and isinstance(row.figure, int) else _number(row)


def _number(row: Row) -> str:
    number = f"{row.figure:.3g}" if isinstance(row.figure, float) else str(row.figure)
    return f"{number} {row.unit}".strip()


def generated(played: Sequence[Played]) -> Iterator[Line]:
    """A line for each size: its faults, and the traps that are blamed."""
    for ranks in sorted({one.ranks for one in played}):
        faults = [one for one in played if one.ranks == ranks and one.name in FAULTS]
        traps = [one for one in played if one.ranks == ranks and one.name in TRAPS]
        delays = sorted(one.seconds for one in faults if one.seconds is not None)
        kind, days = sum(one.kind_named for one in faults), sum(one.days for one in traps)
        blamed, rule = sum(bool(one.wrong) for one in traps), sum(one.rule for one in traps)
        a_day = sum(len(one.wrong) for one in traps) / max(days, 1e-9)
        yield {
            "set": f"generated, {ranks} ranks", "detector": "all", "n": f"{len(faults)} faults, {len(traps)} traps",
            "recall": f"{len(delays) / max(len(faults), 1):.3f}",
            "false alarms": f"{blamed} of {len(traps)} traps ({a_day:.1f} /day)",
            "delay": f"median {delays[len(delays) // 2]:.0f} s" if delays else "",
            "right culprit": f"{len(delays) / max(kind, 1):.3f}", "baseline": f"fixed 5 % rule blames {rule} traps",
        }  # fmt: skip


def markdown(lines: Sequence[Line]) -> str:
    head = ("set", "detector", *MEASURES, "n")
    table = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    table += ["| " + " | ".join(line.get(name, "").replace("|", "\\|") for name in head) + " |" for line in lines]
    return "\n".join([
        "# Detection quality", "",
        "`python -m bench.judgment` writes this table from public data sets and from generated runs",
        "([`mainstay generate`](recordings.md#generated-recordings)). Splits and seeds are fixed. *False alarms* have",
        "the given unit, or are a share. In generated runs, *recall* counts a fault as found if a finding",
        "has the right kind and the right culprit; *right culprit* is its share of those with the right kind. A *trap*",
        "is a healthy run that resembles a fault; a day of traps has far more of them than a day of a real job.", "",
        *table, "",
    ])  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table, and write it unless it is quick."""
    parser = argparse.ArgumentParser(prog="python -m bench.judgment")
    parser.add_argument("--quick", action="store_true", help="kept results and a few generated runs; writes nothing")
    parser.add_argument("--kept", action="store_true", help="take the newest results of the parts")
    parser.add_argument("--log", type=Path, help="keep the generated runs here, and continue from them")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="limit of the generated runs")
    parser.add_argument("--json", type=Path, default=RESULTS / "judgment.json", metavar="FILE")
    given = parser.parse_args(argv)
    held: dict[str, list[Row]] = {}
    lines, rows = [], []
    for one in SETS:
        if one.bench not in held:
            held[one.bench] = results(one, kept=given.kept or given.quick)
        line, made = of_set(one, held[one.bench])
        lines.append(line)
        rows += made
    chosen = lib_runs.cases()
    small = [case for case in chosen if case.ranks == 16][:QUICK_RUNS]
    played = lib_runs.play_all(small if given.quick else chosen, log=given.log, minutes=given.minutes)
    lines += generated(played)
    rows += lib_runs.rows(played)
    print(markdown(lines))
    if not given.quick:
        publish("judgment", rows, given.json)
        PAGE.write_text(markdown(lines))


if __name__ == "__main__":
    main()
