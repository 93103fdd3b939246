"""What a job's coordinator weighed at a failure, and how that fared.

Revision ID: 0021
Revises: 0020
Created: 2026-11-23
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("recoveries", sa.Column("way", sa.String(32), nullable=True))
    op.add_column("recoveries", sa.Column("promised_seconds", sa.Double(), nullable=True))
    op.add_column("recoveries", sa.Column("regret_seconds", sa.Double(), nullable=True))
    op.add_column("recoveries", sa.Column("decision", sa.JSON(), nullable=True))


def downgrade() -> None:
    for name in ("decision", "regret_seconds", "promised_seconds", "way"):
        op.drop_column("recoveries", name)
