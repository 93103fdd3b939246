r"""The three spellings of the kernel log to (text, time): kmsg records, journald's JSON, and lines of a plain file.

A kmsg record is ``priority,sequence,microseconds since boot,flags[,…];text`` with unprintable bytes as ``\xNN``,
followed by indented ``KEY=value`` lines. Flag ``c`` begins a line that records with flag ``+`` continue.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import msgspec

_ESCAPE: Final = re.compile(rb"\\x([0-9a-fA-F]{2})")
_HEADER: Final = re.compile(rb"(\d{1,10}),(\d{1,20}),(\d{1,20}),([^,;]{1,8})(?:,[^;]{0,256})?;")
_DICTIONARY: Final = re.compile(rb" [A-Z_]{1,32}=")
_PREFIX: Final = re.compile(
    r"^(?:<\d{1,3}>)?"
    r"(?:(?:\w{3} +\d{1,2} [\d:]{8}|\d{4}-\d\d-\d\dT[\d:.,+Z-]{8,24}) \S{1,255} kernel: ?)?"
    r"(?:\w+ *:\w+ *: )?"
    r"(?:\[[^\]]{1,40}\] ?|\d{4}-\d\d-\d\dT[\d:.,+Z-]{8,24} )?"
)


@dataclass(frozen=True, slots=True)
class Record:
    """One text of the log. ``boot_seconds``: since boot, None where the source does not say."""

    text: str
    boot_seconds: float | None = None
    sequence: int | None = None
    continues: bool = False
    """It is the rest of the line that the record before it began."""
    begins: bool = False
    """Records that continue it may follow."""


def from_kmsg(record: bytes) -> Record | None:
    """One record of /dev/kmsg; None when it is none.

    Who wrote it is not asked: only root can, and writing a line there is how a monitor is tried out.
    """
    found = _HEADER.match(record)
    if found is None:
        return None
    _, sequence, microseconds, flags = found.groups()
    text = record[found.end() :].split(b"\n", 1)[0]
    return Record(
        _unescape(text), int(microseconds) / 1e6, int(sequence), continues=b"+" in flags, begins=b"c" in flags
    )


def from_journal(line: bytes) -> Record | None:
    """One line of ``journalctl -o json``; None when it is none."""
    try:
        entry = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if not isinstance(entry, dict):
        return None
    message = _message(entry.get("MESSAGE"))
    at = entry.get("_SOURCE_MONOTONIC_TIMESTAMP") or entry.get("__MONOTONIC_TIMESTAMP")
    seconds = int(at) / 1e6 if isinstance(at, str) and at.isascii() and at.isdigit() and len(at) < 20 else None
    return None if message is None else Record(message, seconds)


def from_line(line: bytes) -> Record | None:
    """A line of a plain file: a kmsg record, or a text with or without the marks of dmesg and syslog before it."""
    if _HEADER.match(line) is not None:
        return from_kmsg(line)
    if _DICTIONARY.match(line) is not None:
        return None
    text = line.decode("utf-8", "replace").rstrip("\r\n")
    return Record(_PREFIX.sub("", text[:4096], count=1)) if text.strip() else None


def _message(message: Any) -> str | None:
    """A message of journald's: a list of numbers where it is no UTF-8, a list of texts where the field stands twice."""
    if isinstance(message, list) and message and all(isinstance(b, int) and 0 <= b < 256 for b in message):
        return bytes(message).decode("utf-8", "replace")
    if isinstance(message, list):
        message = next((text for text in message if isinstance(text, str)), None)
    return message if isinstance(message, str) else None


def _unescape(text: bytes) -> str:
    return _ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), text).decode("utf-8", "replace")
