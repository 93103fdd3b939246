"""Dumps of PyTorch's flight recorder: what each rank's last collectives were.

Read as PyTorch writes them (2.4 to 2.13): JSON of ``_dump_fr_trace_json`` with numbers as text, pickles of
``_dump_nccl_trace`` and its files, or the same as plain JSON. Every field may be missing: rings are short, ranks die.

A process group's id (``pg_id``) is local to a rank, so groups are known by description and members, where the dump
tells them (NCCL does, gloo does not), else by name and description. Which local id is which group the entries tell; a
rank whose ring holds none of a group's calls numbers its groups in order of creation, as their names do.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mainstay.detectors.hang import safe_pickle

RanksKnown = tuple[int, ...]


class DumpError(ValueError):
    """What was given is no flight-recorder dump; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A process group as all its members know it."""

    name: str
    desc: str
    ranks: RanksKnown = ()
    """Global ranks, or empty where the dump does not tell."""
    ordinal: int = 0
    """Which of a rank's groups with this description and these members, in order of creation."""

    @property
    def key(self) -> tuple[object, ...]:
        return (self.desc, self.ranks, self.ordinal) if self.ranks else (self.name, self.desc)

    @property
    def label(self) -> str:
        return self.desc if self.desc and self.desc != "undefined" else f"group {self.name or '?'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Numbers of the last call of a group on one rank; -1 = unknown or none."""

    enqueued: int
    started: int
    completed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One entry of a ring."""

    pg: str
    """Local id of the group."""
    seq: int
    p2p_seq: int
    p2p: bool
    name: str
    """``all_reduce``, ``send 0->1``; the backend's prefix is left out."""
    state: str
    """scheduled, started or completed."""
    done: bool
    sizes: tuple[str, str]
    """Of input and output, as text: compared, never computed with."""
    dtypes: tuple[str, str]
    time: float
    """When it was created, Unix seconds; 0 where missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """What one rank recorded."""

    rank: int
    version: str
    groups: dict[str, Group]
    """Local id -> group, as far as it is known."""
    status: dict[str, Status]
    """Local id -> counters."""
    calls: tuple[Call, ...]
    """In order of creation."""
    listed: tuple[Group, ...] = ()
    """All groups that the rank belongs to, in order of creation, where the dump tells."""


def decode(data: bytes) -> Any:
    """JSON or a plain pickle as it came from a file.

    Raises:
        DumpError: neither, or a pickle that asks for code; the message says which.
    """
    head = data.lstrip()[:1]
    try:
        return json.loads(data) if head in {b"{", b"["} else safe_pickle.load(data)
    except safe_pickle.PickleError as error:
        raise DumpError(f"not a flight-recorder dump: {error}") from error
    except (ValueError, RecursionError) as error:
        raise DumpError(f"broken JSON: {error}") from error


def dumps_of(content: Any, rank: int | None = None) -> dict[int, Dump]:
    """The dumps within what was decoded: one rank's, or a mapping ``dumps`` (or plain) of rank to dump.

    Raises:
        DumpError: no dump in it, or a rank's dump without its number.
    """
    if not isinstance(content, Mapping):
        raise DumpError("no flight-recorder dump in it (expected an object with entries or pg_status)")
    if "entries" in content or "pg_status" in content:
        number = _int(content.get("rank"), -1) if rank is None else rank
        if number < 0:
            raise DumpError("which rank it is stands neither in the file's name nor in it")
        return {number: parse(content, number)}
    inner = content.get("dumps", content)
    if isinstance(inner, Mapping):
        ranked = {_int(key, -1): value for key, value in inner.items() if isinstance(value, Mapping)}
        found = {
            key: value for key, value in ranked.items() if key >= 0 and ("entries" in value or "pg_status" in value)
        }
        if found:
            return {key: parse(value, key) for key, value in sorted(found.items())}
    raise DumpError("no flight-recorder dump in it (expected entries or pg_status)")


def parse(raw: Mapping[str, Any], rank: int) -> Dump:
    """One rank's dump; what is missing or malformed in it is left out."""
    entries = [entry for entry in _list(raw.get("entries")) if isinstance(entry, Mapping)]
    calls = sorted((_call(entry) for entry in entries), key=lambda call: (call.time, call.seq, call.p2p_seq))
    status = {
        str(pg): Status(
            enqueued=_int(of.get("last_enqueued_collective")),
            started=_int(of.get("last_started_collective")),
            completed=_int(of.get("last_completed_collective")),
        )
        for pg, of in _mapping(raw.get("pg_status")).items()
        if isinstance(of, Mapping)
    }
    listed = _listed(_mapping(raw.get("pg_config")))
    return Dump(
        rank=rank,
        version=str(raw.get("version", "")),
        groups=_named(entries, listed, status),
        status=status or _counted(calls),
        calls=tuple(calls),
        listed=listed,
    )


