"""A process that ended, or a node whose launcher connection broke: facts that need no statistics.

An exit that was asked for is no finding. What is not said to be expected is unexpected, and a missing exit code is
reported as unknown, never as clean. The finding holds until the job recovers or ends.
"""

from __future__ import annotations

import signal
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from detectors.base import EventDetector
from detectors.finding import Entity, Evidence, Finding, FindingKind
from probes.words import Event, EventKind, Severity

_KIND = {EventKind.PROCESS_EXIT: FindingKind.PROCESS_EXIT, EventKind.NODE_LOST: FindingKind.NODE_LOST}
_ERROR_SHOWN = 200  # characters of an exception's last line: a title, not a log
_ENDS = {EventKind.RECOVERED: "The job recovered.", EventKind.JOB_FINISHED: "The job ended."}


class ExitDetector(EventDetector):
    """Says ``process_exit`` and ``node_lost`` from events, at once and with certainty."""

    name = "exit"
    kinds = frozenset(_KIND.values())

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config:
        remembered: int = 4096
        """Event ids and open findings kept: a burst of a thousand ranks, delivered four times."""

    def __init__(self, config: Config | None = None) -> None:
        self.config: ExitDetector.Config = config or self.Config()
        self.reset()

    def reset(self) -> None:
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._open: OrderedDict[str, Finding] = OrderedDict()

    def update(self, events: Sequence[Event]) -> list[Finding]:
        """See ``EventDetector.update``."""
        found: list[Finding] = []
        for event in events:
            if event.id in self._seen:
                continue
            self._seen[event.id] = None
            if len(self._seen) > self.config.remembered:
                self._seen.popitem(last=False)
            found.extend(self._close(event) if event.kind in _ENDS else self._judge(event))
        return found

    def _judge(self, event: Event) -> list[Finding]:
        if event.kind not in _KIND or event.data.get("expected") is True:
            return []
        entity = _entity(event)
        if entity is None:
            return []  # ingest refuses such events; there is nobody to speak about
        finding = Finding(
            kind=_KIND[event.kind],
            entity=entity,
            time=event.time,
            severity=Severity.CRITICAL,
            detector=self.name,
            # a reporter that does not say whether the exit was asked for leaves a small doubt
            confidence=0.9 if event.kind is EventKind.PROCESS_EXIT and "expected" not in event.data else 1.0,
            evidence=_evidence(event),
            event=event.id,
        )
        self._open[finding.key] = finding
        if len(self._open) > self.config.remembered:
            self._open.popitem(last=False)
        return [finding]

    def _close(self, event: Event) -> list[Finding]:
        """The job is whole again or over: what was said about it no longer holds."""
        mine = [key for key, f in self._open.items() if f.entity.job is not None and f.entity.job == event.job]
        evidence = Evidence(summary=_ENDS[event.kind])
        return [
            replace(self._open.pop(key), active=False, time=event.time, evidence=evidence, event=event.id)
            for key in mine
        ]


def _entity(event: Event) -> Entity | None:
    if event.node is None and event.device is None and event.job is None and event.rank is None:
        return None
    return Entity(node=event.node, device=event.device, job=event.job, rank=event.rank)


def _evidence(event: Event) -> Evidence:
    if event.kind is EventKind.NODE_LOST:
        why = event.data.get("reason")
        return Evidence(summary=f"Node {event.node} is lost: {why or 'its connection broke and stayed broken'}.")
    where = f" on node {event.node}" if event.node else ""
    who = f"Rank {event.rank}" if event.rank is not None else "A process"
    job = f" of job {event.job}" if event.job else ""
    numbers = {key: float(event.data[key]) for key in ("pid", "exit_code", "signal") if _is_number(event.data.get(key))}
    error = event.data.get("error")
    why = f": {error.strip().splitlines()[-1][:_ERROR_SHOWN]}" if isinstance(error, str) and error.strip() else ""
    return Evidence(summary=f"{who}{job} {how_it_ended(event.data)}{where}{why.rstrip('.')}.", numbers=numbers)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def how_it_ended(data: dict[str, Any]) -> str:
    """A process's end in words, from ``signal`` or ``exit_code`` (negative, or above 128, means a signal).

    >>> how_it_ended({"exit_code": -9})
    'was killed by SIGKILL (signal 9)'
    >>> how_it_ended({"exit_code": 1})
    'exited with code 1'
    """
    number, code = data.get("signal"), data.get("exit_code")
    if isinstance(number, str):
        return f"was killed by {number}"
    if _is_number(number):
        return f"was killed by {_signal_name(int(number or 0))}"
    if not _is_number(code):
        return "ended in an unknown way"
    code = int(code or 0)
    if code < 0:
        return f"was killed by {_signal_name(-code)}"
    # 128 + n is how a shell reports a child killed by signal n; the process may also have chosen it
    hint = f", which a shell gives for {_signal_name(code - 128)}" if 128 < code <= 128 + 64 else ""
    return f"exited with code {code}{hint}"


def _signal_name(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"
