"""Which tests have a second try: ``retried_tests.toml`` names their files, each with the reason."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LIST: Final = Path(__file__).with_name("retried_tests.toml")


@dataclass(frozen=True)
class Retried:
    """The list: file to reason, and how many files it may hold."""

    at_most: int
    reasons: dict[str, str]

    def __contains__(self, nodeid: str) -> bool:
        return nodeid.split("::", 1)[0] in self.reasons


def read_list(path: Path = LIST) -> Retried:
    """Read the list.

    Raises:
        ValueError: a file stands in it twice, or without a reason.
    """
    found = tomllib.loads(path.read_text(encoding="utf-8"))
    reasons: dict[str, str] = {}
    for entry in found["retried"]:
        for file in entry["files"]:
            if file in reasons or not entry["reason"].strip():
                raise ValueError(f"{file} in {path.name} needs one entry with a reason")
            reasons[file] = entry["reason"]
    return Retried(at_most=found["at_most"], reasons=reasons)
