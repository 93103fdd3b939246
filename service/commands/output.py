"""How commands print what the service answers: as a table for people, or as JSON or YAML for programs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

Format = Literal["table", "wide", "json", "yaml"]
Json = dict[str, Any]
_WATCH_SECONDS: Final = 2.0
_UNITS: Final = ((86_400.0, "d"), (3600.0, "h"), (60.0, "m"), (1.0, "s"))
_COLORS: Final = {
    "critical": "red", "warning": "yellow", "quarantined": "red", "suspect": "yellow", "draining": "yellow",
    "unknown": "dim", "healthy": "green", "failed": "red", "running": "green", "recovering": "yellow",
}  # fmt: skip


def age(seconds: float | None) -> str:
    """Such as ``3m`` or ``2d``: the largest unit that fits."""
    if seconds is None:
        return "-"
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return "0s"


def since(moment: float | None) -> str:
    """The age of a moment in Unix seconds; ``in 5m`` for a later one."""
    if moment is None:
        return "-"
    seconds = time.time() - moment
    return age(seconds) if seconds >= 0 else f"in {age(-seconds)}"


Column = tuple[str, Callable[[Json], object], bool]
"""Heading, text of an item, and whether only ``wide`` shows it."""


def show(items: Sequence[Json], columns: Sequence[Column], chosen: Format, *, empty: str) -> None:
    """Print a list."""
    if chosen in {"json", "yaml"}:
        print_data(list(items), chosen)
        return
    if not items:
        print(empty)
        return
    from rich.table import Table

    from mainstay.detectors.cli_errors import print_unfolded

    shown = [column for column in columns if chosen == "wide" or not column[2]]
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="bold")
    for heading, _, _ in shown:
        last = heading == shown[-1][0]
        table.add_column(heading, no_wrap=not last or not sys.stdout.isatty(), overflow="fold" if last else "ellipsis")
    for item in items:
        table.add_row(*(_cell(text(item)) for _, text, _ in shown))
    print_unfolded(table)


def _cell(value: object) -> str:
    from rich.markup import escape

    text = escape(str(value)) if value not in {None, ""} else "-"
    color = _COLORS.get(text)
    return f"[{color}]{text}[/]" if color else text


def print_data(data: object, chosen: Format) -> None:
    """Print JSON or YAML."""
    if chosen == "yaml":
        import yaml

        print(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), end="")
    else:
        print(json.dumps(data, indent=2))


def repeat(action: Callable[[], None], *, watch: bool) -> int:
    """Do it once, or each two seconds until Ctrl-C."""
    if not watch:
        action()
        return 0
    try:
        while True:
            if sys.stdout.isatty():
                sys.stdout.write("\x1b[H\x1b[2J")
            action()
            time.sleep(_WATCH_SECONDS)
    except KeyboardInterrupt:
        return 0
