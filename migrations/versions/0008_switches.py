"""The network switches above a node.

Revision ID: 0008
Revises: 0007
Created: 2026-11-21
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("nodes", sa.Column("switches", sa.JSON(none_as_null=True), nullable=False, server_default="[]"))


def downgrade() -> None:
    op.drop_column("nodes", "switches")
