"""When findings began, and an index by which those of devices are found at a past time.

Revision ID: 0017
Revises: 0016
Created: 2026-11-29
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from mainstay.service.common.db import UnixTime, partial

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("findings", sa.Column("began_at", UnixTime(), nullable=True))
    op.create_index("ix_findings_device_cleared", "findings", ["cleared_at"], **partial("device IS NOT NULL"))


def downgrade() -> None:
    op.drop_index("ix_findings_device_cleared", "findings")
    op.drop_column("findings", "began_at")
