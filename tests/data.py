"""Where the shared reference data lies: ``MAINSTAY_TEST_DATA``, or a folder beside the project. Nothing needs it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

DATA: Final = Path(os.environ.get("MAINSTAY_TEST_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")


def needs(*parts: str) -> pytest.MarkDecorator:
    """Skip the test, saying so, where this part of the data is absent."""
    path = DATA.joinpath(*parts)
    return pytest.mark.skipif(not path.exists(), reason=f"no reference data at {path}: set MAINSTAY_TEST_DATA")
