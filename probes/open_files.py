"""The limit of open files: a connection is one, and the usual 1,024 are fewer than a large fleet has."""

from __future__ import annotations

import logging
import resource
from typing import Final

log = logging.getLogger("mainstay.open_files")

MOST: Final = 1 << 20
"""Linux's own default for the hard limit; some programs look at each number below the limit."""


def raise_open_file_limit(needed: int = MOST) -> None:
    """Raise the soft limit of this process, and of those that it starts, as far as the hard limit allows.

    Args:
        needed: open files at most. The log has a warning where fewer than that many, if given, are possible.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    possible = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
    if possible > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (possible, hard))
    if possible < needed < MOST:
        log.warning("%d open files may be needed, and the hard limit is %d: raise it (ulimit -Hn)", needed, hard)
