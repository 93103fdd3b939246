"""The service that commands use when no option and no variable names one: ``mainstay login`` stores it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mainstay.detectors.cli_errors import InputError
from mainstay.probes.decoding import UNREADABLE


@dataclass(frozen=True, slots=True)
class Context:
    """A service and the token for it."""

    service: str
    token: str


def context_file() -> Path:
    """Mode 0600: it holds a token."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "mainstay" / "context.json"


def store(context: Context) -> Path:
    """Keep the context for later commands; where it is."""
    file = context_file()
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = file.with_suffix(".new")
    new.unlink(missing_ok=True)
    new.touch(mode=0o600)
    new.write_bytes(msgspec.json.encode(context))
    new.replace(file)
    return file


def stored() -> Context | None:
    """The context that ``mainstay login`` stored.

    Raises:
        InputError: its file cannot be read.
    """
    file = context_file()
    try:
        return msgspec.json.decode(file.read_bytes(), type=Context)
    except FileNotFoundError:
        return None
    except (OSError, *UNREADABLE) as error:
        raise InputError(f"{file} cannot be read ({error}): run mainstay login again") from error
