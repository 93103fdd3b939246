"""Small JSON files that processes of a job leave for one another in a state directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from mainstay.probes.durable_files import replace_file


def write_json(path: Path, content: Any) -> None:
    """Write a file so that a reader finds all of it, or what was there before.

    Raises:
        OSError: it cannot be written.
    """
    replace_file(path, msgspec.json.encode(content))
