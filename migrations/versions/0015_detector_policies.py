"""Policies of detectors.

Revision ID: 0015
Revises: 0014
Created: 2026-11-29
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from mainstay.service.common.db import UnixTime

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "detector_policies",
        sa.Column("detector", sa.String(length=64), nullable=False),
        sa.Column("mode", sa.String(length=16), nullable=False),
        sa.Column("min_confidence", sa.Double(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("changed_by", sa.String(length=200), nullable=False),
        sa.Column("changed_at", UnixTime(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.CheckConstraint("mode IN ('default', 'propose', 'record')", name="ck_detector_policies_mode"),
        sa.PrimaryKeyConstraint("detector", name="pk_detector_policies"),
    )


def downgrade() -> None:
    op.drop_table("detector_policies")