def _listed(config: Mapping[Any, Any]) -> tuple[Group, ...]:
    """Groups of ``pg_config`` in order of creation: their names are numbers that count up."""
    found, seen = [], Counter[tuple[object, ...]]()
    rows = [(str(key), of) for key, of in config.items() if isinstance(of, Mapping)]
    for key, of in sorted(rows, key=lambda row: (_int(row[1].get("name", row[0]), 1 << 30), row[0])):
        name, desc, ranks = str(of.get("name", key)), str(of.get("desc", "")), _ranks(of.get("ranks"))
        if not name and not ranks:
            continue  # gloo writes one empty entry
        ordinal = seen[desc, ranks]
        seen[desc, ranks] += 1
        found.append(Group(name=name, desc=desc, ranks=ranks, ordinal=ordinal))
    return tuple(found)


def _named(
    entries: Iterable[Mapping[str, Any]], listed: tuple[Group, ...], status: Mapping[str, Status]
) -> dict[str, Group]:
    """Local id -> group."""
    by_name = {(group.name, group.desc): group for group in listed}
    told: dict[str, Group] = {}
    for entry in entries:
        name, desc = ([*map(str, _list(entry.get("process_group"))), "", ""])[:2]
        told[str(entry.get("pg_id", ""))] = by_name.get((name, desc), Group(name=name, desc=desc))
    ids = sorted(status, key=lambda pg: _int(pg, 1 << 30))
    if len(ids) == len(listed):
        counted = dict(zip(ids, listed, strict=True))
        if all(counted[pg].key == group.key for pg, group in told.items() if pg in counted):
            return counted | told
    return told


def _counted(calls: Iterable[Call]) -> dict[str, Status]:
    """Counters from the entries of an older PyTorch, which writes no ``pg_status``."""
    found: dict[str, Status] = {}
    for call in calls:
        number = call.p2p_seq if call.p2p else call.seq
        old = found.get(call.pg, Status(enqueued=-1, started=-1, completed=-1))
        done = max(old.completed, number) if call.done else old.completed if old.completed >= 0 else number - 1
        found[call.pg] = Status(enqueued=max(old.enqueued, number), started=-1, completed=done)
    return found


def _call(entry: Mapping[str, Any]) -> Call:
    state = str(entry.get("state", ""))
    created = entry.get("time_created_ns", entry.get("time_created_us"))
    scale = 1e9 if "time_created_ns" in entry else 1e6
    text = str(entry.get("profiling_name", ""))
    return Call(
        pg=str(entry.get("pg_id", "")),
        seq=_int(entry.get("collective_seq_id", entry.get("seq_id"))),
        p2p_seq=_int(entry.get("p2p_seq_id")),
        p2p=_bool(entry.get("is_p2p")),
        name=text.split(":", 1)[-1],
        state=state,
        done=state == "completed" or _bool(entry.get("retired")),
        sizes=(_text(entry.get("input_sizes")), _text(entry.get("output_sizes"))),
        dtypes=(_text(entry.get("input_dtypes")), _text(entry.get("output_dtypes"))),
        time=_int(created, 0) / scale,
    )


def _text(value: Any) -> str:
    return json.dumps(value, default=str, separators=(",", ":")) if value not in (None, [], ()) else ""


def _bool(value: Any) -> bool:
    return value is True or (isinstance(value, str) and value.lower() == "true")


def _int(value: Any, missing: int = -1) -> int:
    """Numbers come as numbers or as text."""
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return missing


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _ranks(value: Any) -> RanksKnown:
    """``[0, 1]`` or the same as text."""
    if isinstance(value, str):
        value = [part for part in value.strip("[] ").split(",") if part.strip()]
    return tuple(rank for rank in (_int(part) for part in _list(value)) if rank >= 0)
