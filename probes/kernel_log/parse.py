"""One line of the kernel log to a fact, by ``patterns.toml``. Total: any bytes give a fact or nothing, in bounded time.

Every pattern has a needle, and most lines hold none; a line is cut before it is looked at, and no pattern has a
repetition inside a repetition, so every line costs microseconds.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Final

from mainstay.probes.core_types import EventKind, Severity

MAX_LINE: Final = 2048
"""Characters of a line that are read; the kernel itself ends a record's text at 1 KiB."""
_MAX_TEXT: Final = 400
"""Characters of a line that an event carries."""
_ABOUT_DEVICE: Final = frozenset({"pci", "interface", "uuid"})
"""Fields that say which device a fact is about: they stand beside the other data, not among the fields."""
_NUMBERS: Final = frozenset({
    "code", "pid", "uid", "gi", "cpu", "bank", "seconds", "milliseconds", "errors", "total", "switch", "link", "gpc",
    "tpc", "sm", "gpu", "function", "partition", "subpartition", "cross", "injected", "module", "queue", "lba",
    "sector", "block", "number", "index", "container_index", "watts", "level", "line", "cause",
    "anonymous_kilobytes",
})  # fmt: skip
_UNKNOWN: Final = frozenset({"", "<unknown>", "unknown", "<n/a>"})
_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e\u00a0-\ud7ff\ue000-\ufffd]")


@dataclass(frozen=True, slots=True)
class Pattern:
    """One kind of line. See ``patterns.toml``."""

    id: str
    event: EventKind
    severity: Severity
    needle: str
    regex: re.Pattern[str]
    example: str
    fault: str = ""
    what: str = ""
    cleared: bool = False
    catch_up: bool = False


@dataclass(frozen=True, slots=True)
class Detail:
    """What the words behind an XID's number say."""

    codes: frozenset[int]
    regex: re.Pattern[str]
    example: str


@dataclass(frozen=True, slots=True)
class Fact:
    """What a line says: the event that it makes, and its data as ``mainstay.probes.core_types`` describes it."""

    pattern: str
    kind: EventKind
    data: dict[str, Any] = field(default_factory=dict)
    catch_up: bool = False


def _document() -> dict[str, list[dict[str, Any]]]:
    return tomllib.loads((files(__package__) / "patterns.toml").read_text("utf-8"))


@cache
def patterns() -> tuple[Pattern, ...]:
    """Every pattern, in the order of the file.

    Raises:
        ValueError: the file that was shipped is not what it must be.
    """
    return tuple(
        Pattern(**(entry | {"event": EventKind(entry["event"]), "severity": Severity(entry["severity"]),
                            "regex": re.compile(entry["regex"])}))
        for entry in _document()["pattern"]
    )  # fmt: skip


@cache
def details() -> tuple[Detail, ...]:
    """What is read from the words of an XID."""
    return tuple(
        Detail(frozenset(entry["codes"]), re.compile(entry["regex"]), entry["example"])
        for entry in _document()["detail"]
    )


def parse(line: str | bytes) -> Fact | None:
    """Return the fact in the line; None when no pattern matches.

    Args:
        line: the text of one record, without its header. Bytes that are no UTF-8 are replaced.
    """
    text = line.decode("utf-8", "replace") if isinstance(line, bytes) else line
    text = _UNPRINTABLE.sub(" ", text[:MAX_LINE])
    for pattern in patterns():
        if pattern.needle in text and (found := pattern.regex.search(text)) is not None:
            return _fact(pattern, _fields(found), text.strip())
    return None


def _fields(found: re.Match[str]) -> dict[str, Any]:
    """Named groups that took part; ``name_`` is another place of ``name``."""
    fields: dict[str, Any] = {}
    for name, value in found.groupdict().items():
        if value is None or (value := value.strip(" '\"")) in _UNKNOWN:
            continue
        name = name.rstrip("_")  # noqa: PLW2901 - the same field from another place of the line
        if name not in _NUMBERS:
            fields[name] = value[:_MAX_TEXT]
        elif value.removeprefix("-").isascii() and value.removeprefix("-").isdigit() and len(value) <= 18:
            fields[name] = int(value)
    return fields


def _fact(pattern: Pattern, fields: dict[str, Any], text: str) -> Fact | None:
    data: dict[str, Any] = {"source": "kernel", "text": text[:_MAX_TEXT]}
    match pattern.event:
        case EventKind.XID | EventKind.SXID:
            if "code" not in fields:
                return None
            data |= _numbered(pattern, fields)
        case EventKind.KERNEL_FAULT:
            own = {name: value for name, value in fields.items() if name not in _ABOUT_DEVICE}
            data |= {"fault": pattern.fault, "severity": str(pattern.severity), "fields": own}
        case EventKind.GPU_LOST:
            data |= {"reason": data.pop("text")} | fields
        case EventKind.GPU_EVENT:
            data |= {"what": pattern.what} | fields
        case EventKind.LINK_DOWN | EventKind.LINK_UP:
            data |= {"link": fields.get("interface", "")} | fields
    data |= {name: fields[name] for name in _ABOUT_DEVICE if name in fields}
    if pattern.cleared:
        data["cleared"] = True
    return Fact(pattern.id, pattern.event, data, pattern.catch_up or _lasting(data))


def _numbered(pattern: Pattern, fields: dict[str, Any]) -> dict[str, Any]:
    """An XID or SXID: its words are the text, and what they tell goes beside the number."""
    rest = str(fields.pop("rest", ""))
    said: dict[str, Any] = {"text": rest} if rest else {}
    if pattern.event is EventKind.XID:
        for detail in details():
            if fields["code"] in detail.codes and (found := detail.regex.search(rest)) is not None:
                said |= _fields(found)
    said |= fields
    if (words := str(said.pop("words", "")).split()) != []:
        said |= dict(zip(("intrinfo", "status"), words, strict=False))
        said["words"] = " ".join(words)
    if (class_ := said.pop("class", None)) is not None:
        said["fatal"] = class_ == "Fatal"
    return said


_LASTING: Final = frozenset({48, 62, 64, 74, 79, 95, 109, 119, 120, 140, 143, 149, 154, 158, 167, 169, 172, 173})
"""XIDs after which a GPU stays as it is until it is reset or the machine is booted."""


def _lasting(data: dict[str, Any]) -> bool:
    """Whether a fact logged before the daemon began still holds now."""
    if data.get("code") in _LASTING and "fatal" not in data:
        return data["code"] != 154 or str(data.get("recovery", "")).casefold() != "none"
    return data.get("fatal") is True
