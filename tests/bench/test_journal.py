"""The check of samples itself: that it sees what is lost and what is doubled, and nothing where all is well."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from bench.lib_journal import JournalError, account
from mainstay.recovery.examples.journal import Journal, add_journal

HALVES = ((0, 2), (2, 4))


def write(
    directory: Path, generation: int, step: int, *, deal: dict[int, tuple[int, ...]], stages: tuple[int, ...] = (0, 1)
) -> None:
    """What replicas of two stages, two layers each, write in one step."""
    for replica, ids in deal.items():
        for stage in stages:
            Journal(directory).write(
                rank=2 * replica + stage, generation=generation, step=step, layers=HALVES[stage], micro_batches=ids,
                of=4,
            )  # fmt: skip


ALL = {0: (0, 1), 1: (2, 3)}
ALONE = {0: (0, 1, 2, 3)}


def test_off_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    parser = argparse.ArgumentParser()
    add_journal(parser)
    parser.parse_args([]).journal.write(rank=0, generation=1, step=0, layers=(0, 1), micro_batches=(0,), of=1)
    assert not list(tmp_path.iterdir())
    assert parser.parse_args(["--journal", "here"]).journal == Journal(Path("here"))


def test_each_sample_once_whoever_computed_it(tmp_path: Path) -> None:
    for step in (0, 1):
        write(tmp_path, 1, step, deal=ALL)
    write(tmp_path, 2, 2, deal=ALONE)
    write(tmp_path, 3, 3, deal={0: (0, 1, 3), 1: (2,)})
    told = account([tmp_path], steps=4, layers=4)
    assert (told.samples, told.lost, told.doubled, told.repeated) == (16, 0, 0, 0)


def test_work_that_a_later_generation_made_again_does_not_count(tmp_path: Path) -> None:
    write(tmp_path, 1, 0, deal=ALL)
    write(tmp_path, 1, 1, deal=ALL)
    write(tmp_path, 1, 2, deal=ALL, stages=(0,))  # cut short
    write(tmp_path, 2, 1, deal=ALONE)  # gone back by one
    write(tmp_path, 3, 2, deal=ALL)
    told = account([tmp_path], steps=3, layers=4)
    assert (told.lost, told.doubled, told.repeated) == (0, 0, 6)


def test_a_step_that_nobody_made_again_is_lost(tmp_path: Path) -> None:
    write(tmp_path, 1, 0, deal=ALL)
    write(tmp_path, 1, 2, deal=ALL)
    assert account([tmp_path], steps=3, layers=4).lost == 4


def test_a_micro_batch_that_one_stage_did_not_compute_is_lost(tmp_path: Path) -> None:
    write(tmp_path, 1, 0, deal={0: (0, 1)})
    write(tmp_path, 1, 0, deal={1: (2, 3)}, stages=(0,))
    write(tmp_path, 1, 0, deal={1: (2,)}, stages=(1,))
    told = account([tmp_path], steps=1, layers=4)
    assert (told.lost, told.doubled) == (1, 0)


def test_a_micro_batch_that_two_replicas_computed_is_doubled(tmp_path: Path) -> None:
    write(tmp_path, 1, 0, deal={0: (0, 1, 2), 1: (2, 3)})
    told = account([tmp_path], steps=1, layers=4)
    assert (told.lost, told.doubled) == (0, 1)


def test_a_step_behind_the_end_is_doubled(tmp_path: Path) -> None:
    for step in (0, 1):
        write(tmp_path, 1, step, deal=ALL)
    assert account([tmp_path], steps=1, layers=4).doubled == 4


def test_a_second_run_goes_on_from_the_first(tmp_path: Path) -> None:
    for step in (0, 1, 2):
        write(tmp_path / "first", 4, step, deal=ALL)
    for step in (2, 3):
        write(tmp_path / "second", 1, step, deal=ALL)
    told = account([tmp_path / "first", tmp_path / "second"], steps=4, layers=4)
    assert (told.lost, told.doubled, told.repeated) == (0, 0, 4)


@pytest.mark.parametrize(
    "line", ["{", "{}", '{"generation": 1, "step": 0, "layers": [0], "micro_batches": [], "of": 1}']
)
def test_what_is_no_journal_is_named(tmp_path: Path, line: str) -> None:
    write(tmp_path, 1, 0, deal=ALL)
    (tmp_path / "rank-1.jsonl").write_text(line + "\n")
    with pytest.raises(JournalError, match=r"rank-1\.jsonl:1: "):
        account([tmp_path], steps=1, layers=4)
    with pytest.raises(JournalError, match="no rank has written"):
        account([tmp_path / "none"], steps=1, layers=4)
