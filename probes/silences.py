"""Which silences the service was told of and not yet of their end. Kept on disk: a restarted daemon ends them too.

A silence is about a device (its lane hangs) or about the node (the whole child was silent, or a source does not open),
and about one sampler and lane of it: each begins and ends by itself, and an end is only told of what had begun.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import msgspec

from probes.decoding import UNREADABLE
from probes.samplers.base import Happened

log = logging.getLogger(__name__)

_MAX: Final = 1024
"""A node has a few dozen lanes; a file that says otherwise is not ours."""


class Subject(msgspec.Struct, frozen=True):
    """What is silent. Without a lane it is the whole child, while it was busy with ``sampler``."""

    device: str | None
    sampler: str
    lane: str = ""


class Silences:
    """Begun and not ended. Used from one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open = self._load()

    def begin(self, silence: Subject) -> None:
        """The service is told of it now."""
        if silence not in self._open and len(self._open) < _MAX:
            self._open.add(silence)
            self._keep()

    def end(self, silence: Subject) -> bool:
        """Whether it had begun, so that its end is worth telling."""
        if silence not in self._open:
            return False
        self._open.discard(silence)
        self._keep()
        return True

    def of_the_child(self) -> list[Subject]:
        """Silences of a whole child that have not ended."""
        return [silence for silence in self._open if not silence.lane]

    def _load(self) -> set[Subject]:
        try:
            return set(msgspec.json.decode(self._path.read_bytes(), type=list[Subject])[:_MAX])
        except (OSError, *UNREADABLE):
            return set()

    def _keep(self) -> None:
        scratch = self._path.with_suffix(".new")
        try:
            scratch.write_bytes(msgspec.json.encode(sorted(self._open, key=str)))
            scratch.replace(self._path)
        except OSError as error:
            log.warning("which silences are open cannot be kept: %s", error)


def of(happened: Happened) -> Subject:
    """The silence that a child's message begins or ends."""
    data = happened.data
    return Subject(happened.device, str(data.get("sampler", "")), str(data.get("lane", "")))
