"""Findings that hold, by time: a few among years of others.

Revision ID: 0017
Revises: 0016
Created: 2026-11-22
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_NAME = "ix_findings_active_time"


def upgrade() -> None:
    op.create_index(
        _NAME, "findings", ["time", "id"], sqlite_where=sa.text("active = 1"), postgresql_where=sa.text("active")
    )


def downgrade() -> None:
    op.drop_index(_NAME, table_name="findings")
