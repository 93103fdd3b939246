"""API schemas of events. They reject, by name, input that would break detection (NaN, unbounded text, foreign ids)."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, ModelWrapValidatorHandler, model_validator

from mainstay.probes.core_types import Event, EventKind
from mainstay.service.common.schemas import (
    Count,
    JsonNumber,
    Lenient,
    Name,
    Output,
    UnixSeconds,
    fields_of,
    is_newer_kind,
)
from mainstay.service.incidents.plans import read_plan

MAX_EVENTS = 500
MAX_RANK = 1_000_000
EVENT_ID_PATTERN = r"^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"


MAX_VALUES = 200_000
"""Values in one event's data: a plan that lists 2,048 restores of each of four alternatives has about 60,000."""
MAX_DEPTH = 32
_KINDS = frozenset(EventKind)
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def _clean(data: dict[str, Any]) -> dict[str, Any]:
    """Data as it can be stored. Numbers that are none are refused; what text cannot be stored is only marked.

    An event reports a process that died, perhaps with its last, broken output in ``tail``: losing the news over a NUL
    would be worse than losing the NUL.
    """
    budget = [MAX_VALUES]
    cleaned: dict[str, Any] = _clean_value(data, MAX_DEPTH, budget)
    return cleaned


def _clean_value(value: Any, depth: int, budget: list[int]) -> Any:
    budget[0] -= 1
    if depth < 0 or budget[0] < 0:
        raise ValueError(f"data has more than {MAX_VALUES} values or is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, dict):
        return {_clean_text(key): _clean_value(item, depth - 1, budget) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean_value(item, depth - 1, budget) for item in value]
    if isinstance(value, str):
        return _clean_text(value)
    return _check_number(value)


def _clean_text(text: str) -> str:
    return _UNSTORABLE.sub("\ufffd", text)


def _check_number(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number in data is not finite")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("a number in data does not fit 64 bits")
    return value


EventData = Annotated[dict[str, Any], AfterValidator(_clean)]


class EventIn(Lenient):
    id: Annotated[str, Field(pattern=EVENT_ID_PATTERN, description="UUIDv7, created where the event happened")]
    time: UnixSeconds
    kind: EventKind
    node: Name | None = None
    device: Name | None = None
    job: Name | None = None
    rank: Annotated[int, Field(ge=0, le=MAX_RANK), JsonNumber] | None = None
    generation: Count | None = None
    data: EventData = Field(default_factory=dict)

    @model_validator(mode="after")
    def _plan_is_one(self) -> Self:
        # The detection loop must be able to read an acknowledged event.
        if self.kind is EventKind.RECOVERY_PLANNED:
            read_plan(self.data)
        return self


class EventBatch(Lenient):
    items: Annotated[list[EventIn], Field(max_length=MAX_EVENTS)]
    _newer_kinds: tuple[str, ...] = ()

    @property
    def newer_kinds(self) -> tuple[str, ...]:
        """Kinds of the events that were set aside, one each: only a newer version knows them."""
        return self._newer_kinds

    @model_validator(mode="wrap")
    @classmethod
    def _set_aside_newer_kinds(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        items = value.get("items") if isinstance(value, dict) else None
        if not isinstance(items, list):
            return handler(value)
        kinds = [item.get("kind") if isinstance(item, dict) else None for item in items]
        newer = [is_newer_kind(kind, _KINDS) for kind in kinds]
        kept = [item for item, aside in zip(items, newer, strict=True) if not aside]
        batch = handler({**value, "items": kept})
        newer_kinds = tuple(str(kind) for kind, aside in zip(kinds, newer, strict=True) if aside)
        batch._newer_kinds = newer_kinds  # noqa: SLF001 - a validator of its own class
        return batch


class EventsAccepted(Output):
    accepted: int
    duplicates: int
    set_aside: int
    """Of kinds that this version does not know."""


@fields_of(Event)
class EventRead(Output):
    received_at: float
