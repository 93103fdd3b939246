"""What the audit log answers."""

from __future__ import annotations

from mainstay.service.audit.models import AuditRow
from mainstay.service.common.schemas import Output, fields_of


@fields_of(AuditRow)
class AuditRead(Output):
    """One act of a person, a token, or a rule."""
