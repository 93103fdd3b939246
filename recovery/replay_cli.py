"""``mainstay replay-job FILE``: replay what ``mainstay run --record-events`` recorded."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from mainstay.detectors.cli_errors import BAD_INPUT, AsJson, one_line, print_json
from mainstay.recovery.controller.event_recording import RecordingError
from mainstay.recovery.controller.replay import ReplayedJob, replay


@one_line("mainstay replay-job", {RecordingError: BAD_INPUT, OSError: BAD_INPUT})
def replay_job(file: Path, /, *, until: int | None = None, as_json: AsJson = False) -> int:
    """Replay the recording of a job, check it, and show its generations and ranks.

    Args:
        file: Read this file, written by mainstay run --record-events.
        until: Stop after this many events, and show the state at that point.
        as_json: Print only JSON.

    Returns:
        Exit code: 0 the replay gives what was recorded and no rule is broken; 1 otherwise; 2 invalid input.
    """
    begun = time.perf_counter()
    found = replay(file, until)
    if as_json:
        print_json(_data(found))
    else:
        _show(found, time.perf_counter() - begun)
    return 1 if found.problems else 0


def _show(found: ReplayedJob, seconds: float) -> None:
    header, state, console = found.header, found.state, Console(highlight=False)
    console.print(
        f"Job {header.job}, run {state.run}, coordinator {header.term}: {found.events} events from "
        f"{_utc(found.first_at)} to {_utc(found.last_at)} UTC, replayed in {seconds:.2f} s. "
        "Times count from the first event.",
        soft_wrap=True,
    )
    table = Table("Generation", "Began", "Formed", "First step", "New processes", "Reason")
    for one in found.generations:
        moments = (one.began_at, one.formed_at, one.committed_at)
        times = ["" if at is None else f"{at - found.first_at:.3f} s" for at in moments]
        table.add_row(str(one.number), *times, ", ".join(map(str, one.started)), one.reason)
    console.print(table)
    step = state.committed
    console.print(f"At the end: {state.phase.value}, generation {state.generation}, step {step}.", soft_wrap=True)
    ranks = Table("Rank", "Node", "PID", "State", "Step")
    for row in _ranks(found):
        ranks.add_row(*("" if value is None else str(value) for value in row.values()))
    console.print(ranks)
    for problem in found.problems:
        console.print(f"PROBLEM {problem}", soft_wrap=True)
    if not found.problems:
        console.print("The replay gives the recorded effects, and no rule is broken.", soft_wrap=True)


def _ranks(found: ReplayedJob) -> list[dict[str, Any]]:
    return [
        {"rank": rank.number, "node": rank.node, "pid": rank.pid, "state": rank.state, "step": rank.epoch}
        for rank in found.state.members.ranks
    ]


def _data(found: ReplayedJob) -> dict[str, Any]:
    state = found.state
    return {
        "header": found.header,
        "events": found.events,
        "phase": state.phase.value,
        "generation": state.generation,
        "step": state.committed,
        "generations": found.generations,
        "ranks": _ranks(found),
        "problems": found.problems,
    }


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
