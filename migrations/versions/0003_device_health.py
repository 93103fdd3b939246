"""What health needs to know of a node, a device and a finding: rack, boot, goodbye, facts, remedy.

Revision ID: 0003
Revises: 0002
Created: 2026-11-21
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from service.kit.db import UnixTime

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("nodes") as table:
        table.add_column(sa.Column("rack", sa.String(200), nullable=False, server_default=""))
        table.add_column(sa.Column("booted_at", UnixTime(), nullable=True))
        table.add_column(sa.Column("stopped_at", UnixTime(), nullable=True))
        table.create_index("ix_nodes_rack", ["rack"])
    with op.batch_alter_table("devices") as table:
        table.add_column(sa.Column("facts", sa.JSON(), nullable=False, server_default="{}"))
    with op.batch_alter_table("findings") as table:
        table.add_column(sa.Column("remedy", sa.String(16), nullable=False, server_default="none"))


def downgrade() -> None:
    with op.batch_alter_table("findings") as table:
        table.drop_column("remedy")
    with op.batch_alter_table("devices") as table:
        table.drop_column("facts")
    with op.batch_alter_table("nodes") as table:
        table.drop_index("ix_nodes_rack")
        table.drop_column("stopped_at")
        table.drop_column("booted_at")
        table.drop_column("rack")
