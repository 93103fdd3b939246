"""``mainstay demo``: the whole loop on this machine, in about a minute."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from service.demo.scenario import DemoError, DemoOptions, Scenario
from service.demo.stack import free_port
from service.demo.story import Story
from service.demo.view import TerminalView, summary_table

DEFAULT_PORT = 8080


def demo(
    *,
    exit_: Annotated[bool, Parameter(name="--exit", negative=())] = False,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
    port: int | None = None,
    steps: int = 60,
    kill_rank: int = 3,
    kill_at_step: int = 15,
    seed: int = 7,
    keep: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """The main job on this machine: service, probes, a protected training run, a SIGKILL, a recovery.

    Parameters
    ----------
    exit_
        Stop after the run, with exit code 0 only if training finished and its final parameters are bit-equal to an
        undisturbed run with the same seed. Without it the dashboard stays up until Ctrl-C.
    json_
        Print the summary as JSON on stdout (the story goes to stderr).
    port
        Port of the dashboard; 8080, or a free one (said aloud) when 8080 is taken. 0 asks for a free one.
    steps
        Training steps of the run.
    kill_rank
        The rank that gets SIGKILL.
    kill_at_step
        The kill comes once this step is committed.
    seed
        Seed of the run and of the undisturbed run it is compared with.
    keep
        Keep the demo's directory (data, logs, saved parameters).
    """
    _check(steps, kill_rank, kill_at_step)
    console = Console(stderr=json_)
    directory = Path(tempfile.mkdtemp(prefix="mainstay-demo-"))
    options = DemoOptions(
        directory=directory, port=_choose_port(port, console), steps=steps, kill_rank=kill_rank,
        kill_at_step=kill_at_step, seed=seed,
    )  # fmt: skip
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    story = Story()
    try:
        _play(options, story, console, stay=not exit_)
    finally:
        if keep:
            console.print(f"kept {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    if json_:
        print(json.dumps(story.summary(), indent=2))
    sys.exit(0 if story.ok else 1)


def _play(options: DemoOptions, story: Story, console: Console, *, stay: bool) -> None:
    with TerminalView(story, console) as refresh:
        scenario = Scenario(options, story, refresh)
        try:
            scenario.play()
        except DemoError as error:
            story.error = str(error)
            story.tell(story.error, "bad")
        if not stay or story.error:
            refresh()
            scenario.stack.close()
    console.print(summary_table(story))
    if stay and not story.error:
        console.print(f"\nThe dashboard stays up: [bold cyan]{story.sign_in}[/]\nCtrl-C ends everything.")
        _wait_for_interrupt(scenario)


def _wait_for_interrupt(scenario: Scenario) -> None:
    try:
        while scenario.stack.children.exit_code("service") is None:
            time.sleep(0.5)
    except KeyboardInterrupt:
        pass
    finally:
        scenario.stack.close()


def _check(steps: int, kill_rank: int, kill_at_step: int) -> None:
    problems = {
        f"--kill-rank {kill_rank}: the demo has ranks 0 to 3": not 0 <= kill_rank <= 3,
        f"--kill-at-step {kill_at_step}: must be at least 1": kill_at_step < 1,
        f"--steps {steps}: leave at least 20 steps after --kill-at-step {kill_at_step}": steps < kill_at_step + 20,
    }
    for problem, holds in problems.items():
        if holds:
            print(f"mainstay demo: {problem}", file=sys.stderr)
            sys.exit(2)


def _choose_port(asked: int | None, console: Console) -> int:
    if asked is None and not _port_is_free(DEFAULT_PORT):
        free = free_port()
        console.print(f"port {DEFAULT_PORT} is taken; using {free}")
        return free
    if asked is not None and asked and not _port_is_free(asked):
        print(f"mainstay demo: --port {asked} is taken", file=sys.stderr)
        sys.exit(2)
    return asked or (DEFAULT_PORT if asked is None else free_port())


def _port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
