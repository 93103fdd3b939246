"""Requests of every kind to jobs, and which kinds a job can carry out.

The table keeps its name, from the first kind: services of the version before work on it during an upgrade.

Revision ID: 0011
Revises: 0010
Created: 2026-11-28
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("dp", "pp"):
        op.add_column("migration_requests", sa.Column(name, sa.Integer(), server_default="0", nullable=False))
    op.add_column("migration_requests", sa.Column("stages", sa.JSON(), server_default="[]", nullable=False))
    op.add_column("migration_requests", sa.Column("step", sa.BigInteger(), nullable=True))
    op.add_column("jobs", sa.Column("request_obstacles", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "request_obstacles")
    for name in ("step", "stages", "pp", "dp"):
        op.drop_column("migration_requests", name)
