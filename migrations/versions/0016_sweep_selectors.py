"""Sweeps by rack, cohort, and state, once, and in a time zone; ranks that are absent after a recovery.

Revision ID: 0016
Revises: 0015
Created: 2026-11-29
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from mainstay.service.common.db import UnixTime

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("racks", "cohorts", "states"):
        op.add_column("sweeps", sa.Column(name, sa.JSON(none_as_null=True), server_default="[]", nullable=False))
    op.add_column("sweeps", sa.Column("run_at", UnixTime(), nullable=True))
    op.add_column("sweeps", sa.Column("timezone", sa.String(length=64), server_default="UTC", nullable=False))
    op.add_column("recoveries", sa.Column("absent_ranks", sa.Integer(), server_default="0", nullable=False))
    array = "json_build_array" if op.get_bind().dialect.name == "postgresql" else "json_array"
    op.execute(f"UPDATE sweeps SET cohorts = {array}(cohort) WHERE cohort IS NOT NULL")


def downgrade() -> None:
    op.drop_column("recoveries", "absent_ranks")
    for name in ("timezone", "run_at", "states", "cohorts", "racks"):
        op.drop_column("sweeps", name)
