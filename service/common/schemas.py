"""Base schemas and checked field types.

Input refuses what it does not know, NaN and infinity, and text that a database cannot hold; ``Lenient`` sets aside what
it does not know. Output schemas have no
defaults, so that types generated from the OpenAPI document are exact.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from inspect import get_annotations
from typing import Annotated, Any, Final, TypeVar, get_args, get_type_hints

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, create_model

from mainstay.probes.core_types import NAME_PATTERN

_KIND: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")


class Input(BaseModel):
    """What a client sends."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


def is_newer_kind(value: Any, known: Collection[str]) -> bool:
    """Whether ``value`` is a well-formed kind that only a newer version can know."""
    return isinstance(value, str) and value not in known and _KIND.fullmatch(value) is not None


class Lenient(Input):
    """What a node, a relay or a job sends, which may be newer than we are: what we do not know is set aside."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, frozen=True)


class Output(BaseModel):
    """What the service answers; built from rows by attribute."""

    model_config = ConfigDict(from_attributes=True)


_Read = TypeVar("_Read", bound=Output)


def fields_of(domain: type, *, without: Collection[str] = ()) -> Callable[[type[_Read]], type[_Read]]:
    """Give an output schema the fields of a domain type, all of them required.

    Args:
        domain: a dataclass, a struct, or the class of a table's rows.
        without: its fields that the answer leaves out.
    """

    def extend(schema: type[_Read]) -> type[_Read]:
        own = {name: (field.annotation, field) for name, field in schema.model_fields.items()}
        told = _columns(domain) if hasattr(domain, "__table__") else get_type_hints(domain, include_extras=True)
        fields: dict[str, Any] = {name: (kind, ...) for name, kind in told.items() if name not in without}
        base: Any = schema.__bases__
        name, place = schema.__name__, {"__module__": schema.__module__, "__doc__": schema.__doc__}
        build: Any = create_model
        extended: type[_Read] = build(name, __base__=base, **place, **fields | own)
        return extended

    return extend


def _columns(table: type) -> dict[str, Any]:
    """Column → the type of its values: what stands in ``Mapped[...]``."""
    return {name: get_args(kind)[0] for name, kind in get_annotations(table, eval_str=True).items()}


def check_text(value: str) -> str:
    """Refuse NUL and lone surrogates: PostgreSQL text and UTF-8 cannot hold them.

    Raises:
        ValueError: names which of the two was found.
    """
    if "\x00" in value:
        raise ValueError("text must not contain the NUL character")
    if not value.isascii() and any(0xD800 <= ord(c) <= 0xDFFF for c in value):
        raise ValueError("text must not contain lone surrogates")
    return value


def _check_number(value: Any) -> Any:
    if isinstance(value, bool | str | bytes):
        raise ValueError("a number is wanted, not a text or truth value")  # noqa: TRY004 - pydantic names the field
    return value


JsonNumber: Final = BeforeValidator(_check_number)
"""Last in the annotation of a number that comes as JSON: ``true`` and ``"1"`` are not taken for one."""
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
"""Id of a node, device or job."""
Uuid = Annotated[str, Field(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
Text = Annotated[str, Field(max_length=2000), AfterValidator(check_text)]
"""Free text for people."""
ShortText = Annotated[str, Field(max_length=200), AfterValidator(check_text)]
QuerySeconds = Annotated[float, Field(ge=0, le=253_402_300_799)]
"""Unix seconds up to the year 9999, the last that PostgreSQL drivers and Python datetimes agree on."""
UnixSeconds = Annotated[QuerySeconds, JsonNumber]
"""The same in a JSON body; in a query string every number is text."""
Count = Annotated[int, Field(ge=0, lt=2**31), JsonNumber]
Bytes = Annotated[int, Field(ge=0, lt=2**63), JsonNumber]
Number = Annotated[float, Field(ge=-1e150, le=1e150), JsonNumber]
"""A measured quantity: its square, and a sum of many, is still a double."""
