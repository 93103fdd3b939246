"""Imports every feature's models, so that Alembic and ``Base.metadata`` see all tables."""

from __future__ import annotations

from service.auth import models as auth
from service.fleet import models as fleet
from service.kit import idempotency
from service.kit.db import Base
from service.stream import models as stream
from service.telemetry import models as telemetry

__all__ = ["Base", "auth", "fleet", "idempotency", "stream", "telemetry"]
