"""Errors of reading a file, as the one that says which file it is."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from mainstay.recovery.checkpoint.manifest import CheckpointError, DamagedError
from mainstay.recovery.checkpoint.pickle_codec import OpcodesError


@contextmanager
def file_errors(path: Path, what: str = "is damaged") -> Iterator[None]:
    """Name ``path`` in the errors of whoever reads it; ``what`` says what it means if its content does not fit.

    Raises:
        CheckpointError: one line.
    """
    try:
        yield
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from error
    except OpcodesError as error:
        raise CheckpointError(f"{path}: {error}") from error
    except (
        msgspec.MsgspecError, zipfile.BadZipFile, struct.error, NotImplementedError,
        LookupError, TypeError, ValueError, AttributeError,
    ) as error:  # fmt: skip
        raise DamagedError(f"{path} {what}: {error!r}") from error


def refusal(error: CheckpointError) -> OSError | None:
    """What the disk says where it refuses to read; None: something is missing, or was read and is wrong."""
    cause = error.__cause__
    return cause if isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError) else None


def problem_line(error: Exception, directory: Path | str) -> str:
    """What went wrong, in one line that names a place: the system names none when a call on an open file fails."""
    if isinstance(error, OSError) and error.strerror and not error.filename:
        return f"{directory}: {error.strerror}"
    return str(error) or type(error).__name__
