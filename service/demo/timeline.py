"""What happened in the demo, with times: facts gathered by the scenario, drawn by the view, summed up at the end."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Literal

Mood = Literal["plain", "good", "bad", "act"]


@dataclass(frozen=True, slots=True)
class TimelineLine:
    """One line of the story, at ``at`` seconds after the demo began."""

    at: float
    text: str
    tone: Mood = "plain"


@dataclass(slots=True)
class DemoTimeline:
    """Grows while the demo runs. Times are Unix seconds of this host unless a name says otherwise."""

    began: float = field(default_factory=time.time)
    lines: list[TimelineLine] = field(default_factory=list)
    job: dict[str, Any] = field(default_factory=dict)
    incident: dict[str, Any] = field(default_factory=dict)
    url: str = ""
    sign_in: str = ""
    failed_rank: int | None = None
    killed_at: float | None = None
    seen_at: float | None = None
    pids_before: dict[int, int] = field(default_factory=dict)
    pids_after: dict[int, int] = field(default_factory=dict)
    recovered: dict[str, Any] = field(default_factory=dict)
    recovered_at: float | None = None
    verified: bool = False
    finished: bool = False
    bit_equal: bool | None = None
    reference_s: float | None = None
    job_s: float | None = None
    error: str = ""

    def add_line(self, text: str, mood: Mood = "plain", at: float | None = None) -> None:
        """Add a line; ``at`` (Unix seconds) defaults to now."""
        self.lines.append(TimelineLine((time.time() if at is None else at) - self.began, text, mood))

    @property
    def restarted_survivors(self) -> list[int]:
        """Ranks other than the victim whose process changed. Empty is the promise."""
        return [
            rank
            for rank, pid in self.pids_before.items()
            if rank != self.failed_rank and self.pids_after.get(rank, pid) != pid
        ]

    @property
    def ok(self) -> bool:
        """Training finished, and its parameters are those of the uninterrupted run, to the bit."""
        return self.finished and self.bit_equal is True and not self.error

    def summary(self) -> dict[str, Any]:
        """The JSON summary; seconds are measured from the SIGKILL."""
        opened = self.incident.get("opened_at")
        plan = self.incident.get("plan") or {}
        return {
            "ok": self.ok,
            "finished": self.finished,
            "bit_equal": self.bit_equal,
            "killed_rank": self.failed_rank,
            "detected_s": _since(self.killed_at, opened),
            "incident_visible_s": _since(self.killed_at, self.seen_at),
            "recovered_s": _since(self.killed_at, self.recovered_at),
            "steps_lost": self.recovered.get("steps_lost"),
            "strategy": plan.get("chosen"),
            "phases_s": self.recovered.get("seconds"),
            "survivors_restarted": self.restarted_survivors,
            "verified": self.verified,
            "generation": self.job.get("generation"),
            "steps": self.job.get("last_step"),
            "incident": self.incident.get("id"),
            "incident_state": self.incident.get("state"),
            "job_s": _rounded(self.job_s),
            "reference_run_s": _rounded(self.reference_s),
            "error": self.error or None,
        }


def _since(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else _rounded(end - start)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
