"""A place that holds checkpoints beyond the local directory: an S3 bucket, or a directory such as a shared file system.

The client is ``obstore`` (Rust ``object_store``): it retries, splits large objects, and shows an object only when all
of it is there. What was sent is compared with what the store says it has; see ``CheckpointStorage.put_file``.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import os
import re
import shutil
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
import xxhash

from mainstay.probes.durable_files import sync_directory

PART_BYTES: Final = 8 << 20
"""Of a multipart upload, and of a ranged read. Larger where an object would need more than ``_MAX_PARTS``."""
_MAX_PARTS: Final = 9_000
"""S3 takes 10,000."""
_PARTS_AT_ONCE: Final = 4
_PIECE_BYTES: Final = 1 << 20
RETRY_SECONDS: Final = 60.0
"""For one request, with exponential pauses: a store that throttles asks for some seconds."""
_EXTRA: Final = "a checkpoint upload needs the package obstore: pip install 'mainstay[object-store]'"
_MAX_PROBLEM: Final = 300
_ANSWER: Final = re.compile(r"status code: (\d+)[^<]*<.*<Code>(\w+)</Code>(?:.*<Message>([^<]*)</Message>)?")
"""What a store that refuses a request says: the status, a code, and a message."""
_ROLE_HOST: Final = "169.254.169.254"
_NO_CREDENTIALS: Final = "no AWS_ACCESS_KEY_ID is set, and this machine has no role"


class StorageError(OSError):
    """A place that holds checkpoints cannot be reached, refused a request, or lost bytes; one line that names it."""


class MissingObjectError(StorageError):
    """There is no such object."""


class StoredFile(msgspec.Struct, frozen=True):
    """A file as a place holds it."""

    nbytes: int
    digest: str
    """xxh3_64 of its bytes."""


def check_storage_url(url: str) -> str:
    """Return ``url`` if it names a place, without a connection.

    Args:
        url: ``s3://BUCKET/PREFIX?endpoint=URL&region=NAME``, ``file:///DIR``, or a directory. Credentials, and what the
            URL leaves out, come from the environment variables that the AWS tools read.

    Raises:
        ValueError: it names none, or obstore is not installed.
    """
    parts = urllib.parse.urlsplit(url)
    is_s3 = parts.scheme == "s3"
    if parts.scheme not in {"", "file", "s3"} or not (parts.netloc if is_s3 else parts.path):
        raise ValueError(f"{url!r} must be s3://BUCKET/PREFIX or a directory")
    if is_s3 and (unknown := urllib.parse.parse_qs(parts.query).keys() - {"endpoint", "endpoint_override", "region"}):
        raise ValueError(f"{url!r} must not have {sorted(unknown)}: only endpoint and region can follow the ?")
    if importlib.util.find_spec("obstore") is None:
        raise ValueError(_EXTRA)
    return url


class CheckpointStorage:
    """Objects by path (``RUN/step-N/NAME``), below a URL that ``check_storage_url`` accepts. Safe from any thread.

    Raises:
        ValueError: the URL names no place, or obstore is not installed.
        StorageError: from every method; names the object.
    """

    def __init__(self, url: str, *, retry_seconds: float = RETRY_SECONDS) -> None:
        self.url = check_storage_url(url)
        parts = urllib.parse.urlsplit(url)
        self._directory: Path | None = None
        if parts.scheme != "s3":
            self._directory = Path(urllib.parse.unquote(parts.path) if parts.scheme else url).absolute()
        self._client: Any = importlib.import_module("obstore")
        with self._errors("open", ""):
            self._store = self._open(parts, retry_seconds)

    def _open(self, parts: urllib.parse.SplitResult, retry_seconds: float) -> Any:
        if self._directory is not None:
            self._directory.mkdir(parents=True, exist_ok=True)
            return self._client.store.LocalStore(self._directory)
        query = dict(urllib.parse.parse_qsl(parts.query))
        endpoint = query.pop("endpoint_override", query.pop("endpoint", None)) or os.environ.get(
            "AWS_ENDPOINT_URL_S3", os.environ.get("AWS_ENDPOINT_URL")
        )
        return self._client.store.S3Store(
            parts.netloc,
            prefix=parts.path.strip("/") or None,
            client_options={"allow_http": bool(endpoint and endpoint.startswith("http://"))},
            retry_config={"max_retries": 10, "retry_timeout": timedelta(seconds=retry_seconds)},
            **query,
            **({"aws_endpoint_url_s3": endpoint} if endpoint else {}),  # before the environment's own
        )

    # Reading

    def children(self, prefix: str = "") -> tuple[list[str], dict[str, int]]:
        """Names of the directories below ``prefix``, and sizes of the objects directly in it by name."""
        with self._errors("list", prefix):
            found = self._client.list_with_delimiter(self._store, prefix or None)
        sizes = {entry["path"].rpartition("/")[2]: int(entry["size"]) for entry in found["objects"]}
        return [path.rpartition("/")[2] for path in found["common_prefixes"]], sizes

    def read(self, path: str) -> bytes:
        """All bytes of a small object."""
        with self._errors("read", path):
            return bytes(self._client.get(self._store, path).bytes())

    def read_range(self, path: str, start: int, nbytes: int) -> memoryview:
        """Bytes ``start`` to ``start + nbytes`` of an object."""
        with self._errors("read", path):
            found = memoryview(self._client.get_range(self._store, path, start=start, length=nbytes))
        if len(found) != nbytes:
            raise StorageError(f"{self.url}: {path} ends before byte {start + nbytes}")
        return found

    # Writing

    def put_bytes(self, path: str, content: bytes) -> StoredFile:
        """Store a small object, which replaces one of this name in one instant."""
        return self._put(path, [content], len(content))

    def put_file(self, path: str, file: Path, via: Callable[[Iterator[bytes]], Iterator[bytes]] = iter) -> StoredFile:
        """Store a file, unless it is there. ``via`` passes on what is read, may wait, and may raise: nothing is stored.

        An S3 store that keeps MD5 sums proves by its ETag that it holds what was read. Of another one the object is
        read back.

        Raises:
            StorageError: the store refused, or holds other bytes; then the object is deleted.
            OSError: the file cannot be read.
        """
        nbytes = file.stat().st_size
        with contextlib.suppress(MissingObjectError):
            if int(self._head(path)["size"]) == nbytes:  # of a process that was killed
                sums = self._sums(nbytes)
                for _ in sums.observe(via(_pieces(file))):
                    pass
                if self._holds(path, sums):
                    return sums.stored
        return self._put(path, via(_pieces(file)), nbytes)

    def _put(self, path: str, pieces: Iterable[bytes], nbytes: int) -> StoredFile:
        sums = self._sums(nbytes)
        content: Any = sums.observe(pieces)
        if not sums.multipart:
            content = b"".join(content)
        with self._errors("write", path):
            self._client.put(self._store, path, content, chunk_size=sums.part_bytes, max_concurrency=_PARTS_AT_ONCE)
        if self._directory is not None:
            try:
                _sync(self._directory / path)
            except OSError as error:
                raise StorageError(f"Cannot write {path} to {self.url}: {error.strerror}") from error
        if not self._holds(path, sums):
            self.delete([path])
            raise StorageError(f"Cannot write {path} to {self.url}: the store does not hold the bytes that were sent")
        return sums.stored

    def _sums(self, nbytes: int) -> _Sums:
        return _Sums(nbytes, tagged=self._directory is None)

    def _head(self, path: str) -> Any:
        with self._errors("look up", path):
            return self._client.head(self._store, path)

    def _holds(self, path: str, sums: _Sums) -> bool:
        found = self._head(path)
        if int(found["size"]) != sums.nbytes:
            return False
        if str(found["e_tag"]).strip('"') == sums.tag:
            return True
        digest = xxhash.xxh3_64()
        for start in range(0, sums.nbytes, PART_BYTES):
            digest.update(self.read_range(path, start, min(PART_BYTES, sums.nbytes - start)))
        return digest.hexdigest() == sums.stored.digest

    def delete(self, paths: Sequence[str]) -> None:
        """Delete objects; those that are not there are none."""
        for path in paths:
            with contextlib.suppress(MissingObjectError), self._errors("delete", path):
                self._client.delete(self._store, path)

    def delete_below(self, prefix: str) -> None:
        """Delete the objects directly below ``prefix``, and in a directory what writes that were killed left there."""
        self.delete([f"{prefix}/{name}" for name in self.children(prefix)[1]])
        if self._directory is not None:
            shutil.rmtree(self._directory / prefix, ignore_errors=True)

    @contextmanager
    def _errors(self, verb: str, path: str) -> Iterator[None]:
        """What the client says, in one line. Errors of a local file that is being sent pass as they are."""
        try:
            yield
        except (FileNotFoundError, self._client.exceptions.BaseError) as error:
            text = " ".join(str(error).partition("Debug source")[0].split())
            if isinstance(error, FileNotFoundError) and "<Code>NoSuchBucket<" not in text:
                raise MissingObjectError(f"{self.url} has no {path or 'such place'}") from error
            if answer := _ANSWER.search(text):
                text = " ".join(filter(None, answer.groups()))
            elif _ROLE_HOST in text:
                text = f"{_NO_CREDENTIALS}: {text}"
            what = f"{verb} {path} at" if path else verb
            raise StorageError(f"Cannot {what} {self.url}: {text[:_MAX_PROBLEM]}") from error


class _Sums:
    """What is known of an object while it is sent: its size, its xxh3_64, and the ETag that S3 will give it."""

    def __init__(self, expected_bytes: int, *, tagged: bool) -> None:
        self._tagged = tagged
        self.part_bytes = max(PART_BYTES, -(-expected_bytes // _MAX_PARTS >> 20) << 20)
        self.multipart = expected_bytes > self.part_bytes
        self.nbytes = 0
        self._digest = xxhash.xxh3_64()
        self._parts = [hashlib.md5(usedforsecurity=False)]

    def observe(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Pass on ``pieces``, none of which lies across two parts."""
        for piece in pieces:
            if self.multipart and self.nbytes >= len(self._parts) * self.part_bytes:
                self._parts.append(hashlib.md5(usedforsecurity=False))
            self.nbytes += len(piece)
            self._digest.update(piece)
            if self._tagged:
                self._parts[-1].update(piece)
            yield piece

    @property
    def stored(self) -> StoredFile:
        return StoredFile(self.nbytes, self._digest.hexdigest())

    @property
    def tag(self) -> str:
        if not self.multipart:
            return self._parts[0].hexdigest()
        sums = b"".join(part.digest() for part in self._parts)
        return f"{hashlib.md5(sums, usedforsecurity=False).hexdigest()}-{len(self._parts)}"


def _pieces(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        yield from iter(lambda: opened.read(_PIECE_BYTES), b"")


def _sync(path: Path) -> None:
    """Make a file of a directory durable: the client only renames it."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    sync_directory(path.parent)
