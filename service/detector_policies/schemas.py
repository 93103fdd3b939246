"""Detectors and their policies on the wire."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from mainstay.detectors.base import DetectorState
from mainstay.detectors.finding import FindingKind
from mainstay.service.common.schemas import Input, Output, Text, fields_of
from mainstay.service.detector_policies.models import DetectorMode, DetectorPolicyRow


class DetectorPolicyUpdate(Input):
    mode: DetectorMode
    min_confidence: Annotated[float, Field(ge=0, le=1, strict=True)] | None = None
    """Least confidence of a finding that proposes a remediation; null: the site's."""
    reason: Text = ""
    """Required for every policy but the default one."""
    version: Annotated[int, Field(ge=0, lt=2**31 - 1, strict=True)]
    """Of the policy that this one replaces; 0 where there was none."""

    @model_validator(mode="after")
    def _has_reason(self) -> Self:
        changed = self.mode is not DetectorMode.DEFAULT or self.min_confidence is not None
        if changed and not self.reason.strip():
            raise ValueError("reason must not be empty for a policy other than the default one")
        return self


@fields_of(DetectorPolicyRow, without={"detector"})
class DetectorPolicyRead(Output):
    mode: DetectorMode
    changed_at: float | None
    """Null: it was never changed."""


class DetectorLimitRead(Output):
    name: str
    value: str
    about: str
    """What it means, and its unit."""


class DetectorRead(Output):
    """One detector with its policy. Limits cannot be changed."""

    name: str
    about: str
    kinds: list[FindingKind]
    limits: list[DetectorLimitRead]
    is_per_job: bool
    """Whether each running job has a detector of its own; else one runs for the fleet."""
    jobs: dict[DetectorState, int]
    """Running jobs by state of their detector; empty for a detector of the fleet."""
    active_findings: int
    recent_findings: int
    """Findings of the last 30 days."""
    drains: int
    """Findings of the last 30 days for which a node was drained."""
    policy: DetectorPolicyRead
    effects: dict[DetectorMode, str]
    """What each mode means for this detector, in a sentence."""


class DetectorList(Output):
    items: list[DetectorRead]
    min_confidence: float
    """The site's least confidence of a finding that proposes a remediation."""
