"""A checker for the words of docs/glossary.md: it finds banned words in names, prose and text of the dashboard.

``python -m tests.word_list [PATH...]`` prints the matches; ``tests/test_words.py`` runs it on every tracked file.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GLOSSARY = ROOT / "docs" / "glossary.md"
ALLOW_MARK = "words-check: allow"

_PYTHON, _SCRIPT = {".py"}, {".ts", ".tsx"}
_TEXT = {".md", ".toml", ".yml", ".yaml", ".html", ".css", ".diff"}
_TEXT_NAMES = {"Makefile", "Dockerfile"}
_UNCHECKED_NAMES = {"schema.ts", "glossary.md", "CHANGELOG.md"}
_UNCHECKED_FOLDERS = {"node_modules", "results", "data", "fixtures"}
_RULE = re.compile(r"(?P<scope>any|name|prose) \| (?P<pattern>.+) -> (?P<use>.+)")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_DEFINITION = re.compile(
    r"\s*(?:export\s+)?(?:default\s+)?(?:async\s+)?(?:def|class|function|interface|type|enum)\s+(\w+)"
)
_SCRIPT_PROSE = re.compile(
    r"\"[^\"\n]*\"|'[^'\n]*'|`[^`\n]*`"  # strings
    r"|//.*|/?\*.*"  # comments
    r"|>[^<>{}]+<|^\s*[A-Za-z][^<>{}=;()]*$"  # text between tags, on one line or alone on a line
)


@dataclass(frozen=True)
class WordRule:
    """One line of the list."""

    scope: str
    pattern: str
    use: str

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """The pattern, for whole words."""
        return re.compile(rf"(?<![a-z])(?:{self.pattern})(?![a-z])")


class WordList:
    """The rules by scope. One regular expression per scope rejects clean text fast."""

    def __init__(self, rules: Sequence[WordRule]) -> None:
        self._rules = {scope: [r for r in rules if r.scope == scope] for scope in ("any", "name", "prose")}
        self._any_rule = {
            scope: re.compile(rf"(?<![a-z])(?:{'|'.join(f'(?:{rule.pattern})' for rule in rules)})(?![a-z])")
            for scope, rules in self._rules.items()
            if rules
        }

    @classmethod
    def from_glossary(cls, path: Path = GLOSSARY) -> WordList:
        """Parse the fenced block ``words``.

        Raises:
            ValueError: the block is missing, or a line of it is no rule.
        """
        blocks = path.read_text(encoding="utf-8").split("\n```words\n")
        if len(blocks) != 2:
            raise ValueError(f"{path} must contain one fenced block `words`")
        rules = []
        for line in filter(str.strip, blocks[1].split("\n```")[0].splitlines()):
            found = _RULE.fullmatch(line)
            if found is None:
                raise ValueError(f"{path}: not `scope | pattern -> use`: {line}")
            rules.append(WordRule(**found.groupdict()))
        return cls(rules)

    def can_match(self, scope: str, source: str) -> bool:
        """Return whether a line of ``source`` may contain a banned word: one fast pass over a whole file."""
        return scope in self._any_rule and self._any_rule[scope].search(split_identifiers(source)) is not None

    def find(self, scope: str, text: str) -> Iterator[str]:
        """Yield ``word -> use`` for each banned word in ``text``."""
        plain = split_identifiers(text)
        if scope in self._any_rule and self._any_rule[scope].search(plain):
            for rule in self._rules[scope]:
                yield from (f"{found[0]} -> {rule.use}" for found in rule.regex.finditer(plain))


def split_identifiers(text: str) -> str:
    """Return lowercase text with identifiers split into words."""
    return _HUMP.sub(" ", text.replace("_", " ")).lower()


def is_checked(path: Path) -> bool:
    """Return whether the list applies to this file."""
    if path.name in _UNCHECKED_NAMES or _UNCHECKED_FOLDERS & set(path.parts[:-1]):
        return False
    return path.suffix in _PYTHON | _SCRIPT | _TEXT or path.name in _TEXT_NAMES


def find_in_file(words: WordList, name: Path, source: str) -> Iterator[str]:
    """Yield ``file:line: word -> use``; line 0 is the file name."""
    python = name.suffix in _PYTHON
    code = python or name.suffix in _SCRIPT
    if code:
        for scope in ("any", "name"):
            yield from (f"{name}:0: {found}" for found in words.find(scope, name.stem.replace("-", " ")))
    scopes = {scope for scope in ("any", "prose") if words.can_match(scope, source)} | ({"name"} if code else set())
    comments = _python_prose(source) if "prose" in scopes and python else {}
    if not scopes:
        return
    for number, line in enumerate(source.split("\n"), 1):
        if ALLOW_MARK in line:
            continue
        defined = _DEFINITION.match(line) if code else None
        prose = line
        if code:
            prose = comments.get(number, "") if python else " ".join(_SCRIPT_PROSE.findall(line))
        for scope, text in (("any", line), ("prose", prose), ("name", defined[1] if defined else "")):
            if text and scope in scopes:
                yield from (f"{name}:{number}: {found}" for found in words.find(scope, text))


def _python_prose(source: str) -> dict[int, str]:
    """Return the text of comments and strings by line; every line where Python cannot parse the file."""
    prose: dict[int, str] = {}
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if tokenize.tok_name[token.type] in {"COMMENT", "STRING", "FSTRING_MIDDLE"}:
                for number, part in enumerate(token.string.split("\n"), token.start[0]):
                    prose[number] = f"{prose.get(number, '')} {part}"
    except (SyntaxError, tokenize.TokenError):
        return dict(enumerate(source.split("\n"), 1))
    return prose


def tracked_files(paths: Sequence[str] = ()) -> list[Path]:
    """Return the checked files that git tracks, relative to the root of the repository."""
    command = ["git", "ls-files", "-z", "--", *paths]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return [path for path in map(Path, filter(None, listed)) if is_checked(path) and (ROOT / path).is_file()]


def find_words(paths: Sequence[Path]) -> Iterator[str]:
    """Yield the matches in these files."""
    words = WordList.from_glossary()
    for path in paths:
        yield from find_in_file(words, path, (ROOT / path).read_text(encoding="utf-8", errors="replace"))


def main() -> int:
    """Print the matches; exit with 1 if there are any."""
    matches = [*find_words(tracked_files(sys.argv[1:]))]
    for match in matches:
        print(match)
    return 1 if matches else 0


if __name__ == "__main__":
    sys.exit(main())
