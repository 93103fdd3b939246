"""A process that ended, or a node whose launcher connection broke: facts that need no statistics.

Its last words and the driver's codes of the same half minute say what the end means
(``mainstay.detectors.job.exit_taxonomy``): cause, recommended action, and whether it only follows from a peer's. When
such an event comes later, the detector reports the finding again.

An exit that was asked for is no finding. An exit without a mark as expected is unexpected, and a missing exit code is
reported as unknown, never as clean. The finding holds until the job recovers or ends.
"""

from __future__ import annotations

import signal
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

from mainstay.detectors.base import EventDetector
from mainstay.detectors.event_data import number, whole_number
from mainstay.detectors.finding import Entity, Evidence, Finding, FindingKind
from mainstay.detectors.job.exit_taxonomy import ExitContext, ExitDiagnosis, classify
from mainstay.probes.core_types import Event, EventKind, Severity
from mainstay.probes.recent import Recent

_KIND = {EventKind.PROCESS_EXIT: FindingKind.PROCESS_EXIT, EventKind.NODE_LOST: FindingKind.NODE_LOST}
_TELLS = frozenset({EventKind.XID, EventKind.GPU_LOST, EventKind.KERNEL_FAULT})
"""Facts of a node that may say why its processes end."""
_ERROR_SHOWN = 200  # characters of an exception's last line: a title, not a log
_ENDS = {EventKind.RECOVERY_COMPLETED: "The job recovered.", EventKind.JOB_FINISHED: "The job ended."}


@dataclass(slots=True, eq=False)
class _Ended:
    """An end that holds, and the last finding about it."""

    event: Event
    entity: Entity
    finding: Finding | None = None
    said: tuple[ExitContext, ExitDiagnosis] | None = None
    consequence: bool = False
    """It only tells that a peer was lost."""
    follows: bool = False
    """And that peer, or another who failed first, is known."""


