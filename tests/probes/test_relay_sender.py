"""From a relay's spool to the service: nodes stay together, a retry is the same bundle, a bad frame costs itself."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.lib_receiver import Answer, Receiver, problem
from mainstay.probes.bundle import decode_bundle, decode_layout
from mainstay.probes.catalog_store import CatalogStore
from mainstay.probes.frame import Frame, encode
from mainstay.probes.relay_sender import BundleSender
from mainstay.probes.signals import Catalog
from mainstay.probes.spool import Spool
from mainstay.probes.transport import Backoff, Transport
from tests.probes.relay_frames import CATALOG, frame


@contextmanager
def sending(
    receiver: Receiver, directory: Path, frames: list[Frame], on_refused: Callable[[str], None] = lambda _: None
) -> Iterator[BundleSender]:
    """A sender that starts with these frames in its spool."""
    transport = Transport(receiver.url)
    with Spool(directory) as spool:
        catalogs = CatalogStore(directory)
        catalogs.store(CATALOG)
        for one in frames:
            spool.append(encode(one))
        backoff = Backoff(base=0.01, cap=0.05)
        with BundleSender(
            spool, transport, catalogs, relay="r1", gather=0.05, on_refused=on_refused, backoff=backoff
        ) as sender:
            yield sender
    transport.close()


def bodies(receiver: Receiver, fail: int = 0) -> list[bytes]:
    """What is posted to the bundle route from now on; the first ``fail`` requests get no good answer."""
    posted: list[bytes] = []

    def answer(_method: str, path: str, body: bytes) -> Answer | None:
        if not path.endswith("/bundles"):
            return None
        posted.append(body)
        return problem(503, "unavailable", "another time") if len(posted) <= fail else None

    receiver.answer = answer
    return posted


def test_frames_of_one_moment_make_one_bundle_and_each_node_keeps_its_order(receiver: Receiver, tmp_path: Path) -> None:
    frames = [frame(f"n{k}", sequence, t0=1000.0 + sequence) for sequence in (1, 2, 3) for k in range(100)]
    with sending(receiver, tmp_path, frames) as sender:
        assert sender.spool.wait_empty(20)
        assert sender.bundles == 3
        assert sender.delivered == 300
    assert [len(subjects) for subjects in receiver.bundles.values()] == [100, 100, 100]
    assert {(f.subject, f.sequence) for f in receiver.all_frames} == {(f.subject, f.sequence) for f in frames}
    assert [f.sequence for f in receiver.frames["n7", "s-n7"].values()] == [1, 2, 3]
    got = receiver.frames["n7", "s-n7"][3]
    assert got == frames[207]


def test_a_node_stays_with_the_same_others(receiver: Receiver, tmp_path: Path) -> None:
    receiver.catalogs[CATALOG.digest] = CATALOG
    posted = bodies(receiver)
    everyone = [f"n{k:03}" for k in range(200)]
    later = [frame(name, 2) for name in reversed(everyone) if name != "n005"]
    with sending(receiver, tmp_path, [*map(frame, everyone), *later]) as sender:
        assert sender.spool.wait_empty(20)
    layouts = [bytes(decode_bundle(body).layout) for body in posted]
    assert [len(decode_layout(layout).subjects) for layout in layouts] == [128, 72, 127, 72]
    assert layouts[1] == layouts[3], "a node that is missing changes the bundle of its own group only"


def test_frames_that_do_not_fit_together_go_apart(receiver: Receiver, tmp_path: Path) -> None:
    frames = [
        frame("a"),
        frame("b", t0=1060.0),
        frame("c", t0=1060.5),
        frame("d", dt=2.0),
        frame("e", samples=2, values=bytes(8), wide=bytes(16)),
    ]
    with sending(receiver, tmp_path, frames) as sender:
        assert sender.spool.wait_empty(20)
    assert sorted(receiver.bundles.values()) == [["a", "b"], ["c"], ["d"], ["e"]]


def test_a_retry_sends_the_same_bytes_and_what_came_since_follows(receiver: Receiver, tmp_path: Path) -> None:
    posted = bodies(receiver, fail=4)
    with sending(receiver, tmp_path, [frame("a"), frame("b")]) as sender:
        receiver.wait(lambda _: len(posted) >= 2)
        sender.spool.append(encode(frame("c")))
        assert sender.spool.wait_empty(20)
        assert sender.cut_off_since is None
    tries = [body for body in posted if decode_bundle(body).sequence == 1]
    assert len(tries) >= 5
    assert len(set(tries)) == 1
    assert list(receiver.bundles.values()) == [["a", "b"], ["c"]]
    assert sender.bundles == 2


def test_a_later_process_numbers_its_bundles_anew(receiver: Receiver, tmp_path: Path) -> None:
    for sequence in (1, 2):
        with sending(receiver, tmp_path, [frame("a", sequence)]) as sender:
            assert sender.spool.wait_empty(20)
    (_, first, _), (_, second, _) = receiver.bundles
    assert first != second


def test_refused_members_are_set_aside_with_the_reason(receiver: Receiver, tmp_path: Path) -> None:
    away: list[str] = []
    receiver.rejections = [
        {"subject": "b", "sequence": 1, "slug": "value-out-of-range", "detail": "load_1m of host is -1"},
        {"subject": "c", "sequence": 1, "slug": "wrong-rack", "detail": "not of this relay"},
    ]
    receiver.catalogs[CATALOG.digest] = CATALOG
    with sending(receiver, tmp_path, [frame(name) for name in "abc"], away.append) as sender:
        assert sender.spool.wait_empty(20)
        assert dict(sender.refused) == {"value-out-of-range": 1, "wrong-rack": 1}
    assert [f.subject for f in receiver.all_frames] == ["a"]
    assert away == ["c"]
    reason = (tmp_path / "rejected" / "0000000000000002.reason").read_text()
    assert reason == "value-out-of-range: b 1: load_1m of host is -1\n"
    assert (tmp_path / "rejected" / "0000000000000002.entry").read_bytes() == encode(frame("b"))


@pytest.mark.parametrize("slug", ["wrong-rack", "unknown-subject"])
@pytest.mark.parametrize("whole", [True, False])
def test_frames_of_a_node_that_is_not_registered_yet_are_sent_again(
    receiver: Receiver, tmp_path: Path, slug: str, *, whole: bool
) -> None:
    away: list[str] = []
    receiver.catalogs[CATALOG.digest] = CATALOG
    if whole:
        left = [problem(404 if slug == "unknown-subject" else 403, slug, "not yet")]
        receiver.answer = lambda *_: left.pop() if left else None
    else:
        receiver.rejections = [{"subject": "a", "sequence": 1, "slug": slug, "detail": "not yet"}]
    with sending(receiver, tmp_path, [frame("a", t0=time.time())], away.append) as sender:
        receiver.wait(lambda r: len(r.all_frames) == 1)
        assert sender.spool.wait_empty(20)
        assert not sender.refused
        assert sender.cut_off_since is None
    assert away == ["a"]


@pytest.mark.parametrize("whole", [True, False])
def test_a_frame_that_must_wait_while_the_disk_is_full_is_not_lost(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, whole: bool
) -> None:
    receiver.catalogs[CATALOG.digest] = CATALOG
    answers = [problem(404, "unknown-subject", "not yet")] * 2
    rejection = {"subject": "a", "sequence": 1, "slug": "unknown-subject", "detail": "not yet"}
    full: list[bytes] = []

    def refuse(_: Spool, payload: bytes) -> int:
        full.append(payload)
        monkeypatch.undo()
        receiver.rejections = [] if whole else [rejection]
        raise OSError(errno.ENOSPC, "no space left")

    if whole:
        receiver.answer = lambda *_: answers.pop() if answers else None
    else:
        receiver.rejections = [rejection]
    frames = [frame("a", t0=time.time())]
    with sending(receiver, tmp_path, frames) as sender:
        monkeypatch.setattr(Spool, "append", refuse)
        assert sender.spool.wait_empty(20)
    assert full == [encode(frames[0])]
    assert [(one.subject, one.sequence) for one in receiver.all_frames] == [("a", 1)]
    assert len(receiver.bundles) == (1 if whole else 3), "what was stored without the frame is another bundle"


def test_of_a_refused_bundle_only_the_bad_frame_is_set_aside(receiver: Receiver, tmp_path: Path) -> None:
    def poisoned(_method: str, path: str, body: bytes) -> Answer | None:
        bad = path.endswith("/bundles") and "n37" in decode_layout(decode_bundle(body).layout).subjects
        return problem(422, "invalid-bundle", "poison") if bad else None

    receiver.answer = poisoned
    with sending(receiver, tmp_path, [frame(f"n{k}") for k in range(100)]) as sender:
        assert sender.spool.wait_empty(20)
        assert dict(sender.refused) == {"invalid-bundle": 1}
    assert {f.subject for f in receiver.all_frames} == {f"n{k}" for k in range(100)} - {"n37"}
    assert "poison" in (tmp_path / "rejected" / "0000000000000038.reason").read_text()


def test_a_catalog_that_the_service_lost_is_announced_again(receiver: Receiver, tmp_path: Path) -> None:
    with sending(receiver, tmp_path, [frame("a")]) as sender:
        assert sender.spool.wait_empty(20)
        receiver.catalogs.clear()
        sender.spool.append(encode(frame("a", 2)))
        assert sender.spool.wait_empty(20)
    assert [f.sequence for f in receiver.all_frames] == [1, 2]


def test_a_catalog_that_nobody_knows_costs_its_frames_only(receiver: Receiver, tmp_path: Path) -> None:
    other = Catalog(("load_1m",), ("oom_kills_total",)).digest
    with sending(receiver, tmp_path, [frame("a"), frame("b", catalog=other)]) as sender:
        assert sender.spool.wait_empty(20)
    assert [f.subject for f in receiver.all_frames] == ["a"]
    assert "neither here nor at the service" in (tmp_path / "rejected" / "0000000000000002.reason").read_text()


@pytest.mark.parametrize(("status", "cut_off"), [(503, False), (429, False), (401, True), (403, True), (404, True)])
def test_a_relay_knows_whether_the_service_lets_it_in(
    receiver: Receiver, tmp_path: Path, status: int, *, cut_off: bool
) -> None:
    receiver.answer = lambda *_: problem(status, "x", "no")
    with sending(receiver, tmp_path, [frame("a")]) as sender:
        receiver.wait(lambda _: bool(sender.trouble))
        assert (sender.cut_off_since is not None) is cut_off
        receiver.answer = lambda *_: None
        assert sender.spool.wait_empty(20)
        receiver.wait(lambda _: sender.cut_off_since is None)


def test_an_answer_that_is_none_is_asked_for_again(receiver: Receiver, tmp_path: Path) -> None:
    left = [(200, {}, b"<html>")]
    receiver.answer = lambda _m, path, _b: left.pop() if left and path.endswith("/bundles") else None
    with sending(receiver, tmp_path, [frame("a")]) as sender:
        assert sender.spool.wait_empty(20)
    assert [f.subject for f in receiver.all_frames] == ["a"]
