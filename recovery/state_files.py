"""Small JSON files that processes of a job leave for one another in a state directory."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from mainstay.probes.decoding import UNREADABLE
from mainstay.probes.durable_files import replace_file

T = TypeVar("T")

log = logging.getLogger("mainstay.coordinator")


def write_json(path: Path, content: Any) -> None:
    """Write a file so that a reader finds all of it, or what was there before.

    Raises:
        OSError: it cannot be written.
    """
    replace_file(path, msgspec.json.encode(content))


def write_request(directory: Path, request_id: str, request: msgspec.Struct) -> Path:
    """Leave a request for the coordinator, which sees it within a second or so; returns its file.

    Raises:
        OSError: it cannot be written.
    """
    directory.mkdir(exist_ok=True, mode=0o700)
    path = directory / f"{request_id}.json"
    write_json(path, request)
    return path


def read_requests(directory: Path, kind: type[T], max_bytes: int, problem: str) -> list[T]:
    """Requests that lie in ``directory``, oldest name first; the files are gone then, good or bad.

    Args:
        directory: there need be none.
        kind: of the requests.
        max_bytes: that are read of a file.
        problem: what the log says of a file that is no request.
    """
    found = []
    for path in sorted(directory.glob("*.json")):
        try:
            with path.open("rb") as file:
                body = file.read(max_bytes)
            path.unlink()
            found.append(msgspec.json.decode(body, type=kind))
        except (OSError, *UNREADABLE) as error:
            log.warning("%s %s: %s", path, problem, error)
    return found
