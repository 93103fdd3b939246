"""Other monitors that are scraped or that report here, and how often each XID was seen on each card.

Revision ID: 0006
Revises: 0005
Created: 2026-11-21
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from service.kit.db import UnixTime

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "dcgm_targets",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("url", sa.String(500), nullable=False),
        sa.Column("node", sa.String(128), nullable=True),
        sa.Column("interval_seconds", sa.Double(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("created_at", UnixTime(), nullable=False),
        sa.Column("due_at", UnixTime(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("last_scrape_at", UnixTime(), nullable=True),
        sa.Column("last_error", sa.String(500), nullable=True),
        sa.Column("samples", sa.BigInteger(), nullable=False),
        sa.Column("memory", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_dcgm_targets"),
        sa.UniqueConstraint("url", name="uq_dcgm_targets_url"),
    )
    op.create_index("ix_dcgm_targets_created_at_id", "dcgm_targets", ["created_at", "id"])
    op.create_index("ix_dcgm_targets_due_at", "dcgm_targets", ["due_at"])
    op.create_table(
        "reported_health",
        sa.Column("source", sa.String(32), nullable=False),
        sa.Column("node", sa.String(128), nullable=False),
        sa.Column("check_name", sa.String(200), nullable=False),
        sa.Column("health", sa.String(64), nullable=False),
        sa.Column("time", UnixTime(), nullable=False),
        sa.PrimaryKeyConstraint("source", "node", "check_name", name="pk_reported_health"),
    )
    op.create_table(
        "xid_totals",
        sa.Column("gpu", sa.String(300), nullable=False),
        sa.Column("xid", sa.Integer(), nullable=False),
        sa.Column("total", sa.BigInteger(), nullable=False),
        sa.Column("first_at", UnixTime(), nullable=False),
        sa.Column("last_at", UnixTime(), nullable=False),
        sa.Column("last_source", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("gpu", "xid", name="pk_xid_totals"),
    )


def downgrade() -> None:
    op.drop_table("xid_totals")
    op.drop_table("reported_health")
    op.drop_table("dcgm_targets")
