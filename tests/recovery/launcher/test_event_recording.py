"""What ``mainstay run --record-events`` writes, and ``mainstay replay-job`` reads: the same events, the same state."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import pytest

from mainstay.recovery.controller.event_recording import FORMAT, EventRecorder, RecordingError
from mainstay.recovery.controller.replay import replay
from mainstay.recovery.controller.state.events import GenerationBegun
from mainstay.recovery.controller.state.job_state import JobState
from mainstay.recovery.options import RunOptions
from tests.commands import run_here


def plain(value: Any) -> Any:
    """Everything that a state holds, comparable."""
    if isinstance(value, JobState) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "fixed_shape"):  # Members
        return {name: plain(found) for name, found in vars(value).items()}
    if isinstance(value, dict):
        return {key: plain(found) for key, found in value.items()}
    if isinstance(value, list | tuple):
        return [plain(found) for found in value]
    return value


@pytest.fixture
def recorded(options: RunOptions, play: Any, running: Any, tmp_path: Path) -> tuple[Path, Any]:
    """A job that lost a rank and then a node; its recording, and its state at the end."""
    states: list[Any] = []

    async def work() -> None:
        async with running(changed(options, spares=2, record_events=tmp_path / "recordings")) as world:
            job = world.coordinator.job
            world.node_of(3).kill(3)
            await world.until_state("running", 2)
            world.commit_all(6)
            world.commit_all(7)
            world.lose(1)
            await world.until(lambda: job.state.generation == 3)
            states.append(plain(job.state))
            job.record = lambda *_: None

    play(work())
    (path,) = (tmp_path / "recordings").iterdir()
    return path, states[0]


def test_the_replay_of_a_recording_comes_to_the_same_state(recorded: tuple[Path, Any]) -> None:
    path, state = recorded
    found = replay(path)
    assert plain(found.state) == state
    assert found.problems == []
    first, second, third = found.generations
    assert (first.reason, first.started) == ("the job begins", [0, 1, 2, 3])
    assert (second.number, second.started) == (2, [3])
    assert "rank 3" in second.reason
    assert first.formed_at is not None
    assert first.committed_at is not None
    assert first.began_at <= first.formed_at <= first.committed_at <= second.began_at
    assert "node node-1 was lost" in third.reason
    assert path.stat().st_mode & 0o077 == 0, "a recording names hosts and processes"
    assert b"secret" not in path.read_bytes()


def test_a_replay_may_stop_at_any_event(recorded: tuple[Path, Any]) -> None:
    path, _ = recorded
    found = replay(path, until=4)
    assert (found.events, found.state.phase.value) == (4, "forming")
    assert replay(path, until=0).state.generation == 0


def test_other_effects_and_broken_rules_are_named(recorded: tuple[Path, Any]) -> None:
    path, _ = recorded
    lines = path.read_text().splitlines(keepends=True)
    (lost,) = [line for line in lines if '"NodeLost"' in line]
    begins = next(number for number, line in enumerate(lines) if '"RanksAssigned"' in line)
    path.write_text("".join([*lines[:begins], lost, *lines[begins:]]))
    problems = replay(path).problems
    assert problems[0] == f"event {begins + 1} (RanksAssigned): rank 2 starts on node node-1, which is lost"
    assert any("the replay has other effects than the recording" in problem for problem in problems)
    answer = run_here("replay-job", path)
    assert answer.returncode == 1
    assert "PROBLEM event" in answer.stdout


def test_the_command_shows_generations_and_ranks(recorded: tuple[Path, Any]) -> None:
    path, _ = recorded
    shown = run_here("replay-job", path)
    assert shown.returncode == 0
    assert "no rule is broken" in shown.stdout
    assert "At the end: recovering, generation 3, step 7." in shown.stdout
    found = json.loads(run_here("replay-job", path, "--json").stdout)
    assert [one["number"] for one in found["generations"]] == [1, 2, 3]
    assert [row["node"] for row in found["ranks"]][:2] == ["node-0", "node-0"]
    assert found["problems"] == []


def test_a_recording_whose_last_line_is_cut_short_is_replayed_up_to_there(recorded: tuple[Path, Any]) -> None:
    path, _ = recorded
    whole = replay(path).events
    path.write_bytes(path.read_bytes()[:-5])
    assert replay(path).events == whole - 1


def test_what_is_no_recording_is_refused_in_one_line(recorded: tuple[Path, Any], tmp_path: Path) -> None:
    path, _ = recorded
    lines = path.read_text().splitlines(keepends=True)
    for damaged in (b"{}\n", b'{"event": {"type": "\xff"}}\n'):
        path.write_bytes(b"".join([*map(str.encode, lines[:5]), damaged, *map(str.encode, lines[5:])]))
        answer = run_here("replay-job", path)
        assert (answer.returncode, answer.stdout) == (2, "")
        assert f"{path}, line 6: " in answer.stderr
    latin = tmp_path / "latin"
    latin.write_bytes(b'{"job": "\xff"}\n')
    for other in (Path(__file__), latin):
        with pytest.raises(RecordingError, match="is no recording of a job"):
            replay(other)
    newer = tmp_path / "newer"
    newer.write_text(lines[0].replace(f'"format":{FORMAT}', f'"format":{FORMAT + 1}'))
    with pytest.raises(RecordingError, match=rf"has format {FORMAT + 1}; this version .* reads format {FORMAT}$"):
        replay(newer)
    assert run_here("replay-job", tmp_path / "nothing").returncode == 2


def test_a_full_disk_ends_the_recording_and_not_the_job(options: RunOptions, tmp_path: Path) -> None:
    state = JobState.new(options, 1.0, "run")
    recorder = EventRecorder(tmp_path, options, 1, state)

    assert recorder._file is not None
    recorder._file.close()
    recorder._file = full = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115 - the recorder closes it
    for _ in range(2):
        recorder.record(GenerationBegun(reason="any"), [])
    assert full.closed
