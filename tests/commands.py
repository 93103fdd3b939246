"""``mainstay`` commands in this process: what a new interpreter imports for each costs more than what they do."""

from __future__ import annotations

import io
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from unittest.mock import patch

from mainstay import cli


def run_here(*arguments: object) -> subprocess.CompletedProcess[str]:
    """What ``mainstay`` with ``arguments`` would print and return."""
    words = ["mainstay", *map(str, arguments)]
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with patch.object(sys, "argv", words), redirect_stdout(out), redirect_stderr(err):
        try:
            cli.main()
        except SystemExit as ended:
            code = ended.code
    if isinstance(code, str):  # the interpreter prints it
        err.write(f"{code}\n")
    number = code if isinstance(code, int) else int(code is not None)
    return subprocess.CompletedProcess(words, number, out.getvalue(), err.getvalue())
