"""What the commands of this floor have in common: bad input ends each with one clear line and a code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, Final, ParamSpec

from cyclopts import Parameter

BAD_INPUT: Final = 2
"""Exit code of every command that was given what it cannot use."""
NO_SERVICE: Final = 5
"""Exit code of every command that needs the service and got no answer, or a refusal."""

AsJson = Annotated[bool, Parameter(name="--json", negative=())]

P = ParamSpec("P")


class InputError(ValueError):
    """What the user gave cannot be used; the message is one line and names what is wrong."""


class ServiceError(Exception):
    """The service cannot be reached, or refuses the request."""


def one_line(
    name: str, codes: Mapping[type[Exception], int] | None = None
) -> Callable[[Callable[P, int]], Callable[P, int]]:
    """Decorate a command: errors of these kinds become a line on standard error and an exit code.

    Args:
        name: of the command, at the head of the line.
        codes: kind of error -> exit code; ``InputError`` alone if not given.
    """
    known: dict[type[Exception], int] = {InputError: BAD_INPUT} if codes is None else dict(codes)
    kinds: tuple[type[Exception], ...] = tuple(known)

    def decorate(command: Callable[P, int]) -> Callable[P, int]:
        @wraps(command)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> int:
            try:
                return command(*args, **kwargs)
            except kinds as error:
                sys.stderr.write(f"{name}: {error}\n")
                return next(code for kind, code in known.items() if isinstance(error, kind))

        return wrapped

    return decorate
