"""Imports every feature's models, so that Alembic and ``Base.metadata`` see all tables."""

from __future__ import annotations

from service.auth import models as auth
from service.events import models as events
from service.fleet import models as fleet
from service.incidents import models as incidents
from service.jobs import models as jobs
from service.kit import idempotency
from service.kit.db import Base
from service.policies import models as policies
from service.remediation import models as remediation
from service.sources import models as sources
from service.stream import models as stream
from service.telemetry import models as telemetry
from service.validation import localisation_models as localisations
from service.validation import models as validation
from service.validation import selection_models as selections

__all__ = [
    "Base",
    "auth",
    "events",
    "fleet",
    "idempotency",
    "incidents",
    "jobs",
    "localisations",
    "policies",
    "remediation",
    "selections",
    "sources",
    "stream",
    "telemetry",
    "validation",
]
