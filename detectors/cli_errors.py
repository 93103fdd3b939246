"""What the commands of this floor have in common: bad input ends each with one clear line and a code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, ParamSpec, TypeVar

import msgspec
from cyclopts import Parameter

from mainstay.probes.decoding import UNREADABLE

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from mainstay.probes.transport import Transport

BAD_INPUT: Final = 2
"""Exit code of every command that was given what it cannot use."""
NO_SERVICE: Final = 5
"""Exit code of every command that needs the service and got no answer, or a refusal."""

AsJson = Annotated[bool, Parameter(name="--json", negative=())]
Flag = Annotated[bool, Parameter(negative=())]
"""An option without a value and without a negative form."""

P = ParamSpec("P")
T = TypeVar("T")


class InputError(ValueError):
    """What the user gave cannot be used; the message is one line and names what is wrong."""


@contextmanager
def naming(what: object) -> Iterator[None]:
    """Put the name of a file, or a part of it, before the message of an ``InputError``."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{what}: {error}") from error


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
                text = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else error
                sys.stderr.write(f"{name}: {text}\n")
                return next(code for kind, code in known.items() if isinstance(error, kind))

        return wrapped

    return decorate


def read_json(file: Path, shape: type[T]) -> T:
    """The content of a JSON file of a known shape.

    Raises:
        InputError: names the file and, where the content is wrong, the field.
    """
    try:
        return msgspec.json.decode(file.read_bytes(), type=shape)
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from error
    except msgspec.ValidationError as error:
        raise InputError(f"{file}: {error}") from error
    except UNREADABLE as error:
        raise InputError(f"{file}: not JSON: {error}") from error


def open_transport(service: str, token: str | None, token_file: Path | None) -> Transport:
    """Connect to the service with the token of ``token_file``, or else with ``token``.

    Raises:
        InputError: no token, one that cannot be read or sent, or a URL that cannot be used.
    """
    from mainstay.probes.transport import Transport  # noqa: PLC0415 - the other commands need no urllib3

    try:
        secret = (token or "") if token_file is None else token_file.read_text("ascii").strip()
        if not secret:
            raise InputError("no token: give --token-file, or --token")
        if not secret.isprintable():
            raise InputError("the token contains invalid characters")
        return Transport(service, secret)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{token_file}: no token can be read from it: {error}") from error
    except ValueError as error:
        raise InputError(str(error)) from error


def parse_since(text: str, now: float) -> float:
    """Unix seconds, from Unix seconds or from how long ago.

    Raises:
        InputError: it is neither.
    """
    unit = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}.get(text[-1:])
    try:
        return float(text) if unit is None else now - float(text[:-1]) * unit
    except ValueError as error:
        raise InputError(f"--since {text!r} must be Unix seconds or a time like 90s, 10m, 2h, or 30d") from error


def print_json(content: object, *, indent: int = -1) -> None:
    """Print ``content`` as JSON, on one line unless ``indent`` says otherwise."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(content), indent=indent).decode() + "\n")


def print_unfolded(*parts: RenderableType, width: int = 200) -> None:
    """Print what rich renders; without a terminal lines are folded at ``width``, not at 80 columns."""
    from rich.console import Console  # noqa: PLC0415 - a pipeline that asks for JSON does not pay for it

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = width
    for part in parts:
        console.print(part)


def plain_table(*names: str, right: Collection[str] = (), folding: str = "", style: str = "bold") -> Table:
    """Columns without lines between them, of which only ``folding`` may take several lines."""
    from rich.table import Table  # noqa: PLC0415 - likewise

    table = Table(box=None, pad_edge=False, header_style=style, padding=(0, 2, 0, 0))
    for name in names:
        justify: Literal["left", "right"] = "right" if name in right else "left"
        table.add_column(name, justify=justify, no_wrap=name != folding, overflow="fold")
    return table
