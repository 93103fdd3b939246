"""Commands of ``mainstay checkpoint``, as tests call them."""

from __future__ import annotations

import pytest

from mainstay.recovery import checkpoint_cli


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of ``mainstay checkpoint``."""
    try:
        code = checkpoint_cli.checkpoint(words, result_action="return_value")
    except SystemExit as ended:
        code = ended.code
    said = capsys.readouterr()
    return int(code or 0), said.out, said.err
