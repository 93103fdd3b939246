"""Findings about the way between two ranks, and what kind of root cause is behind them.

Revision ID: 0007
Revises: 0006
Created: 2026-11-21
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("findings", sa.Column("peer", sa.Integer(), nullable=True))
    op.add_column("findings", sa.Column("cause", sa.String(32), nullable=True))
    op.add_column("incidents", sa.Column("cause", sa.String(32), nullable=True))


def downgrade() -> None:
    op.drop_column("incidents", "cause")
    op.drop_column("findings", "cause")
    op.drop_column("findings", "peer")
