"""``mainstay superbench diagnose`` against SuperBench: labels, bytes, lint issues, and time for a fleet.

Parity is replayed over SuperBench's own test files and recorded answers (``MAINSTAY_TEST_DATA``, else ``shared/data``
beside the project; without it only the simulated rows are printed). Times are those of the command as a user types
it: from files on disk to the written diagnosis, the start of Python included.

``python -m bench.diagnose [--json FILE]``.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from bench.lib_superbench import DEVIATIONS, files_alike, golden_alike, lint_faults
from bench.report import Row, publish, target_file
from mainstay.detectors.superbench.baseline import read_baseline
from mainstay.detectors.superbench.diagnose import diagnose
from mainstay.detectors.superbench.lint import lint
from mainstay.detectors.superbench.results import read_results
from mainstay.detectors.superbench.rules import read_rules

DATA = Path(os.environ.get("MAINSTAY_TEST_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
REPEATS = 5
DEFECTIVE = 0.02
"""Share of nodes with one metric 30 % slow."""
SUPERBENCH_SECONDS = 9.7
"""SuperBench's own diagnosis of 2,048 nodes x 159 metrics on two idle cores of another machine: it needs pandas."""
BENCHMARKS = ("mem-bw/h2d_bw", "mem-bw/d2h_bw", "gemm-flops/fp16_flops", "gemm-flops/bf16_tc_flops", "ib-loopback/w_bw")


@dataclass(frozen=True, slots=True)
class Fleet:
    """Files of a simulated fleet."""

    folder: Path
    nodes: int
    metrics: int
    slow: frozenset[str]

    @property
    def arguments(self) -> list[str]:
        names = {"--results": "results.jsonl", "--rules": "rules.yaml", "--baseline": "baseline.json"}
        return [part for option, name in names.items() for part in (option, str(self.folder / name))]


def simulate(folder: Path, nodes: int, metrics: int, share: float = DEFECTIVE) -> Fleet:
    """A fleet with noise of 2 % and known slow nodes."""
    rng = np.random.default_rng(7)
    ranks = -(-(metrics - 1) // len(BENCHMARKS))
    names = [f"{name}:{rank}" for name in BENCHMARKS for rank in range(ranks)][: metrics - 1]
    values = 100 * rng.uniform(0.98, 1.02, (nodes, len(names)))
    slow = rng.choice(nodes, int(nodes * share), replace=False)
    values[slow, rng.integers(0, len(names), len(slow))] *= 0.7
    with (folder / "results.jsonl").open("w") as file:
        for number in range(nodes):
            row = dict(zip(names, values[number].tolist(), strict=True))
            file.write(json.dumps({"node": f"node-{number:05d}", **row, "mem-bw/return_code": 0}) + "\n")
    (folder / "rules.yaml").write_text(yaml.safe_dump({"superbench": {"rules": _rules()}}))
    (folder / "baseline.json").write_text(json.dumps(dict.fromkeys(BENCHMARKS, 100.0)))
    return Fleet(folder, nodes, metrics, frozenset(f"node-{number:05d}" for number in slow.tolist()))


def _rules() -> dict[str, dict[str, object]]:
    relative: dict[str, dict[str, object]] = {
        name: {"function": "variance", "criteria": "lambda x:x<-0.1", "categories": name, "metrics": [f"{name}:\\d+"]}
        for name in BENCHMARKS
    }
    codes = {"function": "failure_check", "criteria": "lambda x:x>0", "categories": "Failed"}
    return {**relative, "codes": {**codes, "metrics": ["mem-bw/return_code"]}}


def run(fleet: Fleet) -> tuple[float, float, set[str]]:
    """Wall and processor seconds of the command, and the nodes that its file labels."""
    out = fleet.folder / "diagnosis.json"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    command = [
        sys.executable,
        "-m",
        "mainstay",
        "superbench",
        "diagnose",
        *fleet.arguments,
        "--output",
        str(out),
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, check=False, timeout=600)
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stderr.decode())
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, busy, {row["index"] for row in json.loads(out.read_text())}


