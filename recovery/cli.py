"""``mainstay plan`` and ``mainstay reshape``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from mainstay.recovery.save_intervals import NODE_MTBF_HOURS


def plan(
    *,
    scenario: str,
    tiers: Annotated[bool, Parameter(negative=())] = False,
    node_mtbf_hours: float = NODE_MTBF_HOURS,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """Estimate the cost of each recovery strategy for a failure.

    Args:
        scenario: Read the file that describes the job and its failure.
        tiers: Print instead the best save interval of each protection tier.
        node_mtbf_hours: Set the mean time between failures of one node, for --tiers.
        json_: Print only JSON.
    """
    from mainstay.recovery.plan_cli import run_plan, run_tiers

    sys.exit(run_tiers(scenario, node_mtbf_hours, json_) if tiers else run_plan(scenario, json_))


def reshape(
    job: str,
    *,
    dp: int = 0,
    pp: int = 0,
    stages: str = "",
    state_dir: Path | None = None,
    timeout: float = 600.0,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """Change (dp, pp) of a running job and wait until it trains with the new shape.

    Use either --dp and --pp, or --stages.

    Args:
        job: Name the job.
        dp: Set the data-parallel replicas.
        pp: Set the pipeline stages.
        stages: Set the stages of each pipeline if they differ: 3,2.
        state_dir: Use the --state-dir of the launcher that coordinates, if it has one.
        timeout: Wait this many seconds for the answer.
        json_: Print only JSON.
    """
    from mainstay.recovery.reshape_cli import run_reshape

    sys.exit(run_reshape(job, (dp, pp), stages, state_dir, timeout, as_json=json_))
