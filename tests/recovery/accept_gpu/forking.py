"""The process that checks are forked from, as ``recovery/accept_gpu/process.py``, whose jobs begin with torch imported.

``forking.py PYTHON``: a check starts its jobs with ``PYTHON``.
"""

from __future__ import annotations

import sys

from mainstay.recovery.accept_gpu import process

if __name__ == "__main__":
    sys.executable = sys.argv[1]
    process.serve()
