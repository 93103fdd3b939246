"""Requests for another number of tensor-parallel ranks.

Revision ID: 0018
Revises: 0017
Created: 2026-11-30
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("migration_requests", sa.Column("tp", sa.Integer(), server_default="0", nullable=False))


def downgrade() -> None:
    op.drop_column("migration_requests", "tp")
