"""Imports every feature's models, so that Alembic and ``Base.metadata`` see all tables."""

from __future__ import annotations

from mainstay.service.auth import models as auth
from mainstay.service.check_selection import models as selections
from mainstay.service.common import idempotency
from mainstay.service.common.db import Base
from mainstay.service.events import models as events
from mainstay.service.fleet import models as fleet
from mainstay.service.incidents import models as incidents
from mainstay.service.jobs import models as jobs
from mainstay.service.localization import models as localizations
from mainstay.service.remediation import models as remediation
from mainstay.service.sources import models as sources
from mainstay.service.stream import models as stream
from mainstay.service.telemetry import models as telemetry
from mainstay.service.validation import models as validation
from mainstay.service.xid_policies import models as policies

__all__ = [
    "Base",
    "auth",
    "events",
    "fleet",
    "idempotency",
    "incidents",
    "jobs",
    "localizations",
    "policies",
    "remediation",
    "selections",
    "sources",
    "stream",
    "telemetry",
    "validation",
]
