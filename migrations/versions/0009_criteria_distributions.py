"""Criteria distributions: the reference sample that a criterion compares whole runs with.

Revision ID: 0009
Revises: 0008
Created: 2026-11-21
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("criteria", sa.Column("distribution", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column("criteria", "distribution")
