"""A bucket and a directory hold what was put there, or say in one line why not. The bucket's server misbehaves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainstay.recovery.checkpoint.storage import (
    PART_BYTES,
    CheckpointStorage,
    MissingObjectError,
    StorageError,
    check_storage_url,
)
from tests.recovery.checkpoint.commands import call
from tests.recovery.checkpoint.object_store import FaultProxy

pytestmark = pytest.mark.slow
SECONDS = 20.0
"""The client repeats a request for so long."""


@pytest.fixture(params=["directory", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, proxy: FaultProxy) -> CheckpointStorage:
    return CheckpointStorage(str(tmp_path / "level") if request.param == "directory" else proxy.url)


def data_file(tmp_path: Path, nbytes: int, seed: int = 1) -> Path:
    path = tmp_path / f"data-{nbytes}-{seed}"
    path.write_bytes((bytes(range(seed, 256)) * (nbytes // 100 + 1))[:nbytes])
    return path


@pytest.mark.parametrize("nbytes", [0, 5, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES + 12345])
def test_a_file_is_there_as_it_was(
    storage: CheckpointStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nbytes: int
) -> None:
    file, seen = data_file(tmp_path, nbytes), list[bytes]()

    def note(pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            seen.append(piece)
            yield piece

    place = f"run-{os.getpid()}/step-{nbytes}/__0_1.distcp"
    stored = storage.put_file(place, file, note)
    assert (stored.nbytes, b"".join(seen)) == (nbytes, file.read_bytes())
    assert storage.read(place) == file.read_bytes()
    assert storage.children(place.rpartition("/")[0]) == ([], {"__0_1.distcp": nbytes})
    if nbytes > 3:
        assert bytes(storage.read_range(place, 2, nbytes - 3)) == file.read_bytes()[2:-1]
        with pytest.raises(StorageError):
            storage.read_range(place, nbytes - 2, 10)
    with monkeypatch.context() as patch:
        patch.setattr(storage, "_put", None)  # it is there: nothing is sent
        assert storage.put_file(place, file, note) == stored
    assert b"".join(seen) == 2 * file.read_bytes()
    other = data_file(tmp_path, nbytes, seed=2)
    if nbytes:
        assert storage.put_file(place, other) != stored
        assert storage.read(place) == other.read_bytes()
    storage.delete([place, place])
    with pytest.raises(MissingObjectError, match="has no run-"):
        storage.read(place)


@pytest.mark.parametrize("nbytes", [1000, 2 * PART_BYTES + 5])
def test_what_is_refused_as_it_is_read_is_not_stored(storage: CheckpointStorage, tmp_path: Path, nbytes: int) -> None:
    """And takes the place of no other object."""

    def refuse(pieces: Iterator[bytes]) -> Iterator[bytes]:
        yield from pieces
        raise ValueError("the last byte is wrong")

    good, bad = data_file(tmp_path, nbytes), data_file(tmp_path, nbytes, seed=2)
    storage.put_file(f"refused-{nbytes}/good", good)
    for name in ("good", "new"):
        with pytest.raises(ValueError, match="the last byte"):
            storage.put_file(f"refused-{nbytes}/{name}", bad, refuse)
    assert storage.children(f"refused-{nbytes}") == ([], {"good": nbytes})
    assert storage.read(f"refused-{nbytes}/good") == good.read_bytes()


def test_what_was_stored_otherwise_is_refused_and_deleted(proxy: FaultProxy, tmp_path: Path) -> None:
    storage = CheckpointStorage(proxy.url)
    for nbytes in (1000, PART_BYTES + 5):
        proxy.fail("flip_request", "PUT", f"flip-{nbytes}")
        with pytest.raises(StorageError, match="the store does not hold the bytes that were sent"):
            storage.put_file(f"flip-{nbytes}", data_file(tmp_path, nbytes))
        with pytest.raises(MissingObjectError):
            storage.read(f"flip-{nbytes}")


@pytest.mark.parametrize("fault", ["500", "503", "reset", "reset_after", "torn_request"])
def test_a_fault_that_passes_is_repeated_until_it_works(proxy: FaultProxy, tmp_path: Path, fault: str) -> None:
    storage = CheckpointStorage(proxy.url, retry_seconds=SECONDS)
    for method, nbytes in (("PUT", 1000), ("PUT", PART_BYTES + 5), ("GET", 1000), ("HEAD", 1000)):
        place, before = f"pass-{fault}-{method}-{nbytes}", proxy.count
        file = data_file(tmp_path, nbytes)
        proxy.fail(fault, method, place, times=2)
        storage.put_file(place, file)
        assert storage.read(place) == file.read_bytes()
        assert proxy.count == before + 2


def test_a_part_whose_upload_was_torn_makes_no_object(proxy: FaultProxy, tmp_path: Path) -> None:
    storage = CheckpointStorage(proxy.url, retry_seconds=1.0)
    proxy.fail("torn_request", "PUT", "partNumber=2", times=10_000)
    with pytest.raises(StorageError, match="Cannot write torn") as caught:
        storage.put_file("torn", data_file(tmp_path, 3 * PART_BYTES))
    assert "\n" not in str(caught.value)
    proxy.work_again()
    with pytest.raises(MissingObjectError):
        storage.read("torn")


def test_a_store_that_throttles_for_long_is_one_clear_line(proxy: FaultProxy, tmp_path: Path) -> None:
    storage = CheckpointStorage(proxy.url, retry_seconds=1.0)
    proxy.fail("503", "PUT", times=10_000)
    with pytest.raises(StorageError, match=r"Cannot write busy at s3://.*SlowDown") as caught:
        storage.put_file("busy", data_file(tmp_path, 100))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(("url", "words"), [
    ("s3://", "must be s3://BUCKET"), ("s3:///prefix", "must be s3://BUCKET"), ("ftp://x/y", "must be s3://BUCKET"),
    ("", "must be s3://BUCKET"), ("s3://b/p?secret_access_key=x", "only endpoint and region"),
])  # fmt: skip
def test_a_url_that_names_no_place_is_refused(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_storage_url(url)


def test_the_endpoint_of_the_url_counts_before_those_of_the_environment(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:2")
    CheckpointStorage(proxy.url, retry_seconds=1.0).children()


def test_an_endpoint_comes_from_the_environment(proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    url, _, endpoint = proxy.url.partition("?endpoint=")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    CheckpointStorage(url, retry_seconds=1.0).children()


def test_without_obstore_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"pip install 'mainstay\[object-store\]'"):
        check_storage_url("s3://bucket")


def test_a_file_that_cannot_be_read_is_an_error_of_that_file(storage: CheckpointStorage, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        storage.put_file("x", tmp_path / "missing")


def test_a_bucket_that_is_not_there_is_named(proxy: FaultProxy) -> None:
    with pytest.raises(StorageError, match="s3://nothing"):
        CheckpointStorage(proxy.url.replace("checkpoints", "nothing")).children()


def test_a_wrong_bucket_is_named_with_what_the_store_says(
    proxy: FaultProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also by ``mainstay checkpoint ls``, which takes the URL of a bucket."""
    wrong = proxy.url.replace("//checkpoints/", "//no-such-bucket/")
    storage = CheckpointStorage(wrong, retry_seconds=1.0)
    with pytest.raises(
        StorageError, match=r"Cannot write a/b at s3://no-such-bucket/.*: 404 NoSuchBucket The specified"
    ):
        storage.put_bytes("a/b", b"x")
    code, _, said = call(capsys, "ls", wrong)
    assert (code, said.count("\n")) == (2, 1)
    assert f"Cannot list {wrong}: 404 NoSuchBucket" in said
    assert call(capsys, "ls", proxy.url)[0] == 0
