"""The worker: connects to its launcher, waits for a rank, runs the script. A warm standby is a worker that waits."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from pathlib import Path

from mainstay.recovery.protocol.worker_messages import Assign, ScriptFailed, WorkerHello
from mainstay.recovery.sdk.launcher_client import LauncherClient, LauncherClientError, install

_TRACEBACK_CHARACTERS = 8192


def serve() -> int:
    """Wait for a rank and run its script. Returns its exit code, unless it calls ``sys.exit``."""
    try:
        link = LauncherClient.connect(Path(os.environ.pop("MAINSTAY_LAUNCHER_SOCKET")))
    except LauncherClientError:
        return 0  # the launcher is ending: it does not need this standby any more
    _first_backward()
    link.send(WorkerHello(token=os.environ.pop("MAINSTAY_LAUNCHER_TOKEN"), pid=os.getpid()))
    order = link.wait_assignment()
    install(link)
    os.environ.update(order.env)
    return _run(order, link)


def _first_backward() -> None:
    """The autograd engine and the math library set themselves up at first use: pay that before there is a hurry."""
    import torch  # noqa: PLC0415 - a standby imports it here, a fork server's child has it

    weight = torch.nn.Linear(8, 8)
    weight(torch.zeros(2, 8)).sum().backward()


def _run(order: Assign, link: LauncherClient) -> int:
    sys.argv = [order.script, *order.argv]
    try:
        if order.module:
            sys.path.insert(0, str(Path.cwd()))
            runpy.run_module(order.script, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(order.script).resolve().parent))
            runpy.run_path(order.script, run_name="__main__")
    except Exception as error:  # noqa: BLE001 - the boundary to user code: any error is evidence
        text = traceback.format_exc()
        print(text, file=sys.stderr, end="")  # noqa: T201 - a script's traceback belongs on stderr
        link.send(ScriptFailed(error=f"{type(error).__name__}: {error}"[:500], traceback=text[-_TRACEBACK_CHARACTERS:]))
        return 1
    return 0
