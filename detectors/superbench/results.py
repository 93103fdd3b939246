"""Results of many nodes as one matrix: SuperBench's ``results-summary.jsonl``, one flat JSON object a node.

Array first: nodes x metrics of float64 with NaN where a node has no number, so a rule is one pass over a block of it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from mainstay.detectors.base import Bools, Floats
from mainstay.detectors.cli_errors import InputError
from mainstay.detectors.superbench.names import by_benchmark
from mainstay.probes.decoding import UNREADABLE

LONGEST_LINE: Final = 64 << 20
"""Bytes of one node: SuperBench's own test nodes have 21 kB."""


@dataclass(frozen=True, slots=True)
class Results:
    """What was measured, read only."""

    nodes: tuple[str, ...]
    """In the order of the file."""
    metrics: tuple[str, ...]
    """In the order in which the file first names them."""
    values: Floats
    """(nodes, metrics); NaN where there is no number."""
    others: dict[tuple[int, int], Any] = field(default_factory=dict)
    """(node, metric) -> what stands there and is no number: null (None), a text, true or false, a list."""
    whole: Bools = field(default_factory=lambda: np.zeros(0, np.bool_))
    """(metrics,): every node has a JSON integer there. SuperBench formats means of such metrics differently."""

    @property
    def present(self) -> Bools:
        """(nodes, metrics): there is a number."""
        return ~np.isnan(self.values)

    def benchmarks(self) -> dict[str, list[int]]:
        """Benchmark -> places of its metrics."""
        return by_benchmark(self.metrics)


class _Table:
    """Rows as they come: columns are added when a node first names them."""

    def __init__(self) -> None:
        self.columns: dict[str, int] = {}
        self.places: dict[tuple[str, ...], npt.NDArray[np.intp]] = {}
        """Metrics of a node -> their columns: nodes of a fleet mostly name the same."""
        self.rows: list[tuple[npt.NDArray[np.intp], Floats]] = []
        self.others: dict[tuple[int, int], Any] = {}
        self.floats: set[int] = set()
        """Columns with something that is no integer."""
        self.before: tuple[npt.NDArray[np.intp], list[type]] = (np.zeros(0, np.intp), [])
        """Columns and kinds of the row before: the next one is mostly like it."""

    def add_row(self, row: dict[str, Any]) -> None:
        keys = tuple(row)
        places = self.places.get(keys)
        if places is None:
            places = np.array([self.columns.setdefault(key, len(self.columns)) for key in keys], np.intp)
            self.places[keys] = places
        self.rows.append((places, self._numbers(list(row.values()), places)))

    def _numbers(self, values: list[Any], places: npt.NDArray[np.intp]) -> Floats:
        kinds = list(map(type, values))
        if set(kinds) <= {int, float}:
            if self.before[0] is not places or self.before[1] != kinds:
                self.floats.update(places[[kind is float for kind in kinds]].tolist())
                self.before = (places, kinds)
            try:
                return np.array(values, np.float64)
            except OverflowError:
                pass
        return np.array([self._number(one, place) for one, place in zip(values, places.tolist(), strict=True)])

    def _number(self, value: Any, place: int) -> float:
        if type(value) is not int:
            self.floats.add(place)
        if not isinstance(value, int | float) or isinstance(value, bool):
            self.others[len(self.rows), place] = value
            return float(value) if isinstance(value, bool) else math.nan
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf

    def results(self, nodes: Sequence[str]) -> Results:
        values = np.full((len(nodes), len(self.columns)), np.nan)
        for number, (places, numbers) in enumerate(self.rows):
            values[number, places] = numbers
        whole = ~np.isnan(values).any(axis=0)
        whole[list(self.floats)] = False
        return Results(tuple(nodes), tuple(self.columns), values, self.others, whole)


def read_results(lines: Iterable[bytes]) -> Results:
    """Results from the lines of a JSONL file; empty lines are passed over.

    Raises:
        InputError: a line is no JSON object, names no node or one that was there before, or there is no node at all.
    """
    decoder = msgspec.json.Decoder(dict[str, Any])
    table = _Table()
    nodes: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        row = _object(line, number, decoder)
        node = _node(row, number)
        if node in nodes:
            raise InputError(f"line {number}: node {node!r} stands already in line {nodes[node]}")
        nodes[node] = number
        table.add_row(row)
    if not nodes:
        raise InputError("holds no node: one JSON object a line is expected")
    return table.results(list(nodes))


def _object(line: bytes, number: int, decoder: msgspec.json.Decoder[dict[str, Any]]) -> dict[str, Any]:
    if len(line) > LONGEST_LINE:
        raise InputError(f"line {number}: longer than {LONGEST_LINE >> 20} MiB")
    try:
        return decoder.decode(line)
    except UNREADABLE:
        pass
    try:  # NaN and Infinity, which Python writes and JSON does not know
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"line {number}: no JSON object ({error})") from error
    if not isinstance(row, dict):
        raise InputError(f"line {number}: no JSON object but {type(row).__name__}")
    return row


def _node(row: dict[str, Any], number: int) -> str:
    node = row.pop("node", None)
    if not isinstance(node, str | int) or isinstance(node, bool) or node == "":
        raise InputError(f"line {number}: 'node' must name the node")
    return str(node)
