"""What a step directory says of the upload of the step."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

import msgspec

from mainstay.recovery.checkpoint.retention import RetentionPolicy

UPLOAD: Final = ".upload.json"
"""In a step: its ``UploadState``. Who uploads the step touches it at least each minute."""
CLAIM: Final = ".upload-{}.g{}"
"""In a step: the node that uploads the part of a rank and a generation, which touches it likewise. Empty: the disk
refused the name."""
LEFT: Final = "another node"
"""In the place of that name: the one that has the part in a directory of its own."""
UPLOAD_STALE_SECONDS: Final = 600.0
"""Without a touch, whoever uploaded was killed: a request gives up much earlier."""


class UploadState(msgspec.Struct, frozen=True):
    """Who uploads a step, or has uploaded it."""

    url: str
    node: str
    check: str = ""
    """Of the manifest here, or of the one there if there is none here; empty: the step is not complete there yet."""


class UploadProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the uploads of one node do."""

    problem: str = ""
    """Why they fail; empty is good."""
    since: float = 0.0
    """Unix seconds since when they fail."""
    can_send: bool = True
    """It is not known to fail before all its parts are there."""
    is_uploading: bool = False
    """It sends parts of a step."""
    seconds: float = 0.0
    """That it sent parts of the last step; 0: none yet."""


class UploadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What one process uploads."""

    directory: str
    url: str
    job: str
    """Of its last two runs; empty: all runs of any job."""
    node: str
    policy: RetentionPolicy | None
    """What is kept at the upload level; None: everything."""
    rate: float = 0.0
    """Bytes per second; 0: no limit."""


def is_copy(step: Path, part: tuple[int, int]) -> bool:
    """Whether the part is another node's to send; by rank and generation."""
    with contextlib.suppress(OSError):
        return (step / CLAIM.format(*part)).read_text() == LEFT
    return False
