"""What a policy keeps, and that a directory loses nothing else: no base, no pin, no only complete step."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstay.recovery.checkpoint import catalog, save
from mainstay.recovery.checkpoint.catalog import PINNED
from mainstay.recovery.checkpoint.manifest import MANIFEST, Manifest
from mainstay.recovery.checkpoint.retention import (
    PENDING_UPLOADS,
    CompleteStep,
    RetentionPolicy,
    next_common,
    steps_to_keep,
)
from mainstay.recovery.checkpoint.upload_state import UPLOAD, UploadState
from mainstay.recovery.memory.records import NO_EPOCH

policies = st.builds(
    RetentionPolicy,
    last=st.integers(1, 5),
    every_hours=st.sampled_from([0.0, 0.5, 1.0, 6.0]),
    pending=st.integers(0, 3),
)


@st.composite
def histories(draw: st.DrawFn) -> list[CompleteStep]:
    """Complete steps of a run in order; each may refer to earlier ones, and to all that these refer to."""
    epochs = sorted(draw(st.sets(st.integers(1, 200), max_size=20)))
    now, made = 1.7e9, []
    for number, epoch in enumerate(epochs):
        now += draw(st.floats(1.0, 20_000.0))
        bases = draw(st.sets(st.sampled_from(epochs[:number]), max_size=2)) if number else set()
        bases |= {below for step in made if step.epoch in bases for below in step.bases}
        flags = {name: draw(st.booleans()) for name in ("pinned", "uploaded", "uploading")}
        made.append(CompleteStep(epoch=epoch, time=now, bases=frozenset(bases), **flags))
    return made


@given(histories(), policies)
def test_what_is_kept_is_what_the_policy_says_and_what_that_refers_to(
    steps: list[CompleteStep], policy: RetentionPolicy
) -> None:
    keep = steps_to_keep(steps, policy)
    by_epoch = {step.epoch: step for step in steps}
    assert keep <= by_epoch.keys()
    assert {step.epoch for step in steps[-policy.last :]} <= keep
    assert {step.epoch for step in steps if step.pinned} <= keep
    assert all(by_epoch[epoch].bases <= keep for epoch in keep)
    waiting = [step.epoch for step in steps if not step.uploaded]
    if policy.pending:
        assert set(waiting[-policy.pending :]) <= keep
    periods = itertools.groupby(
        steps, lambda step: step.time // (policy.every_hours * 3600) if policy.every_hours else 0
    )
    firsts = {next(group).epoch for _, group in periods} if policy.every_hours else set()
    assert firsts <= keep
    needed = [step for step in steps if step.epoch in keep]
    reached = {base for step in needed for base in step.bases}
    sending = {*[step.epoch for step in steps if step.uploading][-PENDING_UPLOADS:]}
    assert sending <= keep
    own = {step.epoch for step in steps[-policy.last :]} | {step.epoch for step in steps if step.pinned} | firsts
    own |= sending
    assert keep <= own | reached | set(waiting[-policy.pending :] if policy.pending else [])
    assert steps_to_keep(needed, policy) == keep


@given(histories(), policies)
def test_removal_after_each_step_keeps_what_removal_at_the_end_would(
    steps: list[CompleteStep], policy: RetentionPolicy
) -> None:
    """But for steps that wait: their number is limited at each time. A base is there as long as who refers to it."""
    policy = msgspec.structs.replace(policy, pending=0)
    left: list[CompleteStep] = []
    for step in steps:
        if step.bases <= {known.epoch for known in left}:  # a step refers to what is there
            left.append(step)
        keep = steps_to_keep(left, policy)
        left = [known for known in left if known.epoch in keep]
    made = [step for step in steps if step in left or step.bases]
    assert {step.epoch for step in left} >= steps_to_keep([s for s in made if s in left], policy)
    plain = [msgspec.structs.replace(step, bases=frozenset()) for step in steps]
    online: list[CompleteStep] = []
    for step in plain:
        online.append(step)
        keep = steps_to_keep(online, policy)
        online = [known for known in online if known.epoch in keep]
    assert {step.epoch for step in online} == steps_to_keep(plain, policy)


@given(st.lists(st.tuples(*(st.booleans() for _ in range(3)), st.sampled_from(["", "look", "tell"])), max_size=60))
def test_disks_of_any_speed_have_a_step_together(steps: list[tuple[bool, bool, bool, str]]) -> None:
    """Each node keeps one step; the coordinator looks when it can, and nodes learn what it saw some steps later."""
    disks, every = [set[int]() for _ in range(3)], 5
    told, seen, found = (NO_EPOCH, NO_EPOCH), (set[int](), NO_EPOCH, 0), False
    for number, (*writes, then) in enumerate(steps, 1):
        for disk, written in zip(disks, writes, strict=True):
            if written:
                disk.add(every * number)
                disk.intersection_update({every * number, *told})
        if then == "look":
            reached = min(max(disk, default=NO_EPOCH) for disk in disks)
            seen = (set.intersection(*disks), reached, every * number + 3)
        elif then == "tell" and seen[2]:
            told, seen = next_common(told, *seen[:2], every * number + 3, every), (set(), NO_EPOCH, 0)
        found = found or told[1] in set.intersection(*disks)
        assert not found or set.intersection(*disks), (told, disks)


@pytest.mark.parametrize(
    ("now", "common", "reached", "then"),
    [
        ((NO_EPOCH, NO_EPOCH), {}, NO_EPOCH, (NO_EPOCH, 50)),
        ((NO_EPOCH, NO_EPOCH), {20, 40}, 40, (20, 50)),  # a new coordinator: nodes keep the oldest
        ((20, 45), {20, 40}, 40, (20, 45)),
        ((20, 45), {20, 45}, 45, (45, 50)),
        ((20, 45), {20}, 46, (20, 50)),  # a node was too slow for 45
        ((20, 45), {}, NO_EPOCH, (20, 45)),  # an empty disk
    ],
)
def test_the_next_step_that_all_disks_keep(
    now: tuple[int, int], common: set[int], reached: int, then: tuple[int, int]
) -> None:
    assert next_common(now, common, reached, 48, 5) == then
    assert next_common(now, common, reached, 48, 0)[1] == now[1], "there are no checkpoints"


def test_pinned_and_hourly_steps_and_bases_stay_in_a_directory(
    ranks: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ranks(dp=1)
    monkeypatch.setattr(catalog, "bases_of", lambda manifest: {70: [15, 30], 30: [15]}.get(manifest.epoch, []))
    for number, epoch in enumerate((10, 15, 20, 30, 40, 50, 60, 70)):
        monkeypatch.setattr(save.time, "time", lambda at=1.7e9 - 1.7e9 % 3600 + 1000.0 * number: at)
        job.whole(epoch)
    (job.run.step(20) / PINNED).touch()
    job.run.prune(RetentionPolicy(last=1, every_hours=1.0), ())
    assert job.run.steps() == [10, 15, 20, 30, 40, 70]  # 10 and 40 begin an hour, 70 needs 30, and that needs 15


def test_a_step_that_waits_for_its_upload_stays_within_the_limit(ranks: Callable[..., Any]) -> None:
    job = ranks(dp=1)
    for epoch in (10, 20, 30, 40, 50, 60):
        manifest = job.whole(epoch)
        if epoch == 50:
            state = UploadState("s3://b", "node", manifest.check)
            (job.run.step(epoch) / UPLOAD).write_bytes(msgspec.json.encode(state))
    (job.run.step(10) / UPLOAD).write_bytes(msgspec.json.encode(UploadState("s3://b", "node")))  # under way
    job.run.prune(RetentionPolicy(last=1, pending=2), ())
    assert job.run.steps() == [10, 40, 60]
    os.utime(job.run.step(10) / UPLOAD, (0, time.time() - 2 * catalog.UPLOAD_STALE_SECONDS))
    job.run.prune(RetentionPolicy(last=1, pending=2), ())
    assert job.run.steps() == [40, 60]


def test_a_damaged_manifest_counts_for_none(ranks: Callable[..., Any]) -> None:
    """Else the only complete step would go for two that are not."""
    job = ranks(dp=1)
    for epoch in (10, 20, 30):
        job.whole(epoch)
    for epoch in (20, 30):
        path = job.run.step(epoch) / MANIFEST
        path.write_bytes(path.read_bytes()[:-9])
    job.run.prune(RetentionPolicy(last=1), ())
    assert job.run.steps() == [10, 20, 30]
    job.whole(40)
    job.run.prune(RetentionPolicy(last=1), ())
    assert job.run.steps() == [40]


def test_while_a_manifest_cannot_be_read_nothing_goes(
    ranks: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ranks(dp=1)
    for epoch in (10, 20, 30):
        job.whole(epoch)
    read = catalog.read_checked

    def broken(path: Path, kind: type[Any]) -> Any:
        if kind is Manifest and "00000030" in str(path):
            raise catalog.CheckpointError(f"{path}: I/O error") from OSError(5, "I/O error")
        return read(path, kind)

    with monkeypatch.context() as patch:
        patch.setattr(catalog, "read_checked", broken)
        job.run.prune(RetentionPolicy(last=1), ())
    assert job.run.steps() == [10, 20, 30]


def test_a_step_that_is_half_removed_does_not_claim_to_be_whole(
    ranks: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ranks(dp=1)
    for epoch in (10, 20):
        job.whole(epoch)
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)  # killed before it
    job.run.prune(RetentionPolicy(last=1), ())
    assert [manifest.epoch for manifest in job.run.complete()] == [20]


def test_an_older_step_than_one_that_cannot_be_read_is_not_taken_silently(
    ranks: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    job = ranks(dp=1)
    for epoch in (10, 20):
        job.whole(epoch)
    job.run.step(30).mkdir()  # not complete: that is usual
    assert catalog.find(job.run.path.parent).manifest.epoch == 20
    assert not caplog.records
    (job.run.step(20) / MANIFEST).unlink()
    (job.run.step(20) / MANIFEST).mkdir()
    assert catalog.find(job.run.path.parent).manifest.epoch == 10
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "step 20 of run" in record.getMessage()
    assert "Is a directory" in record.getMessage()
