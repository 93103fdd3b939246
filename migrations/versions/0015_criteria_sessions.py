"""Criteria sessions: how many a criterion was learned from, and how much they differ.

Revision ID: 0015
Revises: 0014
Created: 2026-11-22
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("criteria", sa.Column("sessions", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column("criteria", "sessions")
