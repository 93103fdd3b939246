"""The list of tests that have a second try: it names what exists, and it does not grow."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.retries import read_list

ROOT = Path(__file__).resolve().parents[1]


def test_the_list_holds_no_more_than_it_may() -> None:
    """Whoever takes a file out lowers ``at_most`` too, so that no other file takes its place."""
    found = read_list()
    assert len(found.reasons) == found.at_most


def test_every_entry_names_a_file_with_tests() -> None:
    files = read_list().reasons
    assert [file for file in files if not (ROOT / file).is_file()] == []
    assert [file for file in files if "def test_" not in (ROOT / file).read_text(encoding="utf-8")] == []


@pytest.mark.parametrize(("files", "reason"), [(["a.py", "a.py"], "why"), (["a.py"], " ")])
def test_an_entry_without_a_reason_or_twice_is_refused(tmp_path: Path, files: list[str], reason: str) -> None:
    path = tmp_path / "list.toml"
    path.write_text(f'at_most = 1\n[[retried]]\nreason = "{reason}"\nfiles = {files}\n')
    with pytest.raises(ValueError, match=r"a\.py in list\.toml needs one entry with a reason"):
        read_list(path)


def test_a_test_belongs_to_the_list_by_its_file(tmp_path: Path) -> None:
    path = tmp_path / "list.toml"
    path.write_text('at_most = 1\n[[retried]]\nreason = "why"\nfiles = ["tests/a.py"]\n')
    found = read_list(path)
    assert "tests/a.py::test_one[x]" in found
    assert "tests/b.py::test_one" not in found
