"""A recording from a running service: its stored frames, unpacked into tables as they come."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
import numpy as np

from mainstay.detectors.recording import files
from mainstay.detectors.recording.model import DeviceInfo, FleetInfo, JobInfo, NodeInfo
from mainstay.detectors.recording.tables import Tables
from mainstay.probes.frame import Axis, Frame, check_shape, decode
from mainstay.probes.signals import WIDE_MISSING, Catalog, SignalSource, catalog, names
from mainstay.probes.transport import Transport

_NEXT = "X-Mainstay-Next"
_PAGE = 200
_READ_SECONDS = 120.0


def append_frame(frame: Frame, made: Catalog, tables: Tables) -> None:
    """One frame's values as rows.

    Raises:
        FrameError: its payload does not fit its catalog.
    """
    check_shape(frame, narrow=len(made.narrow), wide=len(made.wide))
    shape = (len(frame.entities), -1, frame.samples)
    narrow = np.frombuffer(frame.values, "<f4").reshape(shape).astype(np.float64)
    counts = np.frombuffer(frame.wide, "<i8").reshape(shape)
    wide = np.where(counts == WIDE_MISSING, np.nan, counts.astype(np.float64))
    # [entity, signal, sample] → rows of one entity and sample
    values = np.concatenate([narrow, wide], axis=1).transpose(0, 2, 1).reshape(-1, len(made.narrow) + len(made.wide))
    columns = {name: values[:, place] for place, name in enumerate((*made.narrow, *made.wide))}
    known = np.flatnonzero(np.isfinite(values).any(axis=1))
    who = np.repeat(np.arange(len(frame.entities)), frame.samples)[known]
    grid = np.tile(frame.t0 + frame.dt * np.arange(frame.samples), len(frame.entities))[known]
    told = {name: column[known] for name, column in columns.items()}
    if frame.axis is Axis.STEP:
        _take_steps(frame, tables, who, grid, told)
    elif set(columns) <= set(files.COLUMNS[files.PROGRESS]):
        ranks = np.array([int(entity) for entity in frame.entities])[who]
        tables.add_columns(files.PROGRESS, {"job": [frame.subject] * len(who), "rank": ranks, "time": grid, **told})
    else:
        _take_samples(frame, tables, who, grid, told)


def _take_steps(frame: Frame, tables: Tables, who: Any, grid: Any, told: dict[str, Any]) -> None:
    keys = {"job": [frame.subject] * len(who), "step": grid.astype(np.int64)}
    keys["time"] = told.get("step_end_nanoseconds", np.full(len(who), np.nan)) / 1e9
    if ">" in frame.entities[0]:
        ends = np.array([[int(end) for end in entity.split(">")] for entity in frame.entities])[who]
        tables.add_columns(files.PAIRS, {**keys, "source": ends[:, 0], "target": ends[:, 1], **told})
    else:
        ranks = np.array([int(entity) for entity in frame.entities])[who]
        tables.add_columns(files.STEPS, {**keys, "rank": ranks, **told})


def _take_samples(frame: Frame, tables: Tables, who: Any, grid: Any, told: dict[str, Any]) -> None:
    for name, values in told.items():
        there = np.isfinite(values)
        count = int(there.sum())
        if count:
            devices = [frame.entities[place] for place in who[there]]
            tables.add_columns(
                files.SAMPLES,
                {
                    "time": grid[there], "node": [frame.subject] * count, "device": devices,
                    "signal": [name] * count, "value": values[there],
                },
            )  # fmt: skip


class RecordingSource:
    """The service as ``record`` sees it."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        known = [(source,) for source in SignalSource] + [(SignalSource.HOST, SignalSource.GPU)]
        ours = [catalog(*sources) for sources in known]
        ours.append(Catalog(names(SignalSource.PAIR, wide=False), ("step_end_nanoseconds",)))
        self._catalogs = {made.digest: made for made in ours}

    def pages(self, path: str, **query: Any) -> Iterator[dict[str, Any]]:
        """All items of a list."""
        cursor = None
        while True:
            asked = {**query, "limit": _PAGE, **({"cursor": cursor} if cursor else {})}
            page = self._transport.json("GET", f"{path}?{urlencode(asked)}")
            yield from page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                return

    def frames(self, start: float, stop: float, subject: str | None) -> Iterator[Frame]:
        """Stored frames, oldest first."""
        asked: dict[str, Any] = {"start": start, "stop": stop, **({"subject": subject} if subject else {})}
        while True:
            answer = self._transport.request("GET", f"/telemetry/blocks?{urlencode(asked)}", read_s=_READ_SECONDS)
            yield from map(decode, _split(answer.data))
            following = answer.headers.get(_NEXT)
            if following is None:
                return
            asked["after"] = following

    def catalog(self, digest: str) -> Catalog:
        if digest not in self._catalogs:
            told = self._transport.json("GET", f"/telemetry/catalogs/{digest}")
            self._catalogs[digest] = Catalog(tuple(told["narrow"]), tuple(told["wide"]))
        return self._catalogs[digest]


