"""Pauses of admission to a rack or to the fleet.

Revision ID: 0012
Revises: 0011
Created: 2026-11-28
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from mainstay.service.common.db import UnixTime

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "admission_pauses",
        sa.Column("rack", sa.String(128), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("actor", sa.String(200), nullable=False),
        sa.Column("created_at", UnixTime(), nullable=False),
        sa.PrimaryKeyConstraint("rack", name="pk_admission_pauses"),
    )


def downgrade() -> None:
    op.drop_table("admission_pauses")
