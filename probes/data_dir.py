"""Where a node daemon keeps its state. This module imports no package, so ``mainstay doctor`` can always use it."""

from __future__ import annotations

import os
from pathlib import Path


def default_data_dir() -> Path:
    """Return the system's state directory for root, and the user's own for anyone else."""
    if os.geteuid() == 0:
        return Path("/var/lib/mainstay/node")
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "mainstay" / "node"
