"""``mainstay demo``: train, kill a rank, and recover on this machine, in about a minute."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from mainstay.detectors.cli_errors import AsJson, Flag
from mainstay.probes.command_options import fail
from mainstay.service.demo.scenario import DemoError, DemoOptions, Scenario
from mainstay.service.demo.stack import free_port
from mainstay.service.demo.timeline import DemoTimeline
from mainstay.service.demo.view import TerminalView, summary_table

DEFAULT_PORT = 8080


def demo(
    *,
    exit_: Annotated[bool, Parameter(name="--exit", negative=())] = False,
    json_: AsJson = False,
    port: int | None = None,
    steps: int = 60,
    kill_rank: int = 3,
    kill_at_step: int = 15,
    seed: int = 7,
    keep: Flag = False,
) -> None:
    """Run a local demo: train, kill a rank, recover.

    Parameters
    ----------
    exit_
        Exit after the run, with code 0 only if training finished and its final parameters are bit-equal to an
        undisturbed run with the same seed. The default keeps the dashboard up until Ctrl-C.
    json_
        Print the summary as JSON on standard output and the timeline on standard error.
    port
        Set the port of the dashboard; the default is 8080 or, if it is in use, a free one. 0 takes a free one.
    steps
        Set the training steps of the run.
    kill_rank
        Send SIGKILL to this rank.
    kill_at_step
        Kill the rank after this committed step.
    seed
        Set the seed of both runs.
    keep
        Keep the directory of the demo (data, logs, saved parameters).
    """
    _check(port, steps, kill_rank, kill_at_step)
    console = Console(stderr=json_)
    directory = Path(tempfile.mkdtemp(prefix="mainstay-demo-"))
    options = DemoOptions(
        directory=directory, port=_choose_port(port, console), steps=steps, kill_rank=kill_rank,
        kill_at_step=kill_at_step, seed=seed,
    )  # fmt: skip
    story, ended = DemoTimeline(), list[int]()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # Only noted: an error raised here could come between the start of a process and the note of its id.
        signal.signal(number, lambda got, _: ended.append(got))
    try:
        _play(options, story, console, ended, stay=not exit_)
    finally:
        if keep:
            console.print(f"kept {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    if json_:
        print(json.dumps(story.summary(), indent=2))
    sys.exit(0 if story.ok else 1)


def _play(options: DemoOptions, story: DemoTimeline, console: Console, ended: list[int], *, stay: bool) -> None:
    """All of the demo; a signal in ``ended`` ends it soon, and every process of it."""
    with ExitStack() as last:
        with TerminalView(story, console) as refresh:

            def refresh_until_ended() -> None:
                if ended:
                    sys.exit(128 + ended[0])
                refresh()

            scenario = Scenario(options, story, refresh_until_ended)
            last.callback(scenario.stack.close)
            try:
                scenario.run()
            except DemoError as error:
                story.error = str(error)
                story.add_line(story.error, "bad")
        console.print(summary_table(story))
        if stay and not story.error:
            link = scenario.stack.sign_in_link()  # the first one may be used, or over
            console.print(f"\nThe dashboard stays up: [bold cyan]{link}[/]\nCtrl-C ends everything.", soft_wrap=True)
            while not ended and scenario.stack.children.exit_code("service") is None:
                time.sleep(0.5)
    if ended and ended[0] != signal.SIGINT:
        sys.exit(128 + ended[0])


def _check(port: int | None, steps: int, kill_rank: int, kill_at_step: int) -> None:
    problems = {
        f"--kill-rank {kill_rank}: the demo has ranks 0 to 3": not 0 <= kill_rank <= 3,
        f"--kill-at-step {kill_at_step} must be at least 1": kill_at_step < 1,
        f"--port {port} must be from 0 to 65535": not 0 <= (port or 0) <= 65535,
        f"--steps {steps}: leave at least 20 steps after --kill-at-step {kill_at_step}": steps < kill_at_step + 20,
    }
    for problem, holds in problems.items():
        if holds:
            fail("demo", problem)


def _choose_port(asked: int | None, console: Console) -> int:
    if asked is None and not _port_is_free(DEFAULT_PORT):
        free = free_port()
        console.print(f"port {DEFAULT_PORT} is in use; using {free}")
        return free
    if asked is not None and asked and not _port_is_free(asked):
        fail("demo", f"--port {asked} is in use: stop the process there, or use --port 0 for a free port")
    return asked or (DEFAULT_PORT if asked is None else free_port())


def _port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
