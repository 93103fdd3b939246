"""How many lines of code the product has, and how many it had at another commit.

``python -m bench.code_size [REF] [--json FILE]``. A line counts when a token of the program stands on it: no blank
lines, comments or docstrings, and no string that stands alone as a statement. ``REF`` is what ``git`` knows a commit
by (``main`` if not given); it is read with ``git show``, so nothing is checked out. Tests, benches, the dashboard and
the docs do not count.
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.report import RESULTS, Row, publish

ROOT: Final = Path(__file__).parents[1]
PARTS: Final = ("service", "probes", "detectors", "recovery", "mainstay", "migrations")
FEWER: Final = 2000
"""What issue 14 asks for."""

_NO_CODE: Final = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def code_lines(text: str) -> int:
    """Count the lines of ``text`` that hold code."""
    told = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - told)


def now() -> Iterator[tuple[str, str]]:
    """Each file of the working tree: the part that it belongs to, and its text."""
    listed = _git("ls-files", "--cached", "--others", "--exclude-standard", "--", *PARTS, "mainstay.py")
    for name in listed.splitlines():
        if name.endswith(".py") and (ROOT / name).exists():
            yield _part(name), (ROOT / name).read_text()


def at(ref: str) -> Iterator[tuple[str, str]]:
    """Each file of commit ``ref``, likewise."""
    for name in _git("ls-tree", "-r", "--name-only", ref, "--", *PARTS, "mainstay.py").splitlines():
        if name.endswith(".py"):
            yield _part(name), _git("show", f"{ref}:{name}")


def _part(name: str) -> str:
    return name.split("/", maxsplit=1)[0].removesuffix(".py")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def count(files: Iterator[tuple[str, str]]) -> Counter[str]:
    """Count the lines of code of each part."""
    found: Counter[str] = Counter()
    for part, text in files:
        found[part] += code_lines(text)
    return found


def measure(ref: str) -> list[Row]:
    """Count the lines of every part, then those of the whole."""
    commit = _git("rev-parse", "--short", ref).strip()
    after, before = count(now()), count(at(ref))
    rows = [
        Row(
            claim=f"lines of code in {part}",
            figure=after[part],
            unit="lines",
            target="",
            holds=None,
            kind="live",
            baseline=f"{before[part]} lines at {commit}",
        )
        for part in PARTS
    ]
    fewer = before.total() - after.total()
    rows.append(
        Row(
            claim="fewer lines of production code than before",
            figure=fewer,
            unit="lines",
            target=f">= {FEWER}",
            holds=fewer >= FEWER,
            kind="live",
            baseline=f"{before.total()} lines at {commit}, {after.total()} now",
        )
    )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.code_size")
    parser.add_argument("ref", nargs="?", default="main", help="the commit to compare with")
    parser.add_argument("--json", type=Path, default=RESULTS / "code_size.json", metavar="FILE")
    arguments = parser.parse_args()
    publish("code_size", measure(arguments.ref), arguments.json)


if __name__ == "__main__":
    main()
