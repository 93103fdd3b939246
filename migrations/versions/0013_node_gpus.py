"""How many GPUs a node has, beside its state: the gate asks it of a thousand nodes at once.

Revision ID: 0013
Revises: 0012
Created: 2026-11-22
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("nodes", sa.Column("gpus", sa.Integer(), nullable=False, server_default="0"))
    op.execute(
        "UPDATE nodes SET gpus = (SELECT count(*) FROM devices"
        " WHERE devices.node = nodes.name AND devices.kind = 'gpu' AND devices.present)"
    )
    op.drop_index(op.f("ix_nodes_state"), table_name="nodes")
    op.create_index(op.f("ix_nodes_state_name"), "nodes", ["state", "name"])


def downgrade() -> None:
    op.drop_index(op.f("ix_nodes_state_name"), table_name="nodes")
    op.create_index(op.f("ix_nodes_state"), "nodes", ["state"])
    op.drop_column("nodes", "gpus")
