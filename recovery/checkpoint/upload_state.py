"""What a step directory says of the upload of the step."""

from __future__ import annotations

from typing import Final

import msgspec

UPLOAD: Final = ".upload.json"
"""In a step: its ``UploadState``. Who uploads the step touches it at least each minute."""
CLAIM: Final = ".upload-{}.g{}"
"""In a step: the node that uploads the part of a rank and a generation, which touches it likewise. Empty: another one,
which has the part in a directory of its own."""
UPLOAD_STALE_SECONDS: Final = 600.0
"""Without a touch, whoever uploaded was killed: a request gives up much earlier."""


class UploadState(msgspec.Struct, frozen=True):
    """Who uploads a step, or has uploaded it."""

    url: str
    node: str
    check: str = ""
    """Of the manifest here, or of the one there if there is none here; empty: the step is not complete there yet."""
    seconds: float = 0.0
    """That the upload took; 0: none yet, another node ended it, or an older release made it."""