class ProcessExitDetector(EventDetector):
    """Says ``process_exit`` and ``node_lost`` from events, at once and with certainty; and what the end means."""

    name = "process_exit"
    kinds = frozenset(_KIND.values())
    reads = frozenset({*_KIND, *_TELLS, *_ENDS})

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config:
        remembered: int = 4096
        """Event ids, open findings and facts of nodes kept: a burst of a thousand ranks, delivered four times."""
        together_seconds: float = 30.0
        """A driver's code and the exit that it brings about lie so close, whichever arrives first; so do a first
        failure and the ends of its peers (they notice within a communication time-out or a closed socket)."""

    config: Config

    def reset(self) -> None:
        super().reset()
        self._open: Recent[str, _Ended] = Recent(self.config.remembered)
        self._facts: deque[Event] = deque(maxlen=self.config.remembered)

    def _handle(self, event: Event) -> list[Finding]:
        if event.kind in _ENDS:
            return self._close(event)
        if event.kind in _TELLS:
            self._facts.append(event)
            return self._say_again([e for e in self._near(event.time) if self._concerns(event, e.event)])
        return self._judge(event)

    def _judge(self, event: Event) -> list[Finding]:
        entity = _entity(event)
        if event.data.get("expected") is True or entity is None:
            return []  # ingest refuses such events; there is no entity to report on
        ended = _Ended(event=event, entity=entity)
        ended.finding = self._say(ended)
        self._open[ended.finding.key] = ended
        return [ended.finding, *([] if ended.consequence else self._say_again(self._followers(event)))]

    def _followers(self, event: Event) -> list[_Ended]:
        """Ends of the same job that were told before this first failure and only follow from it."""
        return [e for e in self._near(event.time, event.job) if e.consequence and not e.follows]

    def _near(self, time: float, job: str | None = None) -> list[_Ended]:
        """Ends within half a minute, of one job or of any."""
        low, high = time - self.config.together_seconds, time + self.config.together_seconds
        ends = self._open.values()
        return [e for e in ends if low <= e.event.time <= high and (job is None or e.event.job == job)]

    def _concerns(self, fact: Event, end: Event) -> bool:
        """Whether a fact of a node may be why a process there ended."""
        if fact.node is None or fact.node != end.node or end.kind is not EventKind.PROCESS_EXIT:
            return False
        pid, own = number(fact.data.get("pid")), number(end.data.get("pid"))
        if pid and own is not None:
            return pid == own
        return fact.device is None or end.device is None or fact.device == end.device

    def _say_again(self, ends: list[_Ended]) -> list[Finding]:
        """What became more or less severe by what is known now."""
        changed = []
        for end in ends:
            finding = self._say(end)
            assert end.finding is not None
            if (finding.severity, finding.cause, finding.recommended_action) != (
                end.finding.severity,
                end.finding.cause,
                end.finding.recommended_action,
            ):
                end.finding = finding
                changed.append(finding)
        return changed

    def _say(self, end: _Ended) -> Finding:
        event = end.event
        lost = event.kind is EventKind.NODE_LOST
        said = None if lost else self._classified(end)
        end.consequence = said is not None and said.consequence
        first = self._first_failure(event) if end.consequence else None
        end.follows = first is not None
        evidence = _evidence(event)
        if said is not None:
            evidence = replace(evidence, **_explained(evidence, said, first))
        return self._finding(
            _KIND[event.kind], end.entity, event.time, evidence, event=event.id,
            severity=Severity.CRITICAL if first is None else Severity.WARNING,
            # a reporter that does not say whether the exit was asked for leaves a small doubt
            confidence=0.9 if not lost and "expected" not in event.data else 1.0,
            recommended_action=None if said is None or not said.explained else said.recommended_action,
            cause=None if said is None else said.cause,
        )  # fmt: skip

    def _classified(self, end: _Ended) -> ExitDiagnosis:
        """What it means by what is known now; looked through again only when the facts are others."""
        facts = self._facts_of(end.event)
        if end.said is None or end.said[0] != facts:
            end.said = (facts, classify(end.event.data, facts))
        return end.said[1]

    def _facts_of(self, event: Event) -> ExitContext:
        near = [
            fact
            for fact in self._facts
            if abs(fact.time - event.time) <= self.config.together_seconds and self._concerns(fact, event)
        ]
        codes = {whole_number(fact.data.get("code")) for fact in near if fact.kind is EventKind.XID}
        return ExitContext(
            xids=tuple(sorted(code for code in codes if code is not None)),
            out_of_memory=any(
                fact.kind is EventKind.KERNEL_FAULT and fact.data.get("fault") == "oom" and "pid" in fact.data
                for fact in near
            ),
            gpu_lost=any(fact.kind is EventKind.GPU_LOST and fact.data.get("cleared") is not True for fact in near),
        )

    def _first_failure(self, event: Event) -> _Ended | None:
        """Who failed on its own in the same job about then: a lost peer's end follows from it."""
        own = [e for e in self._near(event.time, event.job) if not e.consequence and e.event is not event]
        return min(own, key=lambda e: (e.event.time, e.event.id), default=None)

    def _close(self, event: Event) -> list[Finding]:
        """The job is whole again or over: its findings no longer hold."""
        mine = [key for key, e in self._open.items() if e.entity.job is not None and e.entity.job == event.job]
        ended = [self._open.pop(key).finding for key in mine]
        return [f.ended(event.time, _ENDS[event.kind], event.id) for f in ended if f is not None]


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
    told = {key: number(event.data.get(key)) for key in ("pid", "exit_code", "signal")}
    numbers = {key: value for key, value in told.items() if value is not None}
    error = event.data.get("error")
    why = f": {error.strip().splitlines()[-1][:_ERROR_SHOWN]}" if isinstance(error, str) and error.strip() else ""
    return Evidence(summary=f"{who}{job} {how_it_ended(event.data)}{where}{why.rstrip('.')}.", numbers=numbers)


def _explained(evidence: Evidence, said: ExitDiagnosis, first: _Ended | None) -> dict[str, Any]:
    """Sentence and numbers with what the end means; a plain exit or exception explains itself."""
    numbers = {**evidence.numbers, "unicron_severity": float(said.severity)}
    summary = evidence.summary
    if first is not None:
        who = f"rank {first.entity.rank}" if first.entity.rank is not None else f"node {first.entity.node}"
        summary += f" It only lost its peer: {who} failed first."
    elif said.explained and said.error_class != "exception":
        summary += f" {said.reason[0].upper()}{said.reason[1:]} (SEV{said.severity:d})."
    return {"summary": summary, "numbers": numbers}


def how_it_ended(data: dict[str, Any]) -> str:
    """A process's end in words, from ``signal`` or ``exit_code`` (negative, or above 128, means a signal).

    >>> how_it_ended({"exit_code": -9})
    'was killed by SIGKILL (signal 9)'
    >>> how_it_ended({"exit_code": 1})
    'exited with code 1'
    """
    if isinstance(data.get("signal"), str):
        return f"was killed by {data['signal']}"
    killed_by, told = number(data.get("signal")), number(data.get("exit_code"))
    if killed_by is not None:
        return f"was killed by {_signal_name(int(killed_by))}"
    if told is None:
        return "ended in an unknown way"
    code = int(told)
    if code < 0:
        return f"was killed by {_signal_name(-code)}"
    # 128 + n is how a shell reports a child killed by signal n; the process may also have chosen it
    hint = f", which a shell gives for {_signal_name(code - 128)}" if 128 < code <= 128 + 64 else ""
    return f"exited with code {code}{hint}"


def _signal_name(one: int) -> str:
    try:
        return f"{signal.Signals(one).name} (signal {one})"
    except ValueError:
        return f"signal {one}"
