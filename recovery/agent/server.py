"""The agent process, ``python -m recovery.agent``: see ``main``. Bodies follow."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Serve one node of one job until ended.

    ``--job J --node N --socket PATH --listen HOST:PORT --token-file F`` and optionally ``--shm-dir D --parity-every K
    --disk-every D --checkpoint-dir DIR --owner-pid PID``. Port 0 takes a free one. When ready, one line of JSON goes to
    stdout: ``{"ready": true, "node", "socket", "endpoint": "host:port", "pid"}``. Ends (files stay) on SIGTERM, and
    when its owner (default: the parent process) is gone.
    """
    raise NotImplementedError