def _split(body: bytes) -> Iterator[bytes]:
    place = 0
    while place + 4 <= len(body):
        (size,) = struct.unpack_from("<I", body, place)
        yield body[place + 4 : place + 4 + size]
        place += 4 + size


def record(source: RecordingSource, directory: Path, start: float, stop: float, job: str | None) -> dict[str, int]:
    """Write what the service holds of ``[start, stop)``; rows of each table.

    Args:
        source: the service.
        directory: is made; must hold no recording.
        start: Unix seconds.
        stop: Unix seconds.
        job: only this job, the nodes that it runs on, and the events of both; None for everything.

    Raises:
        ValueError: there is no such job.
        FileExistsError: the directory holds a recording.
        TransportError: the service does not answer, or refuses.
        FrameError: a stored frame cannot be read.
    """
    if (directory / files.FLEET).exists():
        raise FileExistsError(f"{directory} holds a recording already")
    jobs, nodes = _scope(source, start, stop, job)
    subjects = {one["id"] for one in jobs} | {node["name"] for node in nodes}
    directory.mkdir(parents=True, exist_ok=True)
    with Tables(directory) as tables:
        for frame in source.frames(start, stop, None):
            if frame.subject in subjects:
                append_frame(frame, source.catalog(frame.catalog), tables)
        _events(source, tables, start, stop, subjects if job else None)
    info = _fleet(jobs, nodes, start, stop)
    files.write_fleet(directory / files.FLEET, info)
    return tables.rows


def _scope(
    source: RecordingSource, start: float, stop: float, job: str | None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Jobs that ran in that time, and nodes: of one job, or all."""
    jobs = [one for one in source.pages("/jobs") if one["id"] == (job or one["id"]) and _overlaps(one, start, stop)]
    if job is not None and not jobs:
        raise ValueError(f"the service knows no job {job!r} that ran in that time")
    within = {place["node"] for one in jobs for place in one["topology"]["ranks"]} if job else None
    return jobs, [node for node in source.pages("/nodes") if within is None or node["name"] in within]


def _overlaps(job: dict[str, Any], start: float, stop: float) -> bool:
    return bool(job["started_at"] < stop and (job["finished_at"] is None or job["finished_at"] >= start))


def _events(source: RecordingSource, tables: Tables, start: float, stop: float, subjects: set[str] | None) -> None:
    found = [event for event in source.pages("/events", since=start) if event["time"] < stop]
    mine = [e for e in found if subjects is None or {e["node"], e["job"]} & subjects]
    rows = sorted(mine, key=lambda event: (event["time"], event["id"]))
    if rows:
        columns: dict[str, Any] = {name: [row.get(name) for row in rows] for name in files.EVENT_SCHEMA.names}
        columns["data"] = [msgspec.json.encode(row["data"]).decode() for row in rows]
        tables.add_columns(files.EVENTS, columns)


def _fleet(jobs: list[dict[str, Any]], nodes: list[dict[str, Any]], start: float, stop: float) -> FleetInfo:
    return FleetInfo(
        source="mainstay record",
        start=start,
        stop=stop,
        nodes=tuple(
            NodeInfo(
                name=node["name"], cohort=node["cohort"], rack=node["rack"] or None, switches=tuple(node["switches"])
            )
            for node in nodes
        ),
        devices=tuple(
            DeviceInfo(node=node["name"], id=device["id"], model=device["model"] or "", serial=device["serial"])
            for node in nodes
            for device in node["devices"]
        ),
        jobs=tuple(JobInfo(id=one["id"], ranks=tuple(map(_place, one["topology"]["ranks"]))) for one in jobs),
    )


def _place(rank: dict[str, Any]) -> dict[str, int | str | None]:
    return {key: rank[key] for key in ("rank", "node", "device", "dp", "pp", "tp")}
