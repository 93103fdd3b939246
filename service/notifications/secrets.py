"""Secrets of receivers: files that an administrator puts into one directory."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mainstay.service.notifications.receivers.base import DeliveryError

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MAX_BYTES: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class SecretDirectory:
    """Reads the file for each message, so that a secret can be replaced at any time.

    The mode of a file is not checked, as for the other secrets that settings name: a data directory is closed to
    others, and Kubernetes mounts secrets that a group can read.
    """

    path: Path

    def read(self, name: str) -> str:
        """The text of the file ``name``, without white space around it.

        Raises:
            DeliveryError: there is no such file, or it does not hold one line of text.
        """
        if not _NAME.fullmatch(name):
            raise DeliveryError("a secret has the name of a file, without a path", again=False)
        try:
            with (self.path / name).open("rb") as file:
                text = file.read(_MAX_BYTES).decode().strip()
        except OSError as error:
            reason = f"cannot read the secret {name}: {error.strerror}. Put it into {self.path / name}"
            raise DeliveryError(reason, again=True) from None
        except UnicodeDecodeError:
            raise DeliveryError(f"the secret {name} is not UTF-8 text", again=True) from None
        if not text or not text.isprintable():
            raise DeliveryError(f"the secret {name} must be one line of text", again=True)
        return text
