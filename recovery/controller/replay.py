"""Replays a recording: the same events through the reducer must give the same effects, and break no rule.

The rules are those that hold after every event of any job; what a single event does is the reducer's to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mainstay.recovery.controller.event_recording import RecordedEvent, RecordingHeader, read_recording
from mainstay.recovery.controller.state.effects import Effect, SendToLauncher
from mainstay.recovery.controller.state.events import (
    GenerationBegun,
    LastSaveBegun,
    LauncherMessageReceived,
    RankMessageReceived,
    RanksAssigned,
    TakeoverStarted,
    TrainingFormed,
)
from mainstay.recovery.controller.state.job_state import JobState
from mainstay.recovery.controller.state.reducer import reduce
from mainstay.recovery.protocol.messages import StartRank, WorkerUp
from mainstay.recovery.protocol.worker_messages import StepRecord

MOST_PROBLEMS: Final = 100
_BEGINS: Final[dict[type, str]] = {
    RanksAssigned: "the job begins",
    TakeoverStarted: "this coordinator takes over",
    LastSaveBegun: "the last save",
}
"""Events with which a generation begins, and why."""


@dataclass(slots=True)
class ReplayedGeneration:
    """One generation of the job."""

    number: int
    began_at: float
    """Unix seconds."""
    reason: str
    """Why the one before it ended."""
    formed_at: float | None = None
    """Every rank had voted for its state; None: it ended before."""
    committed_at: float | None = None
    """Its first step; None: it made none."""
    started: list[int] = field(default_factory=list)
    """Ranks that got a new process."""


@dataclass(slots=True)
class ReplayedJob:
    """What a recording shows."""

    header: RecordingHeader
    state: JobState
    """After the last event."""
    events: int = 0
    first_at: float = 0.0
    last_at: float = 0.0
    generations: list[ReplayedGeneration] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Effects that were others, and rules that were broken; at most ``MOST_PROBLEMS``."""


def replay(path: Path, until: int | None = None) -> ReplayedJob:
    """Replay a recording.

    Args:
        path: of the recording.
        until: how many events; None: all.

    Raises:
        OSError: the file cannot be read.
        RecordingError: it is no recording, or is damaged.
    """
    header, recorded = read_recording(path)
    job = ReplayedJob(header, header.state())
    for step in recorded:
        if job.events == until:
            break
        _apply(job, step)
    return job


def _apply(job: ReplayedJob, step: RecordedEvent) -> None:
    before = job.state.generation
    effects = reduce(job.state, step.event)
    job.events += 1
    job.first_at, job.last_at = job.first_at or step.at, step.at
    _follow(job, step)
    found = [] if effects == step.effects else ["the replay has other effects than the recording"]
    found += _broken_rules(job.state, step, effects, before)
    named = f"event {job.events} ({type(step.event).__name__})"
    job.problems += [f"{named}: {problem}" for problem in found][: MOST_PROBLEMS - len(job.problems)]


def _follow(job: ReplayedJob, step: RecordedEvent) -> None:
    """Keep the generations up to date."""
    reason = step.event.reason if isinstance(step.event, GenerationBegun) else _BEGINS.get(type(step.event))
    match step.event:
        case TrainingFormed() if job.generations:
            job.generations[-1].formed_at = step.at
        case RankMessageReceived(message=StepRecord(generation=generation)) if job.generations:
            newest = job.generations[-1]
            if generation == newest.number and newest.committed_at is None:
                newest.committed_at = step.at
    if reason is not None:
        job.generations.append(ReplayedGeneration(job.state.generation, step.at, reason))
    if job.generations:
        job.generations[-1].started += [start.rank for _, start in _starts(step.effects)]


def _starts(effects: list[Effect]) -> Iterator[tuple[str, StartRank]]:
    for effect in effects:
        if isinstance(effect, SendToLauncher) and isinstance(effect.message, StartRank):
            yield effect.node, effect.message


def _broken_rules(state: JobState, step: RecordedEvent, effects: list[Effect], before: int) -> Iterator[str]:
    members, event = state.members, step.event
    if state.generation < before:
        yield f"generation {before} is followed by {state.generation}"
    starts = list(_starts(effects))
    warned = members.warnings.current(step.at) if starts else {}
    for name, start in starts:
        if not members.nodes[name].alive:
            yield f"rank {start.rank} starts on node {name}, which is lost"
        elif name in warned and warned[name].cordoned:
            yield f"rank {start.rank} starts on node {name}, which is cordoned: {warned[name].reason}"
    if isinstance(event, TrainingFormed):
        silent = [r.number for r in members.present if r.resumed is None or not r.resumed.ok]
        if silent:
            yield f"training continues though ranks {silent} have not voted for their state"
    if isinstance(event, LauncherMessageReceived) and isinstance(event.message, WorkerUp):
        pid = event.message.pid
        holders = [rank.number for rank in members.on(event.node) if rank.pid == pid]
        if len(holders) > 1:
            yield f"process {pid} of node {event.node} holds ranks {holders}"
