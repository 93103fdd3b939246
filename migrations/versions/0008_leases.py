"""Processes of a service, and their leases.

Revision ID: 0008
Revises: 0007
Created: 2026-11-26
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from mainstay.service.common.db import UnixTime

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "processes",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("url", sa.String(300), nullable=False),
        sa.Column("version", sa.String(64), nullable=False),
        sa.Column("started_at", UnixTime(), nullable=False),
        sa.Column("seen_at", UnixTime(), nullable=False),
        sa.Column("pending", sa.Integer(), nullable=False),
        sa.Column("lag", sa.Double(), nullable=False),
        sa.Column("stopped", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_processes"),
    )
    op.create_table(
        "leases",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("holder", sa.BigInteger(), nullable=True),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", UnixTime(), nullable=False),
        sa.Column("shared", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("name", name="pk_leases"),
    )


def downgrade() -> None:
    op.drop_table("leases")
    op.drop_table("processes")
