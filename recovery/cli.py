"""``mainstay run``, ``mainstay agent``, ``mainstay plan``, ``mainstay reshape``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from recovery.cadence import NODE_MTBF_HOURS

# torchrun's own grammar (options, script, the rest is the script's) is argparse's: the words are handed over as typed.
run = App(name="run", help_flags=(), version_flags=())


@run.default
def _run(*words: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> int:
    from recovery.launcher.main import main

    return main(words)


agent = App(name="agent", help_flags=(), version_flags=())


@agent.default
def _agent(*words: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> int:
    from recovery.agent.server import main

    return main(words)


def plan(
    *,
    scenario: str,
    levels: Annotated[bool, Parameter(negative=())] = False,
    mtbf: float = NODE_MTBF_HOURS,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """Price every recovery strategy for a described failure.

    Args:
        scenario: file that describes the job and its failure.
        levels: say instead how often each level of protection should save in such a job.
        mtbf: hours between failures of one node, for --levels.
        json_: print JSON.
    """
    from recovery.plan_cli import run_levels, run_plan

    sys.exit(run_levels(scenario, mtbf, json_) if levels else run_plan(scenario, json_))


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
    """Let a running job train on with other data-parallel and pipeline sizes, and wait until it does.

    Give either --dp and --pp, or --stages.

    Args:
        job: its name.
        dp: data-parallel replicas.
        pp: pipeline stages.
        stages: of each pipeline, where they are unlike: 3,2.
        state_dir: of the launcher that coordinates, where mainstay run was given one.
        timeout: seconds to wait for the answer.
        json_: print JSON.
    """
    from recovery.reshape_cli import run_reshape

    sys.exit(run_reshape(job, (dp, pp), stages, state_dir, timeout, as_json=json_))
