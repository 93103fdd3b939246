"""Validations and localizations that may run beside a job.

Revision ID: 0010
Revises: 0009
Created: 2026-11-27
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

TABLES = ("validations", "localizations")


def upgrade() -> None:
    for table in TABLES:
        op.add_column(table, sa.Column("allow_occupied", sa.Boolean(), server_default=sa.false(), nullable=False))


def downgrade() -> None:
    for table in TABLES:
        op.drop_column(table, "allow_occupied")
