"""What failed may be measured again: how often is said of a sweep and a validation, and kept with each result.

Revision ID: 0016
Revises: 0015
Created: 2026-11-22
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_TABLES = ("sweeps", "validations", "validation_results", "selections")


def upgrade() -> None:
    for table in _TABLES:
        op.add_column(table, sa.Column("again", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    for table in _TABLES:
        op.drop_column(table, "again")
