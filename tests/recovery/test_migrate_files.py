"""``mainstay migrate`` without a service: through the state directory of the launcher that coordinates."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from mainstay.recovery import migrate_cli
from mainstay.recovery.migrate_cli import JobAddress, migrate
from mainstay.recovery.migration_request import read_requests


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate_cli, "POLL_SECONDS", 0.01)


def write(directory: Path, **changes: Any) -> None:
    ranks = [{"rank": r, "node": f"n{r}"} for r in range(2)]
    told = {"id": "demo", "state": "running", "topology": {"ranks": ranks, "standbys": {"n0": 1, "n1": 0}}, **changes}
    new = directory / "job.new"
    new.write_text(json.dumps(told))
    new.replace(directory / "job.json")


def test_advice_is_left_and_its_answer_read(tmp_path: Path, capsys: Any) -> None:
    write(tmp_path)
    over = threading.Event()

    def play() -> None:
        while not over.is_set():
            for advice in read_requests(tmp_path):
                answer = {"id": advice.id, "state": "completed", "detail": f"{advice.subject} moved", "steps_lost": 1}
                write(tmp_path, migration_requests=[{"id": "another", "state": "rejected"}, answer])
            over.wait(0.01)

    thread = threading.Thread(target=play)
    thread.start()
    try:
        assert migrate("demo", JobAddress(state_dir=tmp_path), rank=1) == 0
    finally:
        over.set()
        thread.join()
    assert capsys.readouterr().out.endswith("Done: rank 1 moved; 1 step(s) are repeated.\n")


def test_a_directory_that_is_none(tmp_path: Path, capsys: Any) -> None:
    assert migrate("demo", JobAddress(state_dir=tmp_path), rank=1) == 2
    assert "has no job.json" in capsys.readouterr().err
    (tmp_path / "job.json").write_text("{")
    assert migrate("demo", JobAddress(state_dir=tmp_path), rank=1) == 2
    write(tmp_path)
    assert migrate("other", JobAddress(state_dir=tmp_path), rank=1) == 2
    assert "belongs to job demo, not other" in capsys.readouterr().err


def test_advice_that_is_no_text_is_thrown_away(tmp_path: Path) -> None:
    (tmp_path / "advice").mkdir()
    (tmp_path / "advice" / "a.json").write_bytes(b'{"id": "\xff", "kind": "migrate", "rank": 1}')
    assert read_requests(tmp_path) == []
    assert list((tmp_path / "advice").iterdir()) == []
