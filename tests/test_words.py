"""The word list of docs/glossary.md holds in every tracked file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.word_list import (
    ROOT,
    WordList,
    WordRule,
    find_in_file,
    find_words,
    is_checked,
    split_identifiers,
    tracked_files,
)

NOT_YET_CLEAN: tuple[str, ...] = ()
"""Prefixes of paths that may still contain words of the list."""

RULES = WordList([
    WordRule("any", "widgets?", "part"), WordRule("prose", "gizmo", "tool"), WordRule("name", "^(grab)$", "a verb"),
])  # fmt: skip


def test_tracked_files_use_the_words_of_the_glossary() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git work tree: the list of tracked files is missing")
    files = [path for path in tracked_files() if not path.as_posix().startswith(NOT_YET_CLEAN)]
    assert files
    matches = [*find_words(files)]
    assert not matches, f"{len(matches)} banned words (docs/glossary.md names the replacement):\n" + "\n".join(matches)


def test_prefixes_that_are_not_clean_exist() -> None:
    missing = [prefix for prefix in NOT_YET_CLEAN if not any(ROOT.glob(f"{prefix.rstrip('/')}*"))]
    assert not missing


@pytest.mark.parametrize(("text", "split"), [
    ("CoordinatorLease", "coordinator lease"), ("coordinator_lease", "coordinator lease"),
    ("HTTPServer2Go", "http server2 go"),
])  # fmt: skip
def test_identifiers_are_split_into_words(text: str, split: str) -> None:
    assert split_identifiers(text) == split


def test_each_scope_applies_where_it_should() -> None:
    source = (
        'def grab(gizmo: int) -> str:\n    """A gizmo."""\n    return "Widget"  # words-check: allow\n'
        "my_widget = 1\ngrab(1)\n"
    )
    found = [*find_in_file(RULES, Path("some/widget_box.py"), source)]
    assert found == [
        "some/widget_box.py:0: widget -> part",
        "some/widget_box.py:1: grab -> a verb",
        "some/widget_box.py:2: gizmo -> tool",
        "some/widget_box.py:4: widget -> part",
    ]


def test_scripts_are_checked_in_strings_comments_and_text() -> None:
    source = 'const gizmo = a("a gizmo");\n// gizmo\n<p>gizmo</p>\nexport function grab() {}\n'
    assert len([*find_in_file(RULES, Path("a.tsx"), source)]) == 4


def test_text_is_prose() -> None:
    assert [*find_in_file(RULES, Path("widget.md"), "A gizmo.\n\ndef grab")] == ["widget.md:1: gizmo -> tool"]


@pytest.mark.parametrize(
    "name", ["docs/glossary.md", "CHANGELOG.md", "bench/results/a.md", "web/src/api/schema.ts", "a.c"]
)
def test_some_files_are_not_checked(name: str) -> None:
    assert not is_checked(Path(name))


def test_a_list_that_cannot_be_parsed_is_an_error(tmp_path: Path) -> None:
    for content in ("no block", "\n```words\nany only\n```\n"):
        (tmp_path / "glossary.md").write_text(content)
        with pytest.raises(ValueError, match=r"glossary\.md"):
            WordList.from_glossary(tmp_path / "glossary.md")
