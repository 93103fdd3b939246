"""The outages that the node reported and whose end it did not report yet. A file keeps them across restarts.

An outage affects a device (its channel hangs) or the node (the child timed out, or a source does not open),
and one sampler and channel of it. Each starts and ends independently; the node reports the end of open outages only.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import msgspec

from mainstay.probes.decoding import read_if_whole
from mainstay.probes.durable_files import write_json
from mainstay.probes.samplers.base import SourceEvent

log = logging.getLogger(__name__)

_MAX: Final = 1024
"""A node has a few dozen channels; a larger file is not valid."""


class OutageSubject(msgspec.Struct, frozen=True):
    """What stopped answering. Without a channel it is the whole child, while it was busy with ``sampler``."""

    device: str | None
    sampler: str
    channel: str = ""


class OutageLog:
    """The outages that are open. Used from one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open = self._load()

    def open_outage(self, silence: OutageSubject) -> None:
        """Record an outage that is reported now."""
        if silence not in self._open and len(self._open) < _MAX:
            self._open.add(silence)
            self._keep()

    def end_outage(self, silence: OutageSubject) -> bool:
        """Return whether the outage was open, so that its end must be reported."""
        if silence not in self._open:
            return False
        self._open.discard(silence)
        self._keep()
        return True

    def outages_of_child(self) -> list[OutageSubject]:
        """Return the open outages of the whole sampler process."""
        return [silence for silence in self._open if not silence.channel]

    def _load(self) -> set[OutageSubject]:
        return set((read_if_whole(self._path, list[OutageSubject]) or [])[:_MAX])

    def _keep(self) -> None:
        try:
            write_json(self._path, sorted(self._open, key=str))
        except OSError as error:
            log.warning("cannot save the open outages: %s", error)


def subject_of(happened: SourceEvent) -> OutageSubject:
    """Return the subject of the outage that a child's message opens or ends."""
    data = happened.data
    return OutageSubject(happened.device, str(data.get("sampler", "")), str(data.get("channel", "")))
