"""The cost model and the simulator against published tables and exact formulas, each claim with its source.

Recorded traces and the authors' measurements are read from the folder that ``MAINSTAY_TEST_DATA`` names (else
``shared/data`` beside the checkout); where it is absent those rows are left out, and a line reports that.
``python -m bench.planner [--json FILE]``
"""

from __future__ import annotations

import os
from pathlib import Path

from bench import lib_planner_comparison as contest
from bench import lib_planner_decide as decisions
from bench import lib_planner_forecasts as forecasts
from bench import lib_planner_parcae as parcae
from bench import lib_planner_recycle as recycle
from bench import lib_planner_runs as runs
from bench import lib_planner_tables as tables
from bench.report import publish, target_file

DATA = Path(os.environ.get("MAINSTAY_TEST_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
TRACES = DATA / "traces"

if __name__ == "__main__":
    file = target_file("planner")
    found = [*runs.daly_rows(), *runs.llama_rows(), *recycle.rows()]
    found += [*decisions.decision_rows(), *forecasts.rows(), *decisions.allocation_rows(), *decisions.llama_rows()]
    if (TRACES / "oobleck").is_dir():
        found += tables.rows(TRACES / "oobleck")
    else:
        print(f"{TRACES / 'oobleck'} is absent: set MAINSTAY_TEST_DATA; Oobleck's table is left out")
    if all((TRACES / name).is_dir() for name in ("parcae", "oobleck", "bamboo")):
        found += parcae.rows(TRACES)
    else:
        print(f"{TRACES} lacks parcae, oobleck or bamboo: set MAINSTAY_TEST_DATA; forecasts and Parcae's are left out")
    if (TRACES / "oobleck").is_dir() and (TRACES / "bamboo").is_dir():
        found += contest.rows(TRACES)
    else:
        print(f"{TRACES} lacks oobleck or bamboo: set MAINSTAY_TEST_DATA; the planner's traces are left out")
    publish("planner", found, file)
