"""The policy on the wire: rules, versions, and what a try-out found."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from mainstay.detectors.policy.comparison import PolicyTotals, StatementChange
from mainstay.detectors.policy.load import MAX_BYTES
from mainstay.detectors.policy.model import Family
from mainstay.probes.core_types import RecommendedAction, Severity
from mainstay.service.common.schemas import Input, JsonNumber, Output, ShortText, UnixSeconds, check_text, fields_of
from mainstay.service.xid_policies.models import PolicyShadowRow, PolicyVersionRow, VersionMode

MAX_VERSION = 2**31 - 1
Toml = Annotated[str, Field(max_length=MAX_BYTES), AfterValidator(check_text)]
Reason = Annotated[ShortText, Field(min_length=1)]
Version = Annotated[int, Field(ge=1, le=MAX_VERSION), JsonNumber]


class OverridesIn(Input):
    overrides: Toml
    """TOML; ``[xid.79]`` and the like. Empty text is the built-in policy."""
    mode: Literal["draft", "shadow", "active"]
    """New rules should begin as a shadow."""
    reason: Reason


class VersionChoice(Input):
    version: Version
    reason: Reason


class PolicyTestRequest(Input):
    overrides: Toml
    since: UnixSeconds | None = None
    """Events from here on; a week ago if not given."""
    until: UnixSeconds | None = None

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise ValueError("since must be earlier than until")
        return self


class PolicyRule(Output):
    family: Family
    code: int
    title: str
    group: str
    severity: Severity
    recommended_action: RecommendedAction
    repeat: str | None
    """The rules of repetition and of actions in vain, in words."""
    note: str
    overridden: bool


class ShadowRead(Output):
    version: int
    digest: str
    created_at: float
    actor: str
    reason: str


class PolicyRead(Output):
    digest: str
    version: int | None
    """Null: the built-in policy is in force."""
    mode: Literal["builtin", "active"]
    shadow: ShadowRead | None
    rules: list[PolicyRule]


@fields_of(PolicyVersionRow)
class PolicyVersionRead(Output):
    mode: VersionMode


@fields_of(PolicyTotals)
class TallyRead(Output):
    pass


@fields_of(StatementChange, without={"event"})
class PolicyChange(Output):
    pass


class PolicyTestRead(Output):
    events: int
    since: float
    until: float
    truncated: bool
    """Older events of the time asked for were left out; ``since`` is where it began."""
    before: TallyRead
    after: TallyRead
    changes: list[PolicyChange]
    """The first of them."""
    changes_total: int


@fields_of(PolicyShadowRow, without={"event_id"})
class ShadowVerdictRead(Output):
    pass
