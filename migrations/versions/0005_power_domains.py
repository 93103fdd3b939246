"""Power domains of nodes.

Revision ID: 0005
Revises: 0004
Created: 2026-11-26
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("nodes", sa.Column("power_domain", sa.String(200), server_default="", nullable=False))
    op.create_index("ix_nodes_power_domain", "nodes", ["power_domain"])


def downgrade() -> None:
    op.drop_index("ix_nodes_power_domain", "nodes")
    op.drop_column("nodes", "power_domain")
