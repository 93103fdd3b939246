"""Advice to jobs: who gave it, and what their coordinators made of it.

Revision ID: 0018
Revises: 0017
Created: 2026-11-22
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from service.kit.db import UnixTime

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "advice",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("job", sa.String(128), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("node", sa.String(128), nullable=True),
        sa.Column("rank", sa.Integer(), nullable=True),
        sa.Column("reason", sa.String(500), nullable=False),
        sa.Column("actor", sa.String(200), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("detail", sa.String(500), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.Column("steps_lost", sa.BigInteger(), nullable=True),
        sa.Column("created_at", UnixTime(), nullable=False),
        sa.Column("updated_at", UnixTime(), nullable=False),
        sa.CheckConstraint("state IN ('given', 'accepted', 'done', 'refused', 'failed')", name=op.f("ck_advice_state")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_advice")),
    )
    op.create_index(op.f("ix_advice_job_created_at_id"), "advice", ["job", "created_at", "id"])


def downgrade() -> None:
    op.drop_table("advice")
