"""Imports every feature's models, so that Alembic and ``Base.metadata`` see all tables."""
# ruff: noqa: F401

from __future__ import annotations

import mainstay.service.admission.models
import mainstay.service.audit.models
import mainstay.service.auth.models
import mainstay.service.check_selection.models
import mainstay.service.cluster.models
import mainstay.service.common.idempotency
import mainstay.service.detector_policies.models
import mainstay.service.events.models
import mainstay.service.fleet.models
import mainstay.service.incidents.models
import mainstay.service.jobs.models
import mainstay.service.localization.models
import mainstay.service.notifications.models
import mainstay.service.remediation.models
import mainstay.service.silences.models
import mainstay.service.sources.models
import mainstay.service.stream.models
import mainstay.service.telemetry.models
import mainstay.service.validation.models
import mainstay.service.xid_policies.models
from mainstay.service.common.db import Base

__all__ = ["Base"]
