"""The live terminal view: the ranks as they stand, the story as it unfolds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from mainstay.service.demo.timeline import DemoTimeline, TimelineLine

_STYLES = {"plain": "", "good": "bold green", "bad": "bold red", "act": "yellow"}
_MARKS = {"plain": "·", "good": "✔", "bad": "✖", "act": "▸"}
_RANK_STATES = {"running": ("●", "green"), "lost": ("✖", "bold red"), "restoring": ("◐", "yellow")}


def _timeline_line(line: TimelineLine) -> Text:
    text = Text(f"{line.at:7.2f} s  ", style="dim")
    return text.append(f"{_MARKS[line.tone]} {line.text}", style=_STYLES[line.tone])


def _rank_cell(rank: dict[str, Any]) -> Text:
    mark, style = _RANK_STATES.get(rank["state"], ("?", "dim"))
    return Text(f"{mark} rank {rank['rank']}", style=style).append(f"\n  {rank['node']}\n  pid {rank['pid']}", "dim")


def _ranks(story: DemoTimeline) -> RenderableType:
    topology = story.job.get("topology")
    if not topology:
        return Text("waiting for the ranks to form a group …", style="dim")
    grid = Table.grid(padding=(0, 3))
    by_place = {(r["dp"], r["pp"]): r for r in topology["ranks"]}
    for dp in range(topology["dp"]):
        row = [by_place.get((dp, pp)) for pp in range(topology["pp"])]
        grid.add_row(Text(f"replica {dp}", style="dim"), *[_rank_cell(r) if r else Text("?") for r in row])
    total = story.job.get("steps_total") or "?"
    facts = Text(f"\nstep {story.job.get('last_step')} of {total}   generation {story.job['generation']}   ")
    return Group(grid, facts.append(story.job["state"], style="bold"))


def render(story: DemoTimeline, height: int = 18) -> RenderableType:
    """Everything worth seeing at 3 a.m., on one screen."""
    head = Text("dashboard  ", style="dim").append(story.sign_in or story.url or "starting …", style="bold cyan")
    lines = Group(*[_timeline_line(line) for line in story.lines[-height:]])
    return Group(
        Panel(head, title="Mainstay demo", title_align="left", border_style="cyan"),
        Panel(_ranks(story), title="training run", title_align="left"),
        Panel(lines, title="timeline (seconds since start)", title_align="left"),
    )


def summary_table(story: DemoTimeline) -> Table:
    """The figures at the end."""
    table = Table(title="Summary", title_justify="left", show_header=False)
    for name, value in story.summary().items():
        shown = ", ".join(f"{k} {v:.3f}" for k, v in value.items()) if isinstance(value, dict) else str(value)
        table.add_row(name, shown)
    return table


class TerminalView:
    """Shows the timeline live on a terminal; in other outputs prints each line once, so that logs stay readable."""

    def __init__(self, story: DemoTimeline, console: Console) -> None:
        self._story = story
        self._console = console
        self._printed = 0
        self._live = Live(console=console, refresh_per_second=8, get_renderable=lambda: render(story))

    def __enter__(self) -> Callable[[], None]:
        if self._console.is_terminal:
            self._live.start()
        return self.refresh

    def __exit__(self, *_: object) -> None:
        self.refresh()
        if self._console.is_terminal:
            self._live.stop()

    def refresh(self) -> None:
        """Print lines that were not printed yet (the live view redraws itself)."""
        if self._console.is_terminal:
            return
        for line in self._story.lines[self._printed :]:
            self._console.print(_timeline_line(line), soft_wrap=True)  # a link stays in one piece
        self._printed = len(self._story.lines)