def time_row(
    claim: str, nodes: int, metrics: int, limit: float, share: float = DEFECTIVE, *, promised: bool = True
) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        fleet = simulate(Path(folder), nodes, metrics, share)
        size = (fleet.folder / "results.jsonl").stat().st_size / 1e6
        runs = [run(fleet) for _ in range(REPEATS)]
    wall, busy = statistics.median(one[0] for one in runs), statistics.median(one[1] for one in runs)
    right = all(labeled == fleet.slow for _, _, labeled in runs)
    note = (
        f"{wall / limit:.2f} of {limit:g} s; {busy:.2f} s of processor time; {size:.0f} MB of results; "
        f"{len(fleet.slow)} slow nodes, {'all found, no others' if right else 'LABELS DIFFER FROM THE TRUTH'}; "
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )
    baseline = f"SuperBench {SUPERBENCH_SECONDS} s (not in this run)" if nodes == 2048 else ""
    return Row(
        claim=claim, figure=wall, unit="s", target=f"<= {limit:g}" if promised else "-",
        holds=right and wall <= limit if promised else None, kind="simulated",
        baseline=baseline, n=REPEATS, note=note,
    )  # fmt: skip


def clean_row() -> Row:
    with tempfile.TemporaryDirectory() as folder:
        fleet = simulate(Path(folder), 64, 159)
        with (fleet.folder / "results.jsonl").open("rb") as lines:
            results = read_results(lines)
        rules = read_rules((fleet.folder / "rules.yaml").read_text())
        found = lint(rules, diagnose(results, rules, read_baseline((fleet.folder / "baseline.json").read_bytes())))
    return Row(
        claim="lint: findings on a clean file", figure=len(found), unit="findings", target="0", holds=not found,
        kind="simulated", note="64 nodes x 159 metrics, 2 % of the nodes slow",
    )  # fmt: skip


def parity_rows() -> list[Row]:
    """What SuperBench answered, replayed; empty where its files are absent."""
    if not (DATA / "superbench").is_dir():
        print(f"parity is skipped: {DATA / 'superbench'} is absent; set MAINSTAY_TEST_DATA")
        return []
    cases = golden_alike(DATA)
    apart = sorted(name for name, same in cases.items() if not same)
    files = files_alike(DATA)
    faults = lint_faults(DATA)
    return [
        Row(
            claim="recorded cases with SuperBench's answer or a documented deviation",
            figure=f"{len(cases) - len(apart)} the same + {len(apart)} deviations = {len(cases)}", unit="cases",
            target="100 %, deviations only as documented", holds=set(apart) == set(DEVIATIONS), kind="replayed",
            n=len(cases), note="; ".join(f"{name}: {DEVIATIONS.get(name, 'NOT DOCUMENTED')}" for name in apart),
        ),
        Row(
            claim="SuperBench's expected files, byte for byte", figure=f"{sum(files.values())} of {len(files)}",
            unit="files", target="100 %", holds=all(files.values()), kind="replayed", n=len(files),
            note=", ".join(name if same else f"{name} DIFFERS" for name, same in files.items()),
        ),
        Row(
            claim="lint: known faults found when the file is loaded", figure=f"{sum(faults.values())} of {len(faults)}",
            unit="faults", target="all", holds=all(faults.values()), kind="replayed", n=len(faults),
            note=", ".join(name if found else f"{name} MISSED" for name, found in faults.items()),
        ),
    ]  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    file = target_file("diagnose", argv)
    rows = [
        *parity_rows(),
        clean_row(),
        time_row("2,048 nodes x 159 metrics, files to diagnosis", 2048, 159, 2.0),
        time_row("10,000 nodes x 200 metrics, files to diagnosis", 10_000, 200, 10.0),
        time_row("10,000 nodes x 200 metrics, every node defective", 10_000, 200, 10.0, share=1.0, promised=False),
    ]
    publish("diagnose", rows, file)


if __name__ == "__main__":
    main()
