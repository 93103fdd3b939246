"""What each process of a service does.

Revision ID: 0009
Revises: 0008
Created: 2026-11-27
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("processes", sa.Column("role", sa.String(16), server_default="all", nullable=False))


def downgrade() -> None:
    op.drop_column("processes", "role")
