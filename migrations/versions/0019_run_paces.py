"""How long a step took in earlier runs of a job.

Revision ID: 0019
Revises: 0018
Created: 2026-11-30
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from mainstay.service.common.db import UnixTime

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "run_paces",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("job", sa.String(length=128), nullable=False),
        sa.Column("started_at", UnixTime(), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("shape", sa.String(length=200), nullable=False),
        sa.Column("cohort", sa.String(length=200), nullable=False),
        sa.Column("state_bytes", sa.BigInteger(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("work", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("nodes", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("measured_at", UnixTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_run_paces"),
        sa.UniqueConstraint("job", "started_at", name="uq_run_paces_job_started_at"),
    )
    op.create_index("ix_run_paces_name_measured_at", "run_paces", ["name", "measured_at"])


def downgrade() -> None:
    op.drop_table("run_paces")
