"""Why the daemon ends: because someone stopped it, or because the machine goes down. The service judges them apart."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

_ASK_S: Final = 1.0
"""systemctl answers in milliseconds; a stop has three seconds to deliver everything."""


def _systemctl() -> str:
    """What systemd says of the whole machine: ``running``, ``degraded``, ``stopping``...; empty when it does not."""
    try:
        done = subprocess.run(
            ["systemctl", "is-system-running"], capture_output=True, text=True, timeout=_ASK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def shutdown_reason(run: Path = Path("/run"), ask: Callable[[], str] = _systemctl) -> str:
    """``shutdown`` when the machine is going down, else ``stopped``.

    ``run`` is where systemd keeps its state; where it has none (a container) the answer is ``stopped``.
    """
    if not (run / "systemd" / "system").is_dir():
        return "stopped"
    return "shutdown" if ask() == "stopping" else "stopped"
